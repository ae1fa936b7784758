"""When a silent peer is given up, when a leader counts as stalled, and when its connection is closed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy.liveness import (
    BLOCKS_REMEMBERED,
    LONGEST_INTERVAL,
    OVERDUE_AFTER,
    SLOW_LINK,
    STALLED_AFTER,
    Blocks,
    is_silent,
    next_look,
    stalled_at,
)

times = st.floats(0, 1e6)
sizes = st.integers(0, 2**30)


def test_two_intervals_are_borne() -> None:
    assert not is_silent(4.0, 4.0, 0.0, 2.0)
    assert is_silent(4.1, 4.1, 0.0, 2.0)


def test_silence_says_nothing_while_this_program_was_held_up() -> None:
    assert not is_silent(60.0, 1.0, 0.5, 2.0)
    assert not is_silent(61.5, 60.0, 0.5, 2.0)
    assert is_silent(61.0, 60.0, 0.5, 2.0), "half an interval late is not held up"
    assert is_silent(60.5, 60.5, 0.5, 2.0)


def test_the_silence_begins_with_the_last_byte() -> None:
    assert not is_silent(103.0, 103.0, 99.5, 2.0)
    assert is_silent(104.0, 104.0, 99.5, 2.0)


def test_a_healthy_connection_is_checked_when_it_could_be_silent() -> None:
    assert next_look(10.0, 9.0, 2.0) == 13.0
    assert next_look(10.0, 5.0, 2.0) == 10.5


@given(interval=st.floats(1.0, 60.0), late=st.floats(0.0, 0.4))
def test_a_frozen_peer_is_given_up_soon_after_two_intervals(interval: float, late: float) -> None:
    now, due = 0.0, next_look(0.0, 0.0, interval)
    while not is_silent(now := due + late * interval, due, 0.0, interval):
        due = next_look(now, 0.0, interval)
    assert 2 * interval < now <= 2.7 * interval


@pytest.mark.parametrize(
    ("seconds", "interval"), [(1.9, 2.0), (2.0, 2.0), (2.5, 2.0), (8.0, 6.0), (20.0, 15.0), (50.0, 37.5), (100.0, 60.0)]
)
def test_after_a_block_the_interval_covers_it(seconds: float, interval: float) -> None:
    blocks = Blocks(2.0)
    assert blocks.interval(0.0) == 2.0
    assert blocks.blocked(100.0, seconds) is (seconds > 2.0)
    assert blocks.interval(100.0) == interval


@given(st.floats(2.1, 75.0))
def test_two_intervals_are_longer_than_the_block(seconds: float) -> None:
    blocks = Blocks(2.0)
    blocks.blocked(0.0, seconds)
    assert 2 * blocks.interval(0.0) > seconds
    assert blocks.interval(0.0) <= LONGEST_INTERVAL


def test_the_longest_block_counts_until_none_came_for_long() -> None:
    blocks = Blocks(2.0)
    blocks.blocked(0.0, 50.0)
    blocks.blocked(10.0, 8.0)
    assert blocks.interval(10.0) == 37.5
    assert blocks.interval(10.0 + BLOCKS_REMEMBERED) == 2.0
    blocks.blocked(10.0 + BLOCKS_REMEMBERED, 8.0)
    assert blocks.interval(10.0 + BLOCKS_REMEMBERED) == 6.0


def test_a_server_that_takes_no_longer_interval_is_asked_no_more() -> None:
    blocks = Blocks(2.0)
    blocks.blocked(0.0, 8.0)
    blocks.refused()
    assert blocks.interval(0.0) == 2.0


def test_a_leader_is_stalled_after_a_while_and_a_large_publish_takes_longer() -> None:
    assert stalled_at(100.0, 0) == 100.0 + STALLED_AFTER
    assert stalled_at(100.0, 2 * SLOW_LINK) == 102.0 + STALLED_AFTER


def test_the_limit_lies_between_a_dead_follower_and_the_usual_limit_of_a_publish() -> None:
    assert 12.0 < OVERDUE_AFTER < ProducerConfig().publish_timeout
