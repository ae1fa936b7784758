"""A token bucket: how fast messages have their turns, and how many may wait for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.handling_speed import WELL_WITHIN
from nsq_ha.policy.rate import MaxRate
from nsq_ha.policy.timing import LATE

RATES = st.floats(0.001, 1_000_000)


@given(RATES, st.lists(st.floats(0, 100), max_size=50))
def test_no_more_have_their_turn_than_rate_and_burst_allow(rate: float, pauses: list[float]) -> None:
    turns, now, taken, burst = MaxRate(rate, 0.0), 0.0, 0, max(int(rate), 1)
    for pause in pauses:
        now += pause
        for _ in range(20):
            taken += turns.take(now) == 0
        assert taken <= burst + rate * (now + LATE) + 1e-3 * taken


@pytest.mark.parametrize("rate", [0.5, 3.0, 10.0, 1000.0])
@pytest.mark.parametrize("late", [0.0, LATE * 0.9])
def test_late_timers_cost_no_turns(rate: float, late: float) -> None:
    turns, now, taken = MaxRate(rate, 0.0), 0.0, 0
    while now < 100:
        wait = turns.take(now)
        taken += not wait
        now += wait + late if wait else 0.0
    assert taken == pytest.approx(100 * rate, rel=0.02, abs=2)


def test_a_burst_comes_back_after_a_time_without_messages() -> None:
    turns = MaxRate(4.0, 10.0)
    assert [turns.take(10.0) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    assert turns.take(9.0) == 0.25  # a clock that is behind gives no turn, and takes none
    assert [turns.take(1000.0) for _ in range(4)] == [0] * 4
    assert turns.take(1000.0) == pytest.approx((1 - 4 * LATE) / 4)


def test_tokens_are_taken_along_when_the_rate_changes() -> None:
    assert MaxRate(2.0, 0.0, 0.0).take(0.0) == 0.5
    assert MaxRate(2.0, 0.0, 100.0).tokens(0.0) == 2 + 2 * LATE


@pytest.mark.parametrize(
    ("rate", "partitions", "waiting"),
    [
        (10.0, 4, 10),  # of the next second
        (2.0, 32, 32),  # one for each partition, so that none takes turns
        (0.1, 32, 3),  # in time all the same
        (0.02, 32, 0),
        (1000.0, 1, 1000),
    ],
)
def test_what_may_wait_for_its_turn(rate: float, partitions: int, waiting: int) -> None:
    assert MaxRate(rate, 0.0).waiting(partitions, 60.0) == waiting


@given(RATES, st.integers(0, 5000), st.floats(1, 900))
def test_the_last_one_that_waits_has_its_turn_in_time(rate: float, partitions: int, msg_timeout: float) -> None:
    turns = MaxRate(rate, 0.0, 0.0)
    waiting = turns.waiting(partitions, msg_timeout)
    assert waiting / rate <= WELL_WITHIN * msg_timeout
    if not waiting:
        soon = turns.soon(0.0, msg_timeout)
        assert 1 / rate - soon == pytest.approx(WELL_WITHIN * msg_timeout)
        assert turns.soon(soon + 1, msg_timeout) == 0
