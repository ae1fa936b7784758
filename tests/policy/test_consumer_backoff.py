"""When messages flow again after failures: every state and event, and whole stories."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.options.types import Backoff
from nsq_ha.policy.consumer_backoff import TRANSITIONS, ConsumerBackoff, PauseEvent, PauseState
from nsq_ha.policy.timing import delay_after

DOUBLING = Backoff(initial=1.0, maximum=8.0, factor=2.0, jitter=0.0)


def made(backoff: Backoff = DOUBLING) -> ConsumerBackoff:
    return ConsumerBackoff(backoff, lambda: 1.0)


def paused() -> ConsumerBackoff:
    policy = made()
    assert policy.failed(0.0, "a")
    return policy


def about_to_test() -> ConsumerBackoff:
    policy = paused()
    assert policy.look(1.0)
    return policy


def in_test() -> ConsumerBackoff:
    policy = about_to_test()
    assert policy.handed_out(1.0, "test")
    return policy


IN = {
    PauseState.FLOWING: made,
    PauseState.PAUSED: paused,
    PauseState.TESTING: about_to_test,
    PauseState.IN_TEST: in_test,
}


# ------------------------------------------------------------ the table


@pytest.mark.parametrize("state", PauseState)
def test_each_state_can_be_reached(state: PauseState) -> None:
    assert IN[state]().state is state


def test_only_a_pause_has_an_end_and_only_flowing_has_level_0() -> None:
    for state, enter in IN.items():
        policy = enter()
        assert (policy.until is not None) is (state is PauseState.PAUSED)
        assert (policy.level == 0) is (state is PauseState.FLOWING)


@pytest.mark.parametrize("event", PauseEvent)
def test_each_event_is_used(event: PauseEvent) -> None:
    assert event in {used for _, used in TRANSITIONS}


# ------------------------------------------------------------ stories


def test_one_failure_pauses_and_one_success_ends_it() -> None:
    policy = paused()
    assert (policy.level, policy.seconds, policy.until) == (1, 1.0, 1.0)
    assert not policy.handed_out(0.5, "b")
    assert not policy.look(0.9)
    assert policy.look(1.0)
    assert not policy.look(1.1)
    assert policy.handed_out(1.1, "b")
    assert not policy.handed_out(1.1, "c")
    assert policy.succeeded(1.2, "b")
    assert (policy.state, policy.level, policy.test) == (PauseState.FLOWING, 0, None)
    assert policy.handed_out(1.3, "c")
    assert not policy.succeeded(1.4, "c")


def fail_tests(policy: ConsumerBackoff, count: int) -> list[float]:
    pauses = []
    for number in range(count):
        now = policy.until or 0.0
        policy.look(now)
        policy.handed_out(now, number)
        policy.failed(now, number)
        pauses.append(policy.seconds)
    return pauses


def test_failures_lead_deeper_up_to_the_maximum_and_successes_lead_out() -> None:
    policy = made()
    assert fail_tests(policy, 7) == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert policy.level == 4
    ups = []
    while policy.state is not PauseState.FLOWING:
        now = policy.until or 0.0
        assert policy.look(now)
        assert policy.handed_out(now, "t")
        assert policy.succeeded(now, "t")
        ups.append((policy.level, policy.seconds))
    assert ups == [(3, 4.0), (2, 2.0), (1, 1.0), (0, 1.0)]


def test_a_constant_pause_has_one_level() -> None:
    policy = made(Backoff(initial=2.0, maximum=60.0, factor=1.0, jitter=0.0))
    assert fail_tests(policy, 3) == [2.0, 2.0, 2.0]
    assert policy.level == 1


def test_jitter_shortens_a_pause() -> None:
    policy = made(Backoff(initial=2.0, maximum=2.0, jitter=0.25))
    policy.failed(0.0, "a")
    assert policy.seconds == pytest.approx(1.5)


def test_handlers_that_began_before_the_pause_have_no_say() -> None:
    for policy in (paused(), about_to_test(), in_test()):
        before = (policy.state, policy.level, policy.until)
        assert not policy.failed(1.5, "b")
        assert not policy.succeeded(1.5, "b")
        assert not policy.deferred(1.5, "b")
        assert not policy.lost(1.5, "b")
        assert (policy.state, policy.level, policy.until) == before


def test_a_test_without_an_outcome_is_followed_by_another_pause_of_the_same_length() -> None:
    policy = in_test()
    assert policy.deferred(1.5, "test")
    assert (policy.state, policy.level, policy.until) == (PauseState.PAUSED, 1, 2.5)


def test_a_lost_test_is_followed_by_another_one() -> None:
    policy = in_test()
    assert policy.lost(1.5, "test")
    assert (policy.state, policy.level) == (PauseState.TESTING, 1)
    assert policy.handed_out(1.5, "next")
    assert not policy.failed(1.5, "test")
    assert policy.succeeded(1.6, "next")
    assert policy.state is PauseState.FLOWING


@pytest.mark.parametrize(("outcome", "level"), [("succeeded", 0), ("failed", 2), ("deferred", 1)])
def test_the_outcome_of_a_lost_test_counts_until_the_next_one(outcome: str, level: int) -> None:
    policy = in_test()
    policy.lost(1.5, "test")
    assert not policy.lost(1.6, "test")
    assert getattr(policy, outcome)(1.6, "test")
    assert policy.level == level
    assert not getattr(policy, outcome)(1.7, "test") or policy.state is PauseState.FLOWING


def test_while_messages_flow_only_a_failure_matters() -> None:
    policy = made()
    assert not policy.deferred(0.0, "a")
    assert not policy.lost(0.0, "a")
    assert not policy.look(0.0)
    assert policy.state is PauseState.FLOWING


# ------------------------------------------------------------ all orders

CALLS = ("failed", "succeeded", "deferred", "lost", "look", "handed_out")


@given(
    st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 3), st.floats(0.0, 5.0)), max_size=60),
    st.sampled_from([DOUBLING, Backoff(0.5, 0.5, 1.0, 0.0), Backoff(1.0, 3600.0, 1e300, 1.0)]),
)
def test_the_invariants_hold_in_any_order(calls: list[tuple[str, int, float]], backoff: Backoff) -> None:
    policy = ConsumerBackoff(backoff, lambda: 0.5)
    out: set[int] = set()
    now = 0.0
    for (call, key, seconds), number in zip(calls, itertools.count(), strict=False):
        now += seconds
        if call == "look":
            policy.look(now)
        elif call == "handed_out":
            was = policy.state
            if policy.handed_out(now, number) and was is not PauseState.FLOWING:
                assert was is PauseState.TESTING
                out = {number}
        else:
            getattr(policy, call)(now, next(iter(out)) if key and out else -1)
        assert (policy.level == 0) is (policy.state is PauseState.FLOWING)
        assert (policy.until is None) is (policy.state is not PauseState.PAUSED)
        assert policy.level <= 64
        assert delay_after(backoff, policy.level, lambda: 0.0) <= backoff.maximum
        if policy.until is not None:
            assert policy.until - now <= backoff.maximum + 1e-9
