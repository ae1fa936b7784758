"""How old the message at the head of a queue is."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.ages import GRAIN, Ages

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 5)),
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("put back"), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 200)),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_message_is_taken_to_be_younger_than_it_is(steps: list[tuple[str, int]]) -> None:
    queue: deque[float] = deque()
    ages, now, has_removed = Ages(), 0.0, False
    for step, count in steps:
        if step == "arrive":
            ages.arrived(now, count, len(queue))
            queue.extend([now] * count)
        elif step == "take":
            for _ in range(min(count, len(queue))):
                queue.popleft()
        elif step == "put back" and queue:
            arrived = ages.head(len(queue))
            queue.appendleft(queue.popleft())
            ages.put_back(arrived, len(queue))
        elif step == "remove" and len(queue) > count:
            del queue[count]
            ages.removed(len(queue))
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
    ages.removed(0)
    ages.arrived(5.0, 1, 0)
    assert ages.head(1) == 5.0
