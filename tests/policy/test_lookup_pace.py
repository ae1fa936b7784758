"""How often topics are looked up: one topic, one client with many, and a fleet, all on a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy.lookup_pace import (
    CALM_RATE,
    GROWTH,
    LOOKUPS_AT_ONCE,
    LookupPace,
    LookupsInFlight,
    PendingLookup,
    Slots,
    Urgency,
    calm_rate,
    longest_interval,
    partition_delay,
)
from tests.support.full import FULL

SHORTEST: Final = ProducerConfig().lookup_interval
LONGEST: Final = longest_interval(SHORTEST, None)
JITTER: Final = ProducerConfig().lookup_jitter


def calm(pace: LookupPace, rounds: int = 1) -> None:
    for _ in range(rounds):
        pace.round_ended(is_calm=True, on_demand=False)


def at_rest(jitter: float = 0.0) -> LookupPace:
    pace = LookupPace(SHORTEST, LONGEST, jitter)
    calm(pace, 20)
    return pace


# ---------------------------------------------------------------- the interval


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"),
    [(5.0, None, 60.0), (0.1, None, pytest.approx(1.2)), (5.0, 5.0, 5.0), (5.0, 300.0, 300.0), (3600.0, None, 3600.0)],
)
def test_the_longest_interval(shortest: float, longest: float | None, expected: float) -> None:
    assert longest_interval(shortest, longest) == expected
    assert partition_delay(shortest, longest) == pytest.approx(longest_interval(shortest, longest) + shortest)


def test_it_grows_while_nothing_happens() -> None:
    pace = LookupPace(SHORTEST, LONGEST, 0.0)
    gaps = []
    for _ in range(9):
        gaps.append(pace.gap(0.5))
        calm(pace)
    assert gaps == [5.0, 7.5, 11.25, 16.875, 25.3125, 37.96875, 56.953125, 60.0, 60.0]
    assert gaps[1] / gaps[0] == GROWTH


def test_trouble_a_caller_and_a_round_with_news_end_the_rest() -> None:
    pace = at_rest()
    pace.disturbed()
    assert pace.interval == SHORTEST
    for on_demand in (False, True):
        pace = at_rest()
        pace.round_ended(is_calm=False, on_demand=on_demand)
        assert pace.interval == SHORTEST


def test_a_calm_round_on_demand_changes_nothing() -> None:
    pace = LookupPace(SHORTEST, LONGEST, 0.0)
    calm(pace, 2)
    pace.round_ended(is_calm=True, on_demand=True)
    assert pace.interval == 11.25


def test_jitter_only_shortens() -> None:
    pace = LookupPace(SHORTEST, LONGEST, 0.2)
    assert (pace.gap(0.0), pace.gap(0.5)) == (5.0, 4.5)
    pace = at_rest(0.2)
    assert (pace.gap(0.0), pace.gap(0.5)) == (60.0, 54.0)


def test_the_first_longest_interval_has_any_length_up_to_it() -> None:
    pace = LookupPace(SHORTEST, LONGEST, 0.2)
    calm(pace, 7)
    assert pace.interval == LONGEST
    assert (pace.gap(0.0), pace.gap(0.5), pace.gap(1.0)) == (60.0, 32.5, 5.0)
    calm(pace)
    assert pace.gap(0.5) == 54.0
    pace.disturbed()
    assert pace.gap(0.5) == 4.5


def test_without_jitter_each_interval_has_its_length() -> None:
    pace = LookupPace(SHORTEST, LONGEST, 0.0)
    calm(pace, 7)
    assert pace.gap(0.5) == LONGEST


def test_an_interval_that_cannot_grow_stays() -> None:
    pace = LookupPace(60.0, 60.0, 0.2)
    calm(pace, 3)
    assert pace.gap(0.5) == 54.0


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40),
    st.floats(0.01, 100.0),
    st.floats(1.0, 100.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_no_gap_is_longer_than_the_longest(
    rounds: list[tuple[bool, bool]], shortest: float, factor: float, jitter: float, chance: float
) -> None:
    pace = LookupPace(shortest, shortest * factor, jitter)
    for is_calm, on_demand in rounds:
        pace.round_ended(is_calm=is_calm, on_demand=on_demand)
        assert 0 <= pace.gap(chance) <= shortest * factor
        assert shortest <= pace.interval <= shortest * factor


APPEARS: Final = 700.0
ROUND: Final = 0.25
"""Seconds that a round takes."""


def found_at(began: float, chance: Callable[[], float], jitter: float, longest: float = LONGEST) -> float:
    """Return when a topic that has been looked up since ``began`` is looked up after a partition appeared."""
    pace = LookupPace(SHORTEST, longest, jitter)
    while began < APPEARS:
        began += max(pace.gap(chance()), ROUND)
        calm(pace)
    return began


@given(st.integers(), st.floats(0.0, 600.0), st.floats(0.0, 600.0), st.floats(0.0, 1.0))
def test_a_consumer_asks_before_a_producer_uses_a_new_partition(
    seed: int, consumer_began: float, producer_began: float, jitter: float
) -> None:
    chance = random.Random(seed).random
    used_at = found_at(producer_began, chance, jitter) + partition_delay(SHORTEST, None)
    assert found_at(consumer_began, chance, jitter) + SHORTEST <= used_at + 1e-6


@pytest.mark.parametrize(("longest", "latest"), [(LONGEST, 2 * LONGEST + SHORTEST), (SHORTEST, 15.0)])
@given(seed=st.integers(), began=st.floats(0.0, 600.0), jitter=st.floats(0.0, 1.0))
def test_all_producers_use_a_new_partition_after_twice_the_longest_interval(
    longest: float, latest: float, seed: int, began: float, jitter: float
) -> None:
    found = found_at(began, random.Random(seed).random, jitter, longest)
    assert found + partition_delay(SHORTEST, longest) <= APPEARS + latest + ROUND


# ---------------------------------------------------------------- the budget


def test_periodic_lookups_take_turns() -> None:
    budget = Slots(calm_rate(SHORTEST, LONGEST))
    slots = [budget.reserve(100.0) for _ in range(30)]
    assert slots == pytest.approx([100.0 + number / CALM_RATE for number in range(30)])
    assert budget.reserve(200.0) == 200.0


def test_a_topic_alone_is_never_delayed() -> None:
    budget = Slots(calm_rate(0.02, 0.02))
    slots = [budget.reserve(100.0 + number * 0.02) for number in range(50)]
    assert slots == pytest.approx([100.0 + number * 0.02 for number in range(50)])


def test_without_a_limit_nothing_waits() -> None:
    slots, in_flight = Slots(math.inf), LookupsInFlight(math.inf)
    assert {slots.reserve(7.0) for _ in range(10_000)} == {7.0}
    assert all(in_flight.join(Urgency(number % 3), print).has_begun for number in range(10_000))


def test_each_consumed_topic_takes_its_turn_within_the_longest_interval() -> None:
    slots = Slots(calm_rate(SHORTEST, LONGEST, 6_000))
    assert max(slots.reserve(0.0) for _ in range(6_000)) <= LONGEST
    assert calm_rate(SHORTEST, LONGEST, 20) == CALM_RATE


def test_a_slot_that_is_given_back_goes_to_the_next() -> None:
    budget = Slots(CALM_RATE)
    _, second, third = (budget.reserve(100.0) for _ in range(3))
    budget.give_back(second)
    budget.give_back(third)
    assert [budget.reserve(100.0) for _ in range(3)] == pytest.approx([100.1, 100.2, 100.3])
    budget.give_back(budget.reserve(100.0))
    assert budget.reserve(101.0) == 101.0  # the time of that one is over


class Lookups:
    """Lookups that join a budget, and the order in which they began."""

    def __init__(self, most: int) -> None:
        self.all = LookupsInFlight(most)
        self.begun: list[str] = []

    def join(self, name: str, urgency: Urgency = Urgency.DEMANDED) -> PendingLookup:
        turn = self.all.join(urgency, lambda: self.begun.append(name))
        if turn.has_begun:
            self.begun.append(name)
        return turn


def test_so_many_lookups_are_in_flight_and_the_others_follow_in_their_order() -> None:
    lookups = Lookups(2)
    turns = [lookups.join(name) for name in "abcd"]
    assert lookups.begun == ["a", "b"]
    assert [turn.has_begun for turn in turns] == [True, True, False, False]
    lookups.all.leave(turns[1])
    lookups.all.leave(turns[0])
    assert lookups.begun == ["a", "b", "c", "d"]
    assert (lookups.all.count, turns[3].has_begun) == (2, True)


def test_the_most_urgent_lookup_is_next() -> None:
    lookups = Lookups(1)
    turns = [lookups.join("running")]
    for urgency in (Urgency.PERIODIC, Urgency.DEMANDED, Urgency.FIRST):
        turns += [lookups.join(f"{urgency.name} {number}", urgency) for number in range(2)]
    for _ in turns:
        (running,) = (turn for turn in turns if turn.has_begun)
        lookups.all.leave(running)
    assert lookups.begun == ["running", "FIRST 0", "FIRST 1", "DEMANDED 0", "DEMANDED 1", "PERIODIC 0", "PERIODIC 1"]
    assert lookups.all.count == 0


def test_one_that_leaves_the_queue_never_begins() -> None:
    lookups = Lookups(1)
    first, second, third = (lookups.join(name) for name in "abc")
    lookups.all.leave(second)
    lookups.all.leave(second)
    lookups.all.leave(first)
    lookups.all.leave(first)
    assert lookups.begun == ["a", "c"]
    assert lookups.all.count == 1
    lookups.all.leave(third)
    assert lookups.all.count == 0
    assert lookups.join("d").has_begun


def test_the_first_lookups_of_many_topics_are_as_fast_as_their_answers() -> None:
    lookups = LookupsInFlight()
    turns = [lookups.join(Urgency.FIRST, print) for _ in range(100)]
    assert sum(turn.has_begun for turn in turns) == LOOKUPS_AT_ONCE
    for turn in turns:  # no time passes
        assert turn.has_begun
        assert lookups.count <= LOOKUPS_AT_ONCE
        lookups.leave(turn)
    assert lookups.count == 0


@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.booleans()), max_size=60),
    st.floats(0.5, 50.0),
)
def test_no_stretch_of_time_has_more_slots_than_its_share(events: list[tuple[float, bool]], rate: float) -> None:
    slots = Slots(rate)
    now, used = 0.0, []
    for pause, is_used in events:
        now += pause
        slot = slots.reserve(now)
        assert slot >= now
        if is_used:
            used.append(slot)
        else:
            slots.give_back(slot)
    used.sort()
    for first, last in itertools.combinations(range(len(used)), 2):
        assert last - first + 1 <= (used[last] - used[first]) * rate + 1 + 1e-6


# ---------------------------------------------------------------- a client with many topics, and a fleet


def begun(topics: int, until: float, chance: random.Random, *, start: float = 0.0) -> Iterator[tuple[float, int]]:
    """Yield when one client looks up which topic, if nothing ever changes after the first round of each."""
    budget = Slots(calm_rate(SHORTEST, LONGEST))
    paces = [LookupPace(SHORTEST, LONGEST, JITTER) for _ in range(topics)]
    # When which topic is due, and whether it has its slot. The first lookup of each has a caller that waits for it.
    due = [(start, topic, True) for topic in range(topics)]
    while due and due[0][0] <= until:
        now, topic, has_slot = heapq.heappop(due)
        if not has_slot:
            now = budget.reserve(now)
            heapq.heappush(due, (now, topic, True))
            continue
        yield now, topic
        heapq.heappush(due, (now + paces[topic].gap(chance.random()), topic, False))
        paces[topic].round_ended(is_calm=True, on_demand=False)


def test_ten_thousand_topics_of_one_producer() -> None:
    found = Counter(math.ceil(at) for at, _ in begun(10_000, 120.0, random.Random(1)))
    assert found[0] == 10_000  # each topic once, as fast as the answers come
    assert max(found[second] for second in range(1, 120)) <= CALM_RATE + 1


@pytest.mark.parametrize(("topics", "longest"), [(20, LONGEST + 0.5), (200, LONGEST + 0.5), (500, 1.25 * LONGEST)])
def test_how_late_a_producer_of_many_topics_looks_up_each(topics: int, longest: float) -> None:
    before: dict[int, float] = {}
    for at, topic in begun(topics, 1200.0, random.Random(1)):
        assert at - before.get(topic, at) <= longest
        before[topic] = at
    assert len(before) == topics
    assert min(before.values()) > 1200.0 - longest


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
    # A fixed interval of 5 s would need six times as many in the first five minutes, and 12 times as many at rest.
    assert sum(found[second] for second in range(300)) < 300 * 20 * FLEET / SHORTEST / 5
