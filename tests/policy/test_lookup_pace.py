"""How often topics are looked up: one topic, one client with many, and a fleet, all on a virtual clock."""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy.lookup_pace import (
    JITTER,
    interval_after,
    longest_interval,
    partition_delay,
)
from tests.support.full import FULL

SHORTEST: Final = ProducerConfig().lookup_interval
LONGEST: Final = longest_interval(SHORTEST)


@pytest.mark.parametrize(
    ("shortest", "expected"), [(5.0, 60.0), (0.1, pytest.approx(1.2)), (1.0, 12.0), (90.0, 90.0), (3600.0, 3600.0)]
)
def test_the_longest_interval(shortest: float, expected: float) -> None:
    assert longest_interval(shortest) == expected
    assert partition_delay(shortest) == pytest.approx(longest_interval(shortest) + shortest)


@pytest.mark.parametrize(
    ("calm_rounds", "chance", "seconds"),
    [(0, 0.0, 5.0), (0, 0.5, 4.5), (1, 0.0, 60.0), (1, 0.5, 32.5), (1, 1.0, 5.0), (2, 0.0, 60.0), (9, 0.5, 54.0)],
)
def test_lookups_are_rare_while_nothing_happens(calm_rounds: int, chance: float, seconds: float) -> None:
    assert interval_after(calm_rounds, SHORTEST, chance) == seconds


@given(st.integers(0, 10), st.floats(0.01, 3600.0), st.floats(0.0, 1.0))
def test_no_gap_is_longer_than_the_longest(calm_rounds: int, shortest: float, chance: float) -> None:
    longest = longest_interval(shortest)
    assert shortest * (1 - JITTER) <= interval_after(calm_rounds, shortest, chance) <= longest


APPEARS: Final = 700.0
ROUND: Final = 0.25
"""Seconds that a round takes."""


def found_at(began: float, chance: Callable[[], float], shortest: float) -> float:
    """Return when a topic that has been looked up since ``began`` is looked up after a partition appeared."""
    calm_rounds = 0
    while began < APPEARS:
        began += max(interval_after(calm_rounds, shortest, chance()), ROUND)
        calm_rounds += 1
    return began


@given(st.integers(), st.floats(0.0, 600.0), st.floats(0.0, 600.0))
def test_a_consumer_asks_before_a_producer_uses_a_new_partition(
    seed: int, consumer_began: float, producer_began: float
) -> None:
    chance = random.Random(seed).random
    used_at = found_at(producer_began, chance, SHORTEST) + partition_delay(SHORTEST)
    assert found_at(consumer_began, chance, SHORTEST) + SHORTEST <= used_at + 1e-6


@pytest.mark.parametrize(("shortest", "latest"), [(SHORTEST, 2 * LONGEST + SHORTEST), (1.0, 25.0)])
@given(seed=st.integers(), began=st.floats(0.0, 600.0))
def test_all_producers_use_a_new_partition_after_twice_the_longest_interval(
    shortest: float, latest: float, seed: int, began: float
) -> None:
    found = found_at(began, random.Random(seed).random, shortest)
    assert found + partition_delay(shortest) <= APPEARS + latest + ROUND


# ---------------------------------------------------------------- a client with many topics, and a fleet


def begun(topics: int, until: float, chance: random.Random, *, start: float = 0.0) -> Iterator[tuple[float, int]]:
    """Yield when one client looks up which topic, if nothing ever changes after the first round of each."""
    calm_rounds = [0] * topics
    due = [(start, topic) for topic in range(topics)]
    while due and due[0][0] <= until:
        now, topic = heapq.heappop(due)
        yield now, topic
        heapq.heappush(due, (now + interval_after(calm_rounds[topic], SHORTEST, chance.random()), topic))
        calm_rounds[topic] += 1


FLEET: Final = 1000 if FULL else 250
"""Processes that are played; the requests of all 1000 are in proportion."""
FLEET_REST: Final = 400.0
"""Seconds after which a fleet that was started at one moment is at rest."""


def test_a_fleet_of_1000_processes_with_20_topics_each() -> None:
    """The requests at each nsqlookupd: 370 a second on average at rest, and always less than 500.

    All start within the same second, which is the worst case: they ask in step at first.
    """
    chance = random.Random(1)
    found: Counter[int] = Counter()
    for _ in range(FLEET):
        found.update(int(at) for at, _ in begun(20, FLEET_REST + 100, chance, start=chance.random()))
    rest = [found[second] * 1000 / FLEET for second in range(int(FLEET_REST), int(FLEET_REST) + 100)]
    assert sum(rest) / len(rest) == pytest.approx(20_000 / (LONGEST * (1 - JITTER / 2)), rel=0.02)
    assert max(rest) < 500
    # A fixed interval of 5 s would need more than eight times as many in the first five minutes.
    assert sum(found[second] for second in range(300)) < 300 * 20 * FLEET / SHORTEST / 8
