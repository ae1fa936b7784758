"""How many messages may wait, by how long handling takes, and how old the first one is."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_ha.policy.backlog import FIRST_WAITING, GRAIN, Ages, Speed

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("hold"), st.just(0)),
        st.tuples(st.just("return"), st.integers(0, 1)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 200)),
    ),
    max_size=60,
)


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
    ("seconds", "msg_timeout", "count", "is_quick"),
    [(0.001, 60.0, 200, True), (0.006, 60.0, 200, False), (0.004, 2.0, 200, False), (0.001, 60.0, 2500, False)],
)
def test_quick_is_what_empties_a_full_queue_at_once(
    seconds: float, msg_timeout: float, count: int, *, is_quick: bool
) -> None:
    assert steady(seconds).is_quick(msg_timeout, 1, count) is is_quick


@pytest.mark.parametrize(
    ("seconds", "msg_timeout", "handlers", "count", "is_quick"),
    [
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


@example([("arrive", 1), ("hold", 0), ("wait", 90), ("arrive", 3), ("return", 0), ("remove", 2)])
@example([("arrive", 9), *2 * [("hold", 0)], ("wait", 9), *2 * [("return", 1)], ("remove", 4), ("take", 2)])
@given(STEPS)
def test_no_message_is_taken_to_be_younger_than_it_is(steps: list[tuple[str, int]]) -> None:
    queue: deque[float] = deque()
    held: list[tuple[float, float]] = []  # handed out and not answered: when it arrived, and what was known of that
    ages, now, has_removed = Ages(), 0.0, False
    for step, count in steps:
        if step == "arrive":
            ages.arrived(now, count, len(queue))
            queue.extend([now] * count)
        elif step == "take":
            for _ in range(min(count, len(queue))):
                queue.popleft()
        elif step == "hold" and queue:
            known = ages.head(len(queue))
            held.append((queue.popleft(), known))
        elif step == "return" and held:
            arrived, known = (now, now) if count else held[0]  # a touched one begins again
            del held[0]
            queue.appendleft(arrived)
            ages.put_back(known, len(queue))
        elif step == "remove" and len(queue) > count:
            del queue[count]
            ages.removed(len(queue) + 1, len(queue))
            has_removed = True
        elif step == "wait":
            now += count / 1000
        if queue:
            head = ages.head(len(queue))
            assert head <= queue[0]
            assert has_removed or head >= queue[0] - GRAIN


def test_a_fast_stream_makes_few_marks() -> None:
    ages = Ages()
    for number in range(1000):
        ages.arrived(number / 1000, 1, number)
    assert len(ages._marks) <= 1.0 / GRAIN + 1


def test_marks_go_with_their_messages() -> None:
    ages = Ages()
    for number in range(100):
        ages.arrived(float(number), 1, 0)
    assert len(ages._marks) == 1


def test_an_emptied_queue_begins_again() -> None:
    ages = Ages()
    ages.arrived(1.0, 3, 0)
    ages.removed(3, 0)
    ages.arrived(5.0, 1, 0)
    assert ages.head(1) == 5.0


def test_the_head_is_as_old_as_the_first_message_that_waits() -> None:
    ages = Ages()
    ages.arrived(0.1, 3, 0)
    ages.arrived(0.2, 2, 3)
    ages.arrived(0.3, 1, 5)
    assert [ages.head(waiting) for waiting in (6, 5, 4, 3, 2, 1)] == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3]


def test_arrivals_share_a_mark_for_less_than_a_grain() -> None:
    ages = Ages()
    for number, now in enumerate((0.0, GRAIN, 1.5 * GRAIN)):
        ages.arrived(now, 1, number)
    assert [ages.head(waiting) for waiting in (3, 2, 1)] == [0.0, GRAIN, GRAIN]


def test_a_message_at_the_head_again_is_as_old_as_before() -> None:
    ages = Ages()
    ages.arrived(0.1, 1, 0)
    ages.arrived(0.2, 2, 1)
    assert ages.head(2) == 0.2
    ages.put_back(0.1, 3)
    assert [ages.head(waiting) for waiting in (3, 2, 1)] == [0.1, 0.2, 0.2]
