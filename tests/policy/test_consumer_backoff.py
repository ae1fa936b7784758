"""When messages flow again after failures: every state and event, and whole stories."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.options.types import Backoff
from nsq_ha.policy.consumer_backoff import ConsumerBackoff, PauseState
from nsq_ha.policy.timing import delay_after

DOUBLING = Backoff(initial=1.0, maximum=8.0, factor=2.0, jitter=0.0)


def made(backoff: Backoff = DOUBLING) -> ConsumerBackoff:
    return ConsumerBackoff(backoff, lambda: 1.0)


def fails(policy: ConsumerBackoff, now: float, key: object) -> bool:
    return policy.failed(now, key, is_known=False)


def hands_out(policy: ConsumerBackoff, now: float, key: object) -> bool:
    return policy.handed_out(key, is_known=False)


def doubted() -> ConsumerBackoff:
    policy = made()
    assert fails(policy, 0.0, "a")
    return policy


def paused() -> ConsumerBackoff:
    policy = doubted()
    assert hands_out(policy, 0.0, "next")
    assert fails(policy, 0.0, "next")
    return policy


def about_to_test() -> ConsumerBackoff:
    policy = paused()
    assert policy.look(1.0)
    return policy


def in_test() -> ConsumerBackoff:
    policy = about_to_test()
    assert hands_out(policy, 1.0, "test")
    return policy


IN = {
    PauseState.FLOWING: made,
    PauseState.DOUBTED: doubted,
    PauseState.PAUSED: paused,
    PauseState.TESTING: about_to_test,
    PauseState.IN_TEST: in_test,
}


# ------------------------------------------------------------ the table


@pytest.mark.parametrize("state", PauseState)
def test_each_state_can_be_reached(state: PauseState) -> None:
    assert IN[state]().state is state


def test_only_a_pause_has_an_end_and_level_0_holds_nothing_back() -> None:
    for state, enter in IN.items():
        policy = enter()
        assert (policy.until is not None) is (state is PauseState.PAUSED)
        assert policy.holds is (policy.level > 0) is (state not in {PauseState.FLOWING, PauseState.DOUBTED})


# ------------------------------------------------------------ stories


def test_one_failure_holds_nothing_back_and_the_next_success_ends_the_doubt() -> None:
    policy = doubted()
    assert not policy.succeeded("before")
    assert hands_out(policy, 0.1, "b")
    assert hands_out(policy, 0.1, "c")
    assert policy.succeeded("c")
    assert (policy.state, policy.level) == (PauseState.FLOWING, 0)
    assert not policy.succeeded("b")
    assert fails(policy, 0.4, "b")
    assert policy.state is PauseState.DOUBTED


def test_two_failures_in_a_row_pause_and_one_success_ends_it() -> None:
    policy = paused()
    assert (policy.level, policy.seconds, policy.until) == (1, 1.0, 1.0)
    assert not hands_out(policy, 0.5, "b")
    assert not policy.look(0.9)
    assert policy.look(1.0)
    assert not policy.look(1.1)
    assert hands_out(policy, 1.1, "b")
    assert not hands_out(policy, 1.1, "c")
    assert policy.succeeded("b")
    assert (policy.state, policy.level) == (PauseState.FLOWING, 0)
    assert hands_out(policy, 1.3, "c")
    assert not policy.succeeded("c")


def fail_tests(policy: ConsumerBackoff, count: int) -> list[float]:
    pauses = []
    for number in range(count):
        now = policy.until or 0.0
        policy.look(now)
        hands_out(policy, now, number)
        fails(policy, now, number)
        pauses.append(policy.seconds)
    return pauses


def test_failures_lead_deeper_up_to_the_maximum_and_one_success_leads_out() -> None:
    policy = doubted()
    assert fail_tests(policy, 7) == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert policy.look(policy.until or 0.0)
    assert hands_out(policy, 100.0, "t")
    assert policy.succeeded("t")
    assert (policy.state, policy.level) == (PauseState.FLOWING, 0)


def test_what_failed_before_proves_nothing_by_failing_again() -> None:
    policy = made()
    assert not policy.failed(0.0, "old", is_known=True)
    policy = doubted()
    assert policy.handed_out("old", is_known=True)
    assert not policy.failed(0.2, "old", is_known=True)
    assert policy.state is PauseState.DOUBTED
    policy = about_to_test()
    assert policy.handed_out("old", is_known=True)
    assert policy.failed(1.5, "old", is_known=True)
    assert (policy.state, policy.level, policy.until) == (PauseState.PAUSED, 1, 2.5)


def test_what_failed_before_ends_a_pause_by_its_success() -> None:
    policy = about_to_test()
    assert policy.handed_out("old", is_known=True)
    assert policy.succeeded("old")
    assert policy.state is PauseState.FLOWING


def test_jitter_shortens_a_pause() -> None:
    policy = made(Backoff(initial=2.0, maximum=2.0, jitter=0.25))
    fails(policy, 0.0, "a")
    assert fail_tests(policy, 1) == [pytest.approx(1.5)]


def test_handlers_that_began_before_the_pause_have_no_say() -> None:
    for policy in (doubted(), paused(), about_to_test(), in_test()):
        before = (policy.state, policy.level, policy.until)
        assert not fails(policy, 1.5, "b")
        assert not policy.succeeded("b")
        assert not policy.deferred(1.5, "b")
        assert not policy.lost("b")
        assert (policy.state, policy.level, policy.until) == before


def test_a_test_without_an_outcome_is_followed_by_another_pause_of_the_same_length() -> None:
    policy = in_test()
    assert policy.deferred(1.5, "test")
    assert (policy.state, policy.level, policy.until) == (PauseState.PAUSED, 1, 2.5)


def test_a_lost_test_is_followed_by_another_one() -> None:
    policy = in_test()
    assert policy.lost("test")
    assert (policy.state, policy.level) == (PauseState.TESTING, 1)
    assert hands_out(policy, 1.5, "next")
    assert not fails(policy, 1.5, "test")
    assert policy.succeeded("next")
    assert policy.state is PauseState.FLOWING


@pytest.mark.parametrize(("outcome", "level"), [("succeeded", 0), ("failed", 2), ("deferred", 1)])
def test_the_outcome_of_a_lost_test_counts_until_the_next_one(outcome: str, level: int) -> None:
    policy = in_test()
    policy.lost("test")
    assert not policy.lost("test")
    options = {"is_known": False} if outcome == "failed" else {}
    times = () if outcome == "succeeded" else (1.6,)
    assert getattr(policy, outcome)(*times, "test", **options)
    assert policy.level == level
    assert not getattr(policy, outcome)(*times, "test", **options) or policy.state is PauseState.DOUBTED


def test_while_messages_flow_only_a_failure_matters() -> None:
    policy = made()
    assert not policy.deferred(0.0, "a")
    assert not policy.lost("a")
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
            held, was = policy.holds, policy.state
            if hands_out(policy, now, number):
                if held:
                    assert was is PauseState.TESTING
                    out.clear()
                out.add(number)
        elif call == "failed":
            policy.failed(now, next(iter(out)) if key and out else -1, is_known=key > 1)
        else:
            at = (now,) if call == "deferred" else ()
            getattr(policy, call)(*at, next(iter(out)) if key and out else -1)
        assert policy.holds is (policy.state not in {PauseState.FLOWING, PauseState.DOUBTED})
        assert (policy.until is None) is (policy.state is not PauseState.PAUSED)
        assert delay_after(backoff, policy.level, lambda: 0.0) <= backoff.maximum
        if policy.until is not None:
            assert policy.until - now <= backoff.maximum + 1e-9
