"""How RDY is shared and by the size of bodies, where the backlog is, and whose turn it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.policy.ready import (
    FEW,
    LONGEST_CHOSEN,
    LOOK_INTERVAL,
    BodySize,
    Needs,
    Plan,
    Rotation,
    Seen,
    fitting,
    gathering,
    plan,
    share,
)

MIB = 1024 * 1024
IDLE = Seen(ready=2, in_flight=0, peak=0, delivered=0)


@given(
    max_in_flight=st.integers(0, 300),
    ceilings=st.dictionaries(st.integers(0, 40), st.integers(0, 50)),
    needs=st.none() | st.dictionaries(st.integers(0, 40), st.integers(1, 64)),
)
def test_ready_is_shared_exactly(max_in_flight: int, ceilings: dict[int, int], needs: dict[int, int] | None) -> None:
    granted = share(max_in_flight, ceilings, needs)
    assert granted.keys() == ceilings.keys()
    assert sum(granted.values()) == min(max_in_flight, sum(ceilings.values()))
    assert all(0 <= granted[partition] <= ceilings[partition] for partition in ceilings)
    served = [partition for partition in ceilings if ceilings[partition]]
    if max_in_flight >= len(served):
        assert all(granted[partition] for partition in served)


def test_the_remainder_goes_to_the_first_and_a_closed_partition_takes_no_part() -> None:
    assert share(1, {0: 5, 1: 5}) == {0: 1, 1: 0}
    assert share(4, {0: 9, 1: 0, 2: 9}) == {0: 2, 1: 0, 2: 2}
    assert share(4, {0: 9, 1: 9}, needs={0: 9}) == {0: 3, 1: 1}, "one whose need is not known can use one"


def test_no_partitions_get_nothing() -> None:
    assert share(10, {}) == {}


def test_a_limit_that_fell_takes_back_what_is_granted_and_not_used() -> None:
    """Partition 0 has the whole new limit unanswered: partition 1 may get nothing until some of it is answered."""
    assert plan(10, {0: 10, 1: 10}, {0: 10, 1: 0}, {0: 5, 1: 5}) == Plan({0: 5, 1: 0}, {}, is_raise_due=True)


@pytest.mark.parametrize(
    ("limit", "sent", "in_flight", "wanted", "expected"),
    [
        # The last one has all unanswered that it was granted: the others give up as much as is missing, not more.
        (6, (5, 5, 5), (0, 0, 5), (3, 3, 0), Plan({0: 0, 1: 1, 2: 0}, {}, is_raise_due=True)),
        # What is unanswered has taken its room before: a raise up to that takes no more.
        (7, (1, 1), (5, 0), (4, 2), Plan({}, {0: 4, 1: 2}, is_raise_due=False)),
        # One of the raises is granted in part.
        (5, (1, 1), (0, 3), (3, 2), Plan({}, {0: 2, 1: 2}, is_raise_due=True)),
        # There is no room for the raise until what is unanswered elsewhere has been answered.
        (5, (1, 4), (0, 4), (2, 3), Plan({1: 3}, {}, is_raise_due=True)),
    ],
)
def test_what_is_planned(
    limit: int, sent: tuple[int, ...], in_flight: tuple[int, ...], wanted: tuple[int, ...], expected: Plan
) -> None:
    assert plan(limit, *(dict(enumerate(counts)) for counts in (sent, in_flight, wanted))) == expected


@pytest.mark.parametrize(
    ("max_in_flight", "max_bytes", "body_bytes", "fit"),
    [
        (200, 256 * MIB, MIB, 200),
        (2500, 256 * MIB, MIB, 256),
        (2500, 256 * MIB, 100, 2500),
        (200, 16 * MIB, MIB, 16),
        (200, 16 * MIB, MIB + 1, 15),
        (200, MIB, 2 * MIB, 1),
        (0, MIB, 1, 0),
    ],
)
def test_what_fits(max_in_flight: int, max_bytes: int, body_bytes: int, fit: int) -> None:
    assert fitting(max_in_flight, max_bytes, body_bytes) == fit


def test_until_the_first_body_the_largest_is_expected() -> None:
    body = BodySize(MIB)
    assert body.bytes == MIB
    body.seen(100)
    assert body.bytes == 100


def test_the_estimate_of_a_body_shrinks_by_an_eighth_and_is_never_zero() -> None:
    body = BodySize(MIB)
    body.seen(100)
    body.seen(92)
    assert body.bytes == 99
    empty = BodySize(MIB)
    empty.seen(0)
    assert empty.bytes == 1


def test_a_larger_body_counts_at_once_and_smaller_ones_little_by_little() -> None:
    body = BodySize(MIB)
    body.seen(100)
    body.seen(50_000)
    assert body.bytes == 50_000
    estimates = []
    for _ in range(100):
        body.seen(100)
        estimates.append(body.bytes)
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[0] > 40_000
    assert estimates[-1] == 100


@pytest.mark.parametrize(
    ("one", "need", "is_full"),
    [
        (IDLE, 1, False),
        (Seen(ready=50, in_flight=0, peak=3, delivered=10), 4, False),
        (Seen(ready=50, in_flight=4, peak=4, delivered=10), 8, False),
        (Seen(ready=2, in_flight=2, peak=2, delivered=10), 4, True),
        (Seen(ready=2, in_flight=2, peak=2, delivered=2), 4, True),
        (Seen(ready=1, in_flight=1, peak=1, delivered=1), 2, True),
        (Seen(ready=5, in_flight=0, peak=1, delivered=20), 8, True),  # it is used up again and again
        (Seen(ready=2, in_flight=3, peak=3, delivered=3), 4, True),  # its RDY was lowered
        (Seen(ready=0, in_flight=3, peak=3, delivered=3), 4, False),
    ],
)
def test_what_a_partition_needs(one: Seen, need: int, *, is_full: bool) -> None:
    needs = Needs()
    assert needs.look({7: one}) is is_full
    assert needs.by_partition == {7: need}


def test_what_is_not_needed_any_more_is_given_up_little_by_little() -> None:
    needs = Needs()
    needs.look({0: Seen(64, 64, 64, 64)})
    found = []
    for _ in range(8):
        needs.look({0: Seen(64, 0, 0, 64)})
        found.append(needs.by_partition[0])
    assert found == [64, 32, 16, 8, 4, 2, 1, 1]
    assert all(isinstance(count, int) for count in found)


def test_what_was_delivered_before_the_last_look_does_not_count_again() -> None:
    needs, one = Needs(), Seen(ready=5, in_flight=0, peak=1, delivered=20)
    assert needs.look({7: one})
    assert not needs.look({7: one})
    assert needs.look({7: one._replace(delivered=40)})


def test_one_partition_that_uses_all_it_has_is_enough() -> None:
    assert Needs().look({0: Seen(2, 2, 2, 2), 1: IDLE})


def test_a_partition_that_was_left_is_forgotten() -> None:
    needs = Needs()
    needs.look({0: Seen(2, 2, 2, 100), 1: IDLE})
    needs.look({1: IDLE})
    assert needs.by_partition == {1: 1}
    needs.look({0: Seen(50, 0, 0, 0), 1: IDLE})
    assert needs.by_partition == {0: 1, 1: 1}


@pytest.mark.parametrize(("limit", "busy"), [(8, 5), (200, 197), (4, 1)])
def test_one_busy_partition_of_four_soon_has_nearly_all(limit: int, busy: int) -> None:
    needs, granted, delivered = Needs(), share(limit, dict.fromkeys(range(4), 2500)), 0
    for _ in range(4):
        delivered += granted[2]
        seen = {
            p: Seen(granted[p], granted[p] * (p == 2), granted[p] * (p == 2), delivered * (p == 2)) for p in granted
        }
        needs.look(seen)
        granted = share(limit, dict.fromkeys(range(4), 2500), needs=needs.by_partition)
    assert granted[2] == busy
    assert sum(granted.values()) == limit


@given(limit=st.integers(1, 300), partitions=st.integers(1, 20))
def test_busy_partitions_share_evenly(limit: int, partitions: int) -> None:
    needs, ceilings = Needs(), dict.fromkeys(range(partitions), 2500)
    granted = share(limit, ceilings)
    for _ in range(4):
        needs.look({p: Seen(count, count, count, 0) for p, count in granted.items()})
        granted = share(limit, ceilings, needs=needs.by_partition)
    assert max(granted.values()) - min(granted.values()) <= 1


class RotationMachine(RuleBasedStateMachine):
    """Partitions that come, go, and are busy or not; looked at as a consumer does."""

    @initialize()
    def start(self) -> None:
        self.rotation = Rotation()
        self.now = 0.0
        self.slots = 1
        self.chosen: list[int] = []
        self.busy: set[int] = set()
        self.live: dict[int, int] = {}
        self.waits_since: dict[int, float] = {}

    def _look(self) -> None:
        if len(self.live) <= self.slots:
            self.chosen = []
            self.waits_since = dict.fromkeys(self.live, self.now)
            return
        for partition in self.chosen:
            if partition in self.live and partition in self.busy:
                self.live[partition] += 1
        seen = {p: Seen(int(p in self.chosen), 0, 0, delivered) for p, delivered in self.live.items()}
        self.chosen = self.rotation.choose(self.now, self.slots, seen)
        for partition in self.live:
            if partition in self.chosen:
                self.waits_since[partition] = self.now

    @rule(partition=st.integers(0, 7), is_busy=st.booleans())
    def join(self, partition: int, *, is_busy: bool) -> None:
        self.live.setdefault(partition, 0)
        self.waits_since.setdefault(partition, self.now)
        (self.busy.add if is_busy else self.busy.discard)(partition)
        self._look()

    @precondition(lambda self: self.live)
    @rule(place=st.integers(0, 7))
    def leave(self, place: int) -> None:
        partition = sorted(self.live)[place % len(self.live)]
        del self.live[partition]
        self.waits_since.pop(partition, None)
        self._look()

    @rule(slots=st.integers(1, 4))
    def allow(self, slots: int) -> None:
        self.slots = slots
        self._look()

    @rule(looks=st.integers(1, 40))
    def wait(self, looks: int) -> None:
        for _ in range(looks):
            self.now += LOOK_INTERVAL
            self._look()
            self.nobody_starves()

    @invariant()
    def as_many_as_may_have_their_turn(self) -> None:
        if len(self.live) > self.slots:
            assert len(set(self.chosen)) == self.slots
            assert set(self.chosen) <= set(self.live)

    @invariant()
    def nobody_starves(self) -> None:
        for partition, since in self.waits_since.items():
            assert self.now - since <= 8 * (LONGEST_CHOSEN + 2 * LOOK_INTERVAL), partition


RotationMachine.TestCase.settings = settings(stateful_step_count=30)
TestRotation = RotationMachine.TestCase


def run(busy: set[int], seconds: float) -> dict[int, float]:
    """Return for how long each of four partitions has its turn, of which one at a time has."""
    rotation, now = Rotation(), 0.0
    delivered, held = dict.fromkeys(range(4), 0), dict.fromkeys(range(4), 0.0)
    chosen: list[int] = []
    while now < seconds:
        for partition in chosen:
            delivered[partition] += partition in busy
            held[partition] += LOOK_INTERVAL
        chosen = rotation.choose(now, 1, {p: Seen(int(p in chosen), 0, 0, delivered[p]) for p in range(4)})
        now += LOOK_INTERVAL
    return held


def test_one_busy_partition_of_four_has_its_turn_most_of_the_time() -> None:
    held = run({2}, 60.0)
    assert held[2] > 0.7 * 60.0
    assert all(held.values())


def test_busy_partitions_take_turns_of_the_same_length() -> None:
    held = run({0, 1, 2, 3}, 84.0)
    assert max(held.values()) - min(held.values()) <= LONGEST_CHOSEN + 2 * LOOK_INTERVAL


def test_idle_partitions_pass_their_turn_on_at_once() -> None:
    held = run(set(), 6.0)
    assert all(count >= 1.0 for count in held.values())


def test_a_turn_lasts_while_a_message_is_being_handled() -> None:
    rotation = Rotation()
    seen = {0: Seen(1, 1, 1, 1), 1: Seen(0, 0, 0, 0)}
    assert rotation.choose(0.0, 1, seen) == [0]
    assert rotation.choose(0.1, 1, seen) == [0]
    assert rotation.choose(0.1 + 10 * LOOK_INTERVAL, 1, seen) == [0]
    assert rotation.choose(0.1 + LONGEST_CHOSEN, 1, seen) == [1]


def test_a_turn_begins_when_it_was_granted() -> None:
    rotation = Rotation()
    seen = {0: Seen(0, 0, 0, 0), 1: Seen(1, 1, 1, 1)}
    assert [rotation.choose(now, 1, seen) for now in (0.0, 100.0, 200.0)] == [[0], [0], [0]]


def test_turns_of_tests_end_though_nothing_is_asked_for_when_the_next_one_is_chosen() -> None:
    rotation = Rotation()
    seen = [{0: Seen(0, 0, 1, delivered), 1: Seen(0, 0, 0, 0)} for delivered in range(5)]
    assert [rotation.choose(2.0 * number, 1, seen[number]) for number in range(5)] == [[0], [0], [0], [0], [1]]


def idle_rotation(rotation: Rotation, looks: list[tuple[float, int]], partitions: int) -> list[list[int]]:
    """Return whose turn it is at each look, while nobody delivers anything."""
    return [rotation.choose(now, count, dict.fromkeys(range(partitions), Seen(1, 0, 0, 0))) for now, count in looks]


def test_whose_turn_is_over_waits_behind_the_others() -> None:
    looks = [(0.0, 2), (0.0, 2), (1.0, 2), (1.0, 2), (2.0, 2)]
    assert idle_rotation(Rotation(), looks, 3) == [[0, 1], [0, 1], [2, 0], [2, 0], [1, 2]]


def test_turns_that_end_because_fewer_are_allowed_come_again_in_their_order() -> None:
    looks = [(0.0, 3), (0.0, 3), (1.0, 3), (1.0, 1), (2.0, 1), (2.0, 1), (3.0, 1), (3.0, 1), (4.0, 1)]
    assert idle_rotation(Rotation(), looks, 4) == [[0, 1, 2], [0, 1, 2], [3, 0, 1], [1], [2], [2], [3], [3], [0]]


def test_many_partitions_gather_changes() -> None:
    assert gathering(FEW) == 0.0
    assert gathering(1_000) == pytest.approx(0.05)
    assert gathering(5_000) < LOOK_INTERVAL + 0.001
