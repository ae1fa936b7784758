"""How often messages that are being worked on are touched."""

import pytest

from nsq_ha.policy.touching import LEAST_GAP, gap, interval


@pytest.mark.parametrize(
    ("seconds", "msg_timeout", "each"), [(None, 60.0, 30.0), (5.0, 60.0, 5.0), (59.0, 60.0, 45.0), (0.1, 1.0, 0.1)]
)
def test_the_interval(seconds: float | None, msg_timeout: float, each: float) -> None:
    assert interval(seconds, msg_timeout) == each
    assert gap(seconds, msg_timeout) == each / 2


def test_an_nsqd_that_keeps_messages_for_a_millisecond_makes_no_hurry() -> None:
    assert gap(None, 0.001) == gap(5.0, 0.001) == LEAST_GAP
