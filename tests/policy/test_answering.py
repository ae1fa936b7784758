"""When a leader counts as slow, and when it is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.config import ProducerConfig
from nsq_ha.policy.answering import OVERDUE_AFTER, SLOW_LINK, STALLED_AFTER, Answering, stalled_at, state_at

times = st.floats(0, 1e6)
sizes = st.integers(0, 2**30)


def test_the_silence_begins_with_the_oldest_publish_or_the_last_answer() -> None:
    assert stalled_at(10.0, 0.0, 0) == 10.0 + STALLED_AFTER
    assert stalled_at(10.0, 12.0, 0) == 12.0 + STALLED_AFTER
    assert stalled_at(10.0, 0.0, 4 * SLOW_LINK) == 14.0 + STALLED_AFTER


@pytest.mark.parametrize(
    ("silence", "state"),
    [
        (0.0, Answering.PROMPT),
        (STALLED_AFTER - 0.01, Answering.PROMPT),
        (STALLED_AFTER + 0.01, Answering.STALLED),
        (12.0, Answering.STALLED),
        (OVERDUE_AFTER - 0.01, Answering.STALLED),
        (OVERDUE_AFTER + 0.01, Answering.OVERDUE),
    ],
)
def test_the_states_follow_the_silence(silence: float, state: Answering) -> None:
    assert state_at(100.0 + silence, 100.0, 0.0, 0) is state
    assert state_at(100.0 + silence, 50.0, 100.0, 0) is state
    assert state_at(102.0 + silence, 100.0, 0.0, 2 * SLOW_LINK) is state


@given(sent=times, answered=times, size=sizes, now=times, later=times)
def test_a_silence_only_gets_worse(sent: float, answered: float, size: int, now: float, later: float) -> None:
    order = list(Answering)
    first = order.index(state_at(now, sent, answered, size))
    assert first <= order.index(state_at(now + later, sent, answered, size))


def test_the_limit_lies_between_a_dead_follower_and_the_usual_limit_of_a_publish() -> None:
    assert 12.0 < OVERDUE_AFTER < ProducerConfig().publish_timeout
