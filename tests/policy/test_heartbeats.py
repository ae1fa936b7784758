"""When a silent peer is given up, and when its silence says nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.heartbeats import is_silent, next_look


def test_two_intervals_are_borne() -> None:
    assert not is_silent(4.0, 4.0, 0.0, 2.0)
    assert is_silent(4.1, 4.1, 0.0, 2.0)


def test_silence_says_nothing_while_this_program_was_held_up() -> None:
    assert not is_silent(60.0, 1.0, 0.5, 2.0)
    assert is_silent(60.5, 60.5, 0.5, 2.0)


@given(interval=st.floats(1.0, 60.0), late=st.floats(0.0, 0.4))
def test_a_frozen_peer_is_given_up_soon_after_two_intervals(interval: float, late: float) -> None:
    now, due = 0.0, next_look(0.0, interval)
    while not is_silent(now := due + late * interval, due, 0.0, interval):
        due = next_look(now, interval)
    assert 2 * interval < now <= 2.7 * interval
