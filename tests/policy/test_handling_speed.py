"""How many messages may wait, by how long handling takes, and how old the first one is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.handling_speed import FIRST_WAITING, Speed


def steady(seconds: float) -> Speed:
    pace = Speed()
    pace.took(1, seconds)
    return pace


def test_few_may_wait_before_anything_is_known() -> None:
    assert Speed().waiting(60.0, 4) == FIRST_WAITING
    assert not Speed().is_quick(60.0, 1, 1)


@pytest.mark.parametrize(
    ("seconds", "msg_timeout", "handlers", "waiting"),
    [
        (0.05, 5.0, 1, 50),
        (0.05, 5.0, 4, 200),
        (0.3, 60.0, 1, 100),
        (2.5, 5.0, 1, 1),
        (2.6, 5.0, 4, 0),  # none may wait: one that begins after half the timeout ends after it
        (7.0, 5.0, 4, 0),
        (100.0, 60.0, 1, 0),
    ],
)
def test_no_more_wait_than_begin_within_half_the_timeout(
    seconds: float, msg_timeout: float, handlers: int, waiting: int
) -> None:
    assert steady(seconds).waiting(msg_timeout, handlers) == waiting


def test_a_handler_that_takes_no_time_at_all_limits_nothing() -> None:
    assert steady(0.0).waiting(1.0, 1) > 1_000_000


@pytest.mark.parametrize(
    ("seconds", "msg_timeout", "handlers", "count", "is_quick"),
    [
        (0.001, 60.0, 1, 200, True),
        (0.006, 60.0, 1, 200, False),
        (0.004, 2.0, 1, 200, False),
        (0.01, 60.0, 4, 200, True),  # four handlers share them
        (0.5, 60.0, 1, 2, False),  # a second is not quick any more
        (0.00225, 2.0, 1, 200, True),  # just under a quarter of the timeout
    ],
)
def test_where_quick_ends(seconds: float, msg_timeout: float, handlers: int, count: int, *, is_quick: bool) -> None:
    assert steady(seconds).is_quick(msg_timeout, handlers, count) is is_quick


def test_the_pace_is_that_of_one_message_and_follows_by_time_and_count() -> None:
    pace = Speed()
    pace.took(4, 2.0)
    assert pace.seconds == 0.5
    pace.took(4, 0.5)  # half a second and four messages: three quarters of the way to the new mean
    assert pace.seconds == 0.5 + (0.125 - 0.5) * 0.75


def test_a_message_that_takes_long_counts_at_once() -> None:
    pace = steady(0.001)
    pace.took(1, 10.0)
    assert pace.waiting(60.0, 1) == 3


def test_quick_ones_again_count_after_a_few() -> None:
    pace = steady(10.0)
    for _ in range(100):
        pace.took(1, 0.001)
    assert pace.waiting(60.0, 1) > 200


@given(seconds=st.floats(1e-6, 100.0), msg_timeout=st.floats(1.0, 900.0), handlers=st.integers(1, 100), more=st.data())
def test_the_last_that_waits_begins_in_time(
    seconds: float, msg_timeout: float, handlers: int, more: st.DataObject
) -> None:
    pace = steady(seconds)
    for count in more.draw(st.lists(st.integers(1, 50), max_size=5)):
        pace.took(count, count * seconds)
    waiting = pace.waiting(msg_timeout, handlers)
    assert waiting / handlers * seconds <= msg_timeout / 2 * (1 + 1e-6)
