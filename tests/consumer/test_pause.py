"""When messages flow again after failures: every state and event, and whole stories."""

import itertools
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.consumer.pause import Pause, PauseState
from nsq_ha.message import Message
from nsq_ha.options.types import Backoff
from nsq_ha.policy.redelivery import MOST_REMEMBERED
from nsq_ha.policy.timing import delay_after

DOUBLING = Backoff(initial=1.0, maximum=8.0, factor=2.0, jitter=0.0)


SOURCE: Any = SimpleNamespace(topic="t", channel="c", partition=0, nsqd="n:1", conn=SimpleNamespace(msg_timeout=60.0))


def message(key: object, attempts: int = 1) -> Message:
    return Message(str(key).encode().rjust(16), b"x", attempts, 1, SOURCE, deadline=1000.0)


def made(backoff: Backoff = DOUBLING) -> Pause:
    return Pause(backoff, lambda: 1.0, deque())


def fails(pause: Pause, now: float, key: object, attempts: int = 1) -> bool:
    return pause.failed(message(key, attempts), now)


def hands_out(pause: Pause, now: float, key: object, attempts: int = 1) -> bool:
    if pause.is_blocking:
        return False
    if pause.is_active:
        pause.handed_out(message(key, attempts), now)
    return True


def seconds_of(pause: Pause) -> float:
    return pause.reports[-1].seconds


def doubted() -> Pause:
    pause = made()
    assert fails(pause, 0.0, "a")
    return pause


def paused() -> Pause:
    pause = doubted()
    assert hands_out(pause, 0.0, "next")
    assert fails(pause, 0.0, "next")
    return pause


def about_to_test() -> Pause:
    pause = paused()
    assert pause.tick(1.0)
    return pause


def in_test() -> Pause:
    pause = about_to_test()
    assert hands_out(pause, 1.0, "test")
    return pause


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


def test_level_0_holds_nothing_back() -> None:
    for state, enter in IN.items():
        assert (enter().level > 0) is (state not in {PauseState.FLOWING, PauseState.DOUBTED})


# ------------------------------------------------------------ stories


def test_one_failure_holds_nothing_back_and_the_next_success_ends_the_doubt() -> None:
    pause = doubted()
    assert not pause.finished(message("before"), 1.5)
    assert hands_out(pause, 0.1, "b")
    assert hands_out(pause, 0.1, "c")
    assert pause.finished(message("c"), 1.5)
    assert (pause.state, pause.level) == (PauseState.FLOWING, 0)
    assert not pause.finished(message("b"), 1.5)
    assert fails(pause, 0.4, "b")
    assert pause.state is PauseState.DOUBTED


def test_two_failures_in_a_row_pause_and_one_success_ends_it() -> None:
    pause = paused()
    assert (pause.level, seconds_of(pause), pause.until) == (1, 1.0, 1.0)
    assert not hands_out(pause, 0.5, "b")
    assert not pause.tick(0.9)
    assert pause.tick(1.0)
    assert hands_out(pause, 1.1, "b")
    assert not hands_out(pause, 1.1, "c")
    assert pause.finished(message("b"), 1.5)
    assert (pause.state, pause.level) == (PauseState.FLOWING, 0)
    assert hands_out(pause, 1.3, "c")
    assert not pause.finished(message("c"), 1.5)


def fail_tests(pause: Pause, count: int) -> list[float]:
    pauses = []
    for number in range(count):
        now = max(pause.until, 0.0)
        pause.tick(now)
        hands_out(pause, now, number)
        fails(pause, now, number)
        pauses.append(seconds_of(pause))
    return pauses


def test_failures_lead_deeper_up_to_the_maximum_and_one_success_leads_out() -> None:
    pause = doubted()
    assert fail_tests(pause, 7) == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert pause.tick(pause.until)
    assert hands_out(pause, 100.0, "t")
    assert pause.finished(message("t"), 1.5)
    assert (pause.state, pause.level) == (PauseState.FLOWING, 0)


def test_what_failed_before_proves_nothing_by_failing_again() -> None:
    pause = made()
    assert not fails(pause, 0.0, "old", 2)
    pause = doubted()
    assert hands_out(pause, 1.0, "old", 2)
    assert not fails(pause, 0.2, "old", 2)
    assert pause.state is PauseState.DOUBTED
    pause = about_to_test()
    assert hands_out(pause, 1.0, "old", 2)
    assert fails(pause, 1.5, "old", 2)
    assert (pause.state, pause.level, pause.until) == (PauseState.PAUSED, 1, 2.5)


