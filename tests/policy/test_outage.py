"""When to log an outage, how often, and when to log its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.outage import FIRST_WARNING, LONGEST_SILENCE, Outage, Warned


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


def test_a_short_outage_is_never_mentioned() -> None:
    outage = Outage()
    outage.failed(10.0)
    assert outage.warning(14.9) is None
    assert outage.recovered(14.9) is None
    outage.failed(15.0)  # another outage, with five seconds of its own
    assert outage.warning(16.0) is None


def test_a_warned_outage_is_over_once() -> None:
    outage = Outage()
    for now in (10.0, 12.0, 14.0):
        outage.failed(now)
    assert outage.warn_at == 15.0
    assert outage.warning(16.0) == Warned(6.0, 3)
    assert outage.recovered(89.0) == Warned(79.0, 3)
    assert outage.recovered(90.0) is None
    assert outage.failures == 0
    assert outage.warning(1e9) is None


def test_nothing_is_said_while_all_is_well() -> None:
    outage = Outage()
    assert outage.warning(1e9) is None
    assert outage.recovered(1e9) is None


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
    assert outage.warn_at is None
    outage.failed(10.0)
    outage.warned(12.0)
    assert outage.warning(15.0) is None
    assert outage.warning(22.0) == Warned(12.0, 1)
    outage.warned(23.0)
    assert outage.warn_at == 63.0
    assert outage.recovered(24.0) == Warned(14.0, 1)
