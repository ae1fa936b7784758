"""The pauses between look-ups that somebody waits for."""

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.rhythm import QUICK, QUICK_ROUNDS, SLOW, gap_after


def never() -> float:
    return 0.0


def test_at_first_they_are_short_and_then_they_grow() -> None:
    gaps = [gap_after(rounds, never) for rounds in range(40)]
    assert set(gaps[: QUICK_ROUNDS + 1]) == {QUICK}
    assert QUICK < gaps[QUICK_ROUNDS + 1] < gaps[QUICK_ROUNDS + 2] < SLOW
    assert set(gaps[QUICK_ROUNDS + 5 :]) == {SLOW}
    assert sum(gaps[:QUICK_ROUNDS]) >= 5.0


@given(rounds=st.integers(0, 10**9), chance=st.floats(0, 1, exclude_max=True))
def test_nobody_is_asked_more_than_five_times_a_second(rounds: int, chance: float) -> None:
    assert 0.2 <= gap_after(rounds, lambda: chance) <= SLOW
