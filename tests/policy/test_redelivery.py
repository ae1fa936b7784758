"""When failed messages come again, and finished messages that do."""

import pytest

from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.types import Backoff
from nsq_ha.policy.redelivery import (
    DAMAGED_ATTEMPTS,
    LOST_WITHIN,
    MOST_REMEMBERED,
    MOST_UNSETTLED,
    REMEMBERED,
    SETTLES_WITHIN,
    Finished,
    SentFins,
    Stamp,
    is_damaged_for_good,
    requeue_delay,
)
from nsq_ha.policy.timing import delay_after

ONE, ANOTHER = b"1" * 16, b"2" * 16
STAMP: Stamp = (7, None)


def test_a_message_is_claimed_once() -> None:
    finished = Finished()
    assert not finished.claim(0, ONE, STAMP, 0.0)
    finished.remember(0, ONE, STAMP, 0.0)
    assert finished.claim(0, ONE, STAMP, 1.0)
    assert not finished.claim(0, ONE, STAMP, 1.0)


@pytest.mark.parametrize(
    "other",
    [
        (0, ONE, (8, None)),  # of a topic that was created again
        (1, ONE, STAMP),  # of another partition, or another plain nsqd
        (0, ONE, (7, 60)),
        (0, ANOTHER, STAMP),
    ],
)
def test_an_id_that_is_used_elsewhere_is_another_message(other: tuple[int, bytes, Stamp]) -> None:
    finished = Finished()
    finished.remember(0, ONE, STAMP, 0.0)
    assert not finished.claim(*other, 1.0)
    assert finished.claim(0, ONE, STAMP, 1.0)


def test_nothing_is_remembered_for_ever() -> None:
    finished = Finished()
    finished.remember(0, ONE, STAMP, 0.0)
    assert not finished.claim(0, ONE, STAMP, REMEMBERED)
    finished.remember(0, ONE, STAMP, 0.0)
    finished.remember(0, ANOTHER, STAMP, REMEMBERED)
    assert len(finished.known) == 1


def test_the_oldest_are_forgotten_first() -> None:
    finished, many = Finished(), [b"%016d" % number for number in range(MOST_REMEMBERED + 1)]
    for each in many:
        finished.remember(0, each, STAMP, 0.0)
    finished.remember(0, many[1], STAMP, 1.0)  # once more: it is the newest now
    finished.remember(0, many[-1], STAMP, 1.0)
    assert len(finished.known) == MOST_REMEMBERED
    finished.remember(0, ANOTHER, STAMP, 1.0)
    assert len(finished.known) == MOST_REMEMBERED
    assert not finished.claim(0, many[0], STAMP, 1.0)
    assert not finished.claim(0, many[2], STAMP, 1.0)
    assert finished.claim(0, many[1], STAMP, 1.0)


def sent(fins: SentFins, *ids: bytes, now: float = 0.0) -> None:
    """Record FINs that were written one by one."""
    for each in ids:
        fins.writes.append((now, {each: STAMP}))
        fins.count += 1


def test_a_refusal_names_one_of_the_latest_fins() -> None:
    fins, many = SentFins(), [b"%016d" % number for number in range(MOST_UNSETTLED + 1)]
    sent(fins, *many)
    fins.forget_oldest()
    assert fins.refused(many[0]) is None
    assert fins.refused(many[-MOST_UNSETTLED // 2]) == STAMP
    assert fins.refused(many[-MOST_UNSETTLED // 2]) is None


def test_of_many_fins_in_one_write_the_latest_may_be_lost() -> None:
    fins = SentFins()
    fins.writes.append((0.0, {b"%016d" % number: STAMP for number in range(MOST_UNSETTLED + 1)}))
    lost = fins.lost(0.0)
    assert len(lost) == MOST_UNSETTLED
    assert lost[-1] == (b"%016d" % MOST_UNSETTLED, STAMP)


def test_fins_shortly_before_a_loss_may_not_have_arrived() -> None:
    fins = SentFins()
    sent(fins, ONE)
    sent(fins, ANOTHER, now=1.0)
    assert fins.lost(LOST_WITHIN + 1.0) == [(ANOTHER, STAMP)]
    assert fins.lost(LOST_WITHIN + 1.0) == []


@pytest.mark.parametrize(
    ("stamp", "attempts", "after", "is_again"),
    [
        (STAMP, 1, SETTLES_WITHIN, True),
        (STAMP, 1, SETTLES_WITHIN + 0.1, False),  # an operator has reset the channel
        (STAMP, 2, 900.0, True),
        ((8, None), 1, 0.0, False),
    ],
)
def test_on_an_ordered_channel_a_message_that_was_finished_comes_again(
    stamp: Stamp, attempts: int, after: float, is_again: bool
) -> None:
    fins = SentFins()
    sent(fins, ONE, now=512.0)  # times of a loop do not begin with 0
    assert fins.arrived(ONE, stamp, attempts, 512.0 + after) is is_again
    assert fins.refused(ONE) is None


def test_on_an_ordered_channel_the_next_message_proves_the_fin_before_it() -> None:
    fins = SentFins()
    sent(fins, ONE)
    assert not fins.arrived(ANOTHER, STAMP, 1, 0.0)
    assert fins.refused(ONE) is None
    assert fins.lost(0.0) == []


def test_a_damaged_message_is_tried_again_before_it_is_finished() -> None:
    decided = [is_damaged_for_good(attempts) for attempts in range(1, DAMAGED_ATTEMPTS + 2)]
    assert decided == [False] * (DAMAGED_ATTEMPTS - 1) + [True, True]


def test_a_failed_message_comes_later_than_the_pause_and_on_an_ordered_topic_no_later() -> None:
    config = ConsumerConfig(lookupd=("http://a:1",))
    for attempts in range(1, 6):
        pause = delay_after(Backoff(1.0, 4.0), attempts, lambda: 0.0)
        assert requeue_delay(config, attempts, is_ordered=False) > 4.0
        assert requeue_delay(config, attempts, is_ordered=True) == pause
    unpaused = ConsumerConfig(lookupd=("http://a:1",), handler_backoff=None)
    assert requeue_delay(unpaused, 1, is_ordered=True) == requeue_delay(unpaused, 1, is_ordered=False)
