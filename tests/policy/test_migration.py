"""Which cluster a publish goes to, and when a key may move."""

import itertools
from collections import Counter
from collections.abc import Iterator

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from nsq_ha import ConfigError
from nsq_ha.policy.migration import (
    Cluster,
    Mover,
    Moves,
    RoundRobin,
    Ticket,
    check_share,
    cluster_of_key,
    cluster_of_partition,
)

SHARES = st.floats(0, 100)
KEY: Mover = ("orders", b"user-1")
OTHER: Mover = ("orders", b"user-2")
KEYS = [b"%d" % number for number in range(10_000)]


# -- shares


@pytest.mark.parametrize(("share", "expected"), [(0, 0.0), (100, 100.0), (12.5, 12.5)])
def test_a_share_is_a_number_of_percent(share: object, expected: float) -> None:
    assert check_share(share) == expected


@pytest.mark.parametrize("share", [-0.1, 100.1, float("nan"), float("inf"), True, "10", None, 10**400])
def test_anything_else_is_refused(share: object) -> None:
    with pytest.raises(ConfigError, match="x must be a number of percent"):
        check_share(share, "x")


@given(st.binary(), SHARES, SHARES)
def test_a_higher_share_moves_keys_only_to_the_current_cluster(key: bytes, one: float, other: float) -> None:
    low, high = sorted((one, other))
    if cluster_of_key(key, low) == "current":
        assert cluster_of_key(key, high) == "current"


@given(st.binary())
def test_at_the_ends_all_keys_are_on_one_side(key: bytes) -> None:
    assert (cluster_of_key(key, 0), cluster_of_key(key, 100)) == ("previous", "current")


@pytest.mark.parametrize("share", [1, 25, 50, 99])
def test_the_share_is_that_of_the_keys(share: float) -> None:
    found = sum(cluster_of_key(key, share) == "current" for key in KEYS)
    assert abs(found / len(KEYS) * 100 - share) < 1.5


def test_the_keys_of_each_partition_move_by_the_share() -> None:
    of_first = [key for key in KEYS if mmh3.hash(key, 0, signed=False) % 8 == 0]
    moved = sum(cluster_of_key(key, 50) == "current" for key in of_first)
    assert 0.4 < moved / len(of_first) < 0.6


@pytest.mark.parametrize(("share", "expected"), [(0, "previous"), (99.9, "previous"), (100, "current")])
def test_named_partitions_are_those_of_the_previous_cluster_until_all_has_moved(share: float, expected: str) -> None:
    assert cluster_of_partition(share) == expected


# -- messages without a key


@given(SHARES, st.integers(1, 2_000))
def test_each_prefix_of_the_messages_has_the_share(share: float, count: int) -> None:
    robin = RoundRobin()
    current = sum(robin.choose("orders", share) == "current" for _ in range(count))
    assert abs(current - share * count / 100) <= 1.000001


def test_topics_are_dealt_out_separately() -> None:
    robin = RoundRobin()
    dealt: dict[str, list[Cluster]] = {"a": [], "b": []}
    for topic in "aababb":
        dealt[topic].append(robin.choose(topic, 50))
    assert dealt == {"a": ["previous", "current", "previous"], "b": ["previous", "current", "previous"]}


def test_a_topic_is_forgotten_when_it_is_on_one_side() -> None:
    robin = RoundRobin()
    assert [robin.choose("a", share) for share in (99, 99, 0, 100)] == ["previous", "current", "previous", "current"]
    assert len(robin) == 0


# -- moves


def cluster(name: Cluster) -> dict[Mover, Cluster]:
    return dict.fromkeys((KEY, OTHER), name)


class Scene:
    """One key whose first publishes are under way at the previous cluster."""

    def __init__(self, running: int, *, is_moving: bool) -> None:
        self.moves = Moves()
        self.running = [self.publish("previous") for _ in range(running)]
        self.waiting = [self.publish("current")] if is_moving else []

    def publish(self, target: Cluster) -> Ticket:
        ticket = self.moves.enter([KEY])
        if self.moves.start(ticket, cluster(target).__getitem__) is not None:
            self.moves.pass_on(ticket)
        return ticket

    def answer(self) -> list[Ticket]:
        ticket = self.running.pop()
        self.moves.leave(ticket)
        return self.moves.next_of(ticket)


@pytest.mark.parametrize(
    ("running", "is_moving", "target", "starts"),
    [
        (0, False, "previous", True),
        (0, False, "current", True),
        (1, False, "previous", True),
        (1, False, "current", False),
        (1, True, "previous", False),
        (1, True, "current", False),
    ],
)
def test_the_table_of_publishes(running: int, is_moving: bool, target: Cluster, starts: bool) -> None:
    scene = Scene(running, is_moving=is_moving)
    assert scene.publish(target).has_started is starts


def test_the_table_of_answers() -> None:
    scene = Scene(1, is_moving=False)
    assert scene.answer() == []
    assert len(scene.moves) == 0
    scene = Scene(2, is_moving=True)
    [first] = scene.answer()
    assert scene.moves.start(first, cluster("current").__getitem__) is None
    assert scene.answer() == [first]
    assert scene.moves.start(first, cluster("current").__getitem__) == {KEY: "current"}


