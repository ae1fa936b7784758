"""When messages that are being worked on are touched: always in time, never for too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.touching import LEAST_GAP, Held, Touches, gap, interval


@pytest.mark.parametrize(
    ("seconds", "msg_timeout", "each"), [(None, 60.0, 30.0), (5.0, 60.0, 5.0), (59.0, 60.0, 45.0), (0.1, 1.0, 0.1)]
)
def test_the_interval(seconds: float | None, msg_timeout: float, each: float) -> None:
    assert interval(seconds, msg_timeout) == each
    assert gap(seconds, msg_timeout) == each / 2


def test_an_nsqd_that_keeps_messages_for_a_millisecond_makes_no_hurry() -> None:
    assert gap(None, 0.001) == gap(5.0, 0.001) == LEAST_GAP
    touches: Touches[str] = Touches(None)
    held = {"a": Held(0.0, 0.001, 900.0)}
    assert [touches.look(now, held).touched for now in (0.1, 0.15)] == [["a"], ["a"]]


def test_a_message_is_touched_at_its_second_turn_and_every_other_one() -> None:
    touches: Touches[str] = Touches(None)
    held = {"a": Held(0.0, 60.0, 900.0)}
    touched = [now for now in range(1, 200, 15) if touches.look(float(now), held).touched]
    assert touched == [16, 46, 76, 106, 136, 166, 196]


def test_an_answered_message_is_forgotten() -> None:
    touches: Touches[str] = Touches(None)
    one = Held(0.0, 60.0, 900.0)
    assert touches.look(20.0, {"a": one}).touched == ["a"]
    assert touches.look(30.0, {}).touched == []
    assert touches.look(40.0, {"a": one}).touched == ["a"]


def test_a_message_that_waited_is_touched_at_once() -> None:
    touches: Touches[str] = Touches(None)
    assert not touches.is_urgent(20.0, Held(0.0, 60.0, 900.0))
    held = Held(0.0, 60.0, 900.0)
    assert touches.is_urgent(40.0, held)
    touches.touched(40.0, "a", held)
    assert touches.look(50.0, {"a": held}).touched == []
    assert touches.look(60.0, {"a": held}).touched == ["a"]


def test_no_message_is_touched_for_longer_than_the_server_keeps_it_and_that_is_said_once() -> None:
    touches: Touches[str] = Touches(None)
    held = {"a": Held(0.0, 10.0, 25.0)}
    turns = [(now, touches.look(now, held)) for now in [number * 2.5 for number in range(20)]]
    assert [now for now, turn in turns if turn.touched] == [5.0, 10.0, 15.0]
    assert [now for now, turn in turns if turn.over] == [25.0]


@given(
    st.floats(1.0, 900.0),
    st.floats(1.0, 3600.0),
    st.one_of(st.none(), st.floats(0.1, 900.0)),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.1),
)
def test_a_held_message_never_times_out_before_its_limit(
    msg_timeout: float, longest: float, seconds: float | None, waited: float, late: float
) -> None:
    """However long it waited, wherever its first turn is, and if each turn is a little late."""
    longest = max(longest, msg_timeout)
    touches: Touches[str] = Touches(seconds)
    held = Held(0.0, msg_timeout, longest)
    step = gap(seconds, msg_timeout)
    now = waited * 0.95 * msg_timeout
    until = msg_timeout
    if touches.is_urgent(now, held):
        touches.touched(now, "a", held)
        until = min(now + msg_timeout, longest)
    last = 0.0
    for _ in range(200):
        now += step * (1.0 + late)
        if now >= longest:
            break
        assert now < until
        if touches.look(now, {"a": held}).touched:
            until, last = min(now + msg_timeout, longest), now
    assert last < longest
