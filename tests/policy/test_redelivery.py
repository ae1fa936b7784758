"""How long a failed message of an ordered channel waits here, and finished messages that come again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.redelivery import (
    DAMAGED_ATTEMPTS,
    MOST_REMEMBERED,
    REMEMBERED,
    Finished,
    OrderedRequeue,
    is_damaged_for_good,
)

MSG_TIMEOUT = 60.0
MAX_MSG_TIMEOUT = 900.0
ONE = b"0123456789abcdef"


def held(delay: float, *, now: float = 100.0, delivered_at: float = 100.0) -> OrderedRequeue:
    return OrderedRequeue(now, delay, delivered_at, msg_timeout=MSG_TIMEOUT, max_msg_timeout=MAX_MSG_TIMEOUT)


def test_a_short_hold_is_touched_at_once_and_ends_in_time() -> None:
    waiting = held(1.0)
    assert waiting.look(100.0) == (False, True, 101.0)
    assert waiting.look(101.0) == (True, False, 101.0)


def test_a_long_one_is_touched_each_half_of_the_timeout() -> None:
    waiting = held(70.0)
    looks = [waiting.look(now) for now in (100.0, 130.0, 160.0, 170.0)]
    assert [look.again_at for look in looks] == [130.0, 160.0, 170.0, 170.0]
    assert [look.is_over for look in looks] == [False, False, False, True]


def test_touching_helps_only_so_long() -> None:
    waiting = held(900.0, now=140.0)
    assert waiting.until == 100.0 + MAX_MSG_TIMEOUT - MSG_TIMEOUT / 2
    assert held(1.0, now=1000.0).look(1000.0).is_over


@given(used=st.floats(0.0, 59.0), delay=st.floats(0.001, 2000.0), late=st.floats(0.0, 5.0))
def test_the_server_never_times_it_out(used: float, delay: float, late: float) -> None:
    """The server's side is modelled: a clock that TOUCH restarts, up to a bound from the delivery."""
    now = used
    waiting = held(delay, now=now, delivered_at=0.0)
    times_out_at = MSG_TIMEOUT
    while True:
        assert now < times_out_at
        look = waiting.look(now)
        if look.is_over:
            break
        assert look.touch
        times_out_at = min(now + MSG_TIMEOUT, MAX_MSG_TIMEOUT)
        assert look.again_at > now
        now = look.again_at + late
    assert now <= used + delay + late
    assert now >= min(used + delay, MAX_MSG_TIMEOUT - MSG_TIMEOUT / 2)


def test_a_message_is_claimed_once() -> None:
    finished = Finished()
    assert not finished.claim(ONE, 7, 0.0)
    finished.remember(ONE, 7, 0.0)
    assert finished.claim(ONE, 7, 1.0)
    assert not finished.claim(ONE, 7, 1.0)


def test_an_id_that_is_used_again_is_another_message() -> None:
    finished = Finished()
    finished.remember(ONE, 7, 0.0)
    assert not finished.claim(ONE, 8, 1.0)
    assert finished.claim(ONE, 7, 1.0)


def test_nothing_is_remembered_for_ever() -> None:
    finished = Finished()
    finished.remember(ONE, 7, 0.0)
    assert not finished.claim(ONE, 7, REMEMBERED)
    finished.remember(ONE, 7, 0.0)
    finished.remember(b"another one.....", 7, REMEMBERED)
    assert len(finished) == 1


def test_the_oldest_are_forgotten_first() -> None:
    finished = Finished()
    for number in range(MOST_REMEMBERED + 1):
        finished.remember(b"%016d" % number, 1, 0.0)
    finished.remember(b"%016d" % 1, 1, 1.0)  # once more: it is the newest now
    finished.remember(b"%016d" % MOST_REMEMBERED + b"", 1, 1.0)
    assert len(finished) == MOST_REMEMBERED
    finished.remember(b"another one.....", 1, 1.0)
    assert len(finished) == MOST_REMEMBERED
    assert not finished.claim(b"%016d" % 0, 1, 1.0)
    assert not finished.claim(b"%016d" % 2, 1, 1.0)
    assert finished.claim(b"%016d" % 1, 1, 1.0)


def test_a_damaged_message_is_tried_again_before_it_is_finished() -> None:
    decided = [is_damaged_for_good(attempts) for attempts in range(1, DAMAGED_ATTEMPTS + 2)]
    assert decided == [False] * (DAMAGED_ATTEMPTS - 1) + [True, True]