def test_those_that_wait_start_in_the_order_of_their_calls() -> None:
    scene = Scene(1, is_moving=True)
    second = scene.publish("current")
    [first] = scene.answer()
    assert first is scene.waiting[0]
    assert scene.moves.start(second, cluster("current").__getitem__) is None
    assert scene.moves.start(first, cluster("current").__getitem__) is not None
    assert scene.moves.start(second, cluster("current").__getitem__) is None
    assert scene.moves.next_of(first) == []  # it has not passed its turn on
    scene.moves.pass_on(first)
    assert scene.moves.next_of(first) == [second]
    assert scene.moves.start(second, cluster("current").__getitem__) is not None


def test_one_that_gives_up_holds_nobody_up() -> None:
    scene = Scene(1, is_moving=True)
    second = scene.publish("previous")
    [first] = scene.waiting
    scene.moves.leave(first)
    assert scene.moves.next_of(first) == [second]
    assert scene.moves.start(second, cluster("previous").__getitem__) is not None


def test_if_the_share_changes_back_the_key_stays() -> None:
    scene = Scene(1, is_moving=True)
    assert scene.moves.start(scene.waiting[0], cluster("previous").__getitem__) == {KEY: "previous"}


def test_a_batch_waits_for_all_of_its_keys() -> None:
    scene = Scene(1, is_moving=False)
    batch = scene.moves.enter([OTHER, KEY, OTHER])
    assert batch.movers == (OTHER, KEY)
    assert scene.moves.start(batch, cluster("current").__getitem__) is None
    later = scene.moves.enter([OTHER])
    assert scene.moves.start(later, cluster("current").__getitem__) is None  # no later publish overtakes the batch
    assert scene.answer() == [batch]
    assert scene.moves.start(batch, cluster("current").__getitem__) == {OTHER: "current", KEY: "current"}
    scene.moves.pass_on(batch)
    assert scene.moves.next_of(batch) == [later]


def test_an_answer_wakes_only_the_batch_that_waits_for_its_key() -> None:
    moves = Moves()
    holders = [moves.enter([mover]) for mover in (KEY, OTHER)]
    for holder in holders:
        moves.start(holder, cluster("previous").__getitem__)
        moves.pass_on(holder)
    batch = moves.enter([KEY, OTHER])
    assert moves.start(batch, cluster("current").__getitem__) is None
    moves.leave(holders[1])
    assert moves.next_of(holders[1]) == []  # it waits for the first key
    moves.leave(holders[0])
    assert moves.next_of(holders[0]) == [batch]


class Moving(RuleBasedStateMachine):
    """Any order of calls, answers, cancellations and changes of shares."""

    unfinished = Bundle("unfinished")

    def __init__(self) -> None:
        super().__init__()
        self.moves = Moves()
        self.targets: dict[Mover, Cluster] = {(topic, key): "previous" for topic in "ab" for key in (b"k", b"l", 3)}
        self.numbers: Iterator[int] = itertools.count()
        self.number: dict[Ticket, int] = {}
        self.waiting: list[Ticket] = []
        self.underway: dict[Mover, Counter[Cluster]] = {mover: Counter() for mover in self.targets}
        self.places: dict[Ticket, dict[Mover, Cluster]] = {}
        self.begun: dict[Mover, int] = dict.fromkeys(self.targets, -1)

    def _try(self, ticket: Ticket) -> None:
        if ticket not in self.waiting:
            return
        found = self.moves.start(ticket, self.targets.__getitem__)
        if found is None:
            return
        self.waiting.remove(ticket)
        self.places[ticket] = dict(found)
        for mover, place in found.items():
            assert place == self.targets[mover]
            assert self.begun[mover] < self.number[ticket], "a later call has overtaken this one"
            self.begun[mover] = self.number[ticket]
            self.underway[mover][place] += 1
        self.moves.pass_on(ticket)
        self._wake(ticket)

    def _wake(self, ticket: Ticket) -> None:
        for each in self.moves.next_of(ticket):
            self._try(each)

    @rule(target=unfinished, indexes=st.lists(st.integers(0, 5), min_size=0, max_size=4))
    def publish(self, indexes: list[int]) -> Ticket:
        ticket = self.moves.enter([[*self.targets][index] for index in indexes])
        self.number[ticket] = next(self.numbers)
        self.waiting.append(ticket)
        self._try(ticket)
        return ticket

    @rule(ticket=consumes(unfinished))
    def end(self, ticket: Ticket) -> None:
        """It was answered, or was cancelled while it waited."""
        self.moves.leave(ticket)
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        for mover, place in self.places.pop(ticket, {}).items():
            self.underway[mover][place] -= 1
        self._wake(ticket)

    @rule(index=st.integers(0, 5), place=st.sampled_from(["previous", "current"]))
    def change(self, index: int, place: Cluster) -> None:
        self.targets[[*self.targets][index]] = place

    @invariant()
    def no_key_is_in_both_clusters(self) -> None:
        assert all(min(count["previous"], count["current"]) == 0 for count in self.underway.values())

    @invariant()
    def only_what_is_used_is_remembered(self) -> None:
        used = {mover for ticket in (*self.waiting, *self.places) for mover in ticket.movers}
        assert len(self.moves) == len(used)

    @invariant()
    def the_first_one_waits_only_for_answers(self) -> None:
        if self.waiting:
            first = self.waiting[0]
            assert any(self.underway[mover].total() for mover in first.movers)


TestMoving = Moving.TestCase
