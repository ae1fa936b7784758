"""Pauses between retries and between lookups, and when to warn of an outage."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import ConfigError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import (
    FIRST_WARNING,
    LONGEST_SILENCE,
    QUICK_GAP,
    QUICK_ROUNDS,
    SLOW_GAP,
    Outage,
    Rarely,
    Warned,
    delay_after,
    gap_after,
)


def never() -> float:
    return 0.0


def always() -> float:
    return 1.0


def test_delays_grow_to_their_ceiling() -> None:
    backoff = Backoff(initial=0.1, maximum=1.0, factor=2.0, jitter=0.5)
    assert [delay_after(backoff, n, never) for n in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert delay_after(backoff, 6, always) == 0.5


@given(failures=st.integers(0, 10**9), chance=st.floats(0, 1))
def test_a_delay_never_exceeds_its_maximum(failures: int, chance: float) -> None:
    backoff = Backoff()
    assert 0 <= delay_after(backoff, failures, lambda: chance) <= backoff.maximum


@pytest.mark.parametrize("factor", [1e300, 10**300, 10**9])
@pytest.mark.parametrize("failures", [2, 3, 10, 65, 10**9])
def test_a_factor_however_large_overflows_nothing(factor: float, failures: int) -> None:
    assert delay_after(Backoff(initial=0.1, maximum=1.0, factor=factor, jitter=0.0), failures, never) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"initial": 0}, {"initial": 2, "maximum": 1}, {"factor": 0.5}, {"jitter": 2}, {"maximum": float("inf")}]
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Backoff(**wrong)


def test_pauses_between_look_ups_are_short_at_first_and_then_grow() -> None:
    gaps = [gap_after(rounds, never) for rounds in range(40)]
    assert set(gaps[: QUICK_ROUNDS + 1]) == {QUICK_GAP}
    assert QUICK_GAP < gaps[QUICK_ROUNDS + 1] < gaps[QUICK_ROUNDS + 2] < SLOW_GAP
    assert set(gaps[QUICK_ROUNDS + 5 :]) == {SLOW_GAP}
    assert sum(gaps[:QUICK_ROUNDS]) >= 5.0


@given(rounds=st.integers(0, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_nobody_is_asked_more_than_five_times_a_second(rounds: int, chance: float) -> None:
    assert 0.2 <= gap_after(rounds, lambda: chance) <= SLOW_GAP


def warnings_of(outage: Outage, begin: int, end: int) -> list[int]:
    """Fail each second, and return when a warning was due."""
    found = []
    for now in range(begin, end):
        outage.failed(now)
        if outage.warning(now) is not None:
            found.append(now)
    return found


def test_warnings_come_after_five_seconds_and_then_less_and_less_often() -> None:
    assert warnings_of(Outage(), 100, 300) == [105, 115, 135, 175, 255]


def test_a_short_outage_is_never_mentioned_and_a_warned_one_is_over_once() -> None:
    outage = Outage()
    assert outage.warning(1e9) is outage.recovered(1e9) is None, "all is well"
    outage.failed(1.0)
    assert outage.warning(5.9) is outage.recovered(5.9) is None
    for now in (10.0, 12.0, 14.0):
        outage.failed(now)
    assert outage.warn_at == 15.0
    assert outage.warning(16.0) == Warned(6.0, 3)
    assert outage.recovered(89.0) == Warned(79.0, 3)
    assert outage.recovered(90.0) is None
    assert outage.failures == 0
    assert outage.warning(1e9) is None
    outage.failed(100.0)
    assert outage.recovered(101.0) is None, "nobody was warned of this one"
    assert warnings_of(outage, 200, 240) == [205, 215, 235], "each outage begins with short silences"


@given(looks=st.lists(st.floats(0.01, 200.0), min_size=1, max_size=300))
def test_the_silences_grow_to_their_limit(looks: list[float]) -> None:
    outage = Outage()
    now = 0.0
    outage.failed(now)
    last, silence = now, 0.0
    for step in looks:
        now += step
        if outage.warning(now) is None:
            assert now - last < LONGEST_SILENCE + FIRST_WARNING
            continue
        # Looks that come late shorten nothing.
        assert now - last >= silence
        silence = min(max(FIRST_WARNING, silence * 2), LONGEST_SILENCE)
        last = now


def test_a_warning_by_somebody_else_takes_the_place_of_the_next_one() -> None:
    outage = Outage()
    outage.warned(9.0)  # without an outage there is nothing to plan
    assert outage.warn_at == math.inf
    outage.failed(10.0)
    outage.warned(12.0)
    assert outage.warning(15.0) is None
    assert outage.warning(22.0) == Warned(12.0, 1)
    outage.warned(23.0)
    assert outage.warn_at == 63.0
    assert outage.recovered(24.0) == Warned(14.0, 1)


# ------------------------------------------------------------ changes that are logged rarely


def test_changes_that_go_on_are_logged_less_and_less_often() -> None:
    rarely = Rarely()
    lines = [(second, missed) for second in range(1000) if (missed := rarely.take(float(second))) is not None]
    assert lines[:6] == [(0, 0), (5, 4), (15, 9), (35, 19), (75, 39), (155, 79)]
    assert LONGEST_SILENCE == 600.0
    rarely = Rarely()  # after a long silence, a change is a first one
    taken = [rarely.take(now) for now in (0.0, 5.0, 14.0, 25.0, 29.0, 30.0)]
    assert taken == [0, 0, None, 1, None, 1]
    rarely = Rarely()
    assert [rarely.more(now) for now in (0.0, 1.0, 2.0, 5.0)] == [
        "",
        None,
        None,
        " (and 2 times more since the last line)",
    ]