def test_what_failed_before_ends_a_pause_by_its_success() -> None:
    pause = about_to_test()
    assert hands_out(pause, 1.0, "old", 2)
    assert pause.finished(message("old"), 1.5)
    assert pause.state is PauseState.FLOWING


def test_jitter_shortens_a_pause() -> None:
    pause = made(Backoff(initial=2.0, maximum=2.0, jitter=0.25))
    fails(pause, 0.0, "a")
    assert fail_tests(pause, 1) == [pytest.approx(1.5)]


def test_handlers_that_began_before_the_pause_have_no_say() -> None:
    for pause in (doubted(), paused(), about_to_test(), in_test()):
        before = (pause.state, pause.level, pause.until)
        assert not fails(pause, 1.5, "b")
        assert not pause.finished(message("b"), 1.5)
        assert not pause.deferred(message("b"), 1.5)
        assert not pause.lost(message("b"), 1.5)
        assert (pause.state, pause.level, pause.until) == before


def test_a_test_without_an_outcome_is_followed_by_another_pause_of_the_same_length() -> None:
    pause = in_test()
    assert pause.deferred(message("test"), 1.5)
    assert (pause.state, pause.level, pause.until) == (PauseState.PAUSED, 1, 2.5)


def test_a_lost_test_is_followed_by_another_one() -> None:
    pause = in_test()
    assert pause.lost(message("test"), 1.5)
    assert (pause.state, pause.level) == (PauseState.TESTING, 1)
    assert hands_out(pause, 1.5, "next")
    assert not fails(pause, 1.5, "test")
    assert pause.finished(message("next"), 1.5)
    assert pause.state is PauseState.FLOWING


def test_so_is_one_that_nsqd_has_timed_out() -> None:
    pause = in_test()
    assert not pause.tick(999.0)
    assert pause.tick(pause.wake_at)


@pytest.mark.parametrize(("number", "pauses"), [(0, True), (1, False)])
def test_only_the_latest_failures_are_remembered(number: int, *, pauses: bool) -> None:
    pause = made()
    for each in range(MOST_REMEMBERED + 1):
        fails(pause, 0.0, each)
    assert hands_out(pause, 0.0, number)
    assert fails(pause, 0.0, number) is pauses


@pytest.mark.parametrize(("outcome", "level"), [("finished", 0), ("failed", 2), ("deferred", 1)])
def test_the_outcome_of_a_lost_test_counts_until_the_next_one(outcome: str, level: int) -> None:
    pause = in_test()
    pause.lost(message("test"), 1.5)
    assert not pause.lost(message("test"), 1.5)
    assert getattr(pause, outcome)(message("test"), 1.6)
    assert pause.level == level
    assert not getattr(pause, outcome)(message("test"), 1.6) or pause.state is PauseState.DOUBTED


def test_while_messages_flow_only_a_failure_matters() -> None:
    pause = made()
    assert not pause.deferred(message("a"), 0.0)
    assert not pause.lost(message("a"), 1.5)
    assert not pause.tick(0.0)
    assert pause.state is PauseState.FLOWING


# ------------------------------------------------------------ all orders

CALLS = ("failed", "finished", "deferred", "lost", "tick", "handed_out")


@given(
    st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 3), st.floats(0.0, 5.0)), max_size=60),
    st.sampled_from([DOUBLING, Backoff(0.5, 0.5, 1.0, 0.0), Backoff(1.0, 3600.0, 1e300, 1.0)]),
)
def test_the_invariants_hold_in_any_order(calls: list[tuple[str, int, float]], backoff: Backoff) -> None:
    pause = Pause(backoff, lambda: 0.5, deque())
    out: set[int] = set()
    now = 0.0
    for (call, key, seconds), number in zip(calls, itertools.count(), strict=False):
        now += seconds
        if call == "tick":
            pause.tick(now)
        elif call == "handed_out":
            held, was = pause.level > 0, pause.state
            if hands_out(pause, now, number):
                if held:
                    assert was is PauseState.TESTING
                    out.clear()
                out.add(number)
        else:
            chosen = next(iter(out)) if key and out else -1
            getattr(pause, call)(message(chosen, 1 + (call == "failed" and key > 1)), now)
        assert (pause.level > 0) is (pause.state not in {PauseState.FLOWING, PauseState.DOUBTED})
        assert delay_after(backoff, pause.level, lambda: 0.0) <= backoff.maximum
        assert pause.until - now <= backoff.maximum + 1e-9
