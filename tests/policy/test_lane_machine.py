"""The lane against its table, under every order of events that a search and hypothesis find."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from docs._ext.lane_table import STEPS, Doubt, LaneEvent, Standing, standing_of
from nsq_ha.policy.lane import PROMPT_REFUSAL, Entry, Lane, Stage

# ---------------------------------------------------------------- the table, row by row


class Item(Entry, eq=False, kw_only=True):
    item: int


class Watched:
    """A lane of which each step is compared with the table; what it wrote lies on the wire until it is answered."""

    def __init__(self, window: int = 8) -> None:
        self.lane: Lane[Item] = Lane()
        self.window = window
        self.now = 0.0
        self.made: list[Item] = []
        self.inside: list[Item] = []
        self.wire: list[Item] = []
        self.rows: set[tuple[Standing, LaneEvent]] = set()

    def _standings(self) -> dict[Item, tuple[Standing, bool]]:
        return {entry: (standing_of(entry), entry.maybe_stored) for entry in self.inside}

    def _compare(
        self, before: dict[Item, tuple[Standing, bool]], acted: list[Item], event: LaneEvent, *, late: bool
    ) -> None:
        """Those that were acted on go by ``event``; of the others some may have been freed, and nothing else."""
        for entry, (standing, was_in_doubt) in before.items():
            after = standing_of(entry) if entry in self.inside else Standing.OUTSIDE
            if entry not in acted and (after, entry.maybe_stored) == (standing, was_in_doubt):
                continue
            row = (standing, event if entry in acted else LaneEvent.FREED)
            self.rows.add(row)
            step = STEPS[row]
            assert after is step.standing, row
            adds = step.doubt is Doubt.ALWAYS or (step.doubt is Doubt.IF_LATE and late)
            assert entry.maybe_stored == (was_in_doubt or adds), row

    def submit(self, entry: Item) -> None:
        before = self._standings() | {entry: (Standing.OUTSIDE, entry.maybe_stored)}
        free = all(key not in other.keys for other in self.lane.pending() for key in entry.keys)
        self.made.append(entry)
        self.inside.append(entry)
        self.lane.submit(entry)
        self._compare(before, [entry], LaneEvent.SUBMIT if free else LaneEvent.SUBMIT_BEHIND, late=False)

    def write(self) -> list[Item]:
        before = self._standings()
        taken = self.lane.take(self.now, self.window)
        self.wire += taken
        self._compare(before, taken, LaneEvent.WRITE, late=False)
        return taken

    def answer(self) -> Item:
        before = self._standings()
        sent = self.wire.pop(0)
        answered = self.lane.answered()
        assert answered is sent
        self._compare(before, [answered], LaneEvent.ANSWER, late=False)
        return answered

    def answer_run(self, count: int) -> list[Item]:
        before = self._standings()
        sent = self.wire[:count]
        del self.wire[:count]
        answered = self.lane.all_answered(count)
        assert answered == sent
        self._compare(before, answered, LaneEvent.ANSWER, late=False)
        return answered

    def refuse(self, *, again: bool) -> Item:
        before = self._standings()
        sent = self.wire.pop(0)
        refused = self.lane.refused(self.now, retry=again)
        assert refused is sent
        late = self.now - sent.sent_at > PROMPT_REFUSAL
        self._compare(before, [refused], LaneEvent.REFUSE_AGAIN if again else LaneEvent.REFUSE, late=late)
        return refused

    def lose(self) -> list[Item]:
        before = self._standings()
        lost = self.lane.lost()
        assert lost == self.wire
        self.wire.clear()
        again = [entry for entry in lost if not entry.given_up]
        assert list(self.lane._ready)[: len(again)] == again, "the lane's head, in the old order"
        self._compare(before, lost, LaneEvent.LOSE, late=False)
        return lost

    def give_up(self, entry: Item) -> None:
        before = self._standings()
        self.lane.give_up(entry)
        self._compare(before, [entry], LaneEvent.GIVE_UP, late=False)

    def ask(self) -> Item | None:
        before = self._standings()
        awaited = [entry for entry in self.wire if not entry.given_up]
        assert self.lane.is_awaited is bool(awaited)
        first = min(awaited, key=lambda entry: entry.attempts, default=None)
        asked = self.lane.ask_again()
        assert asked is first
        if asked is not None:
            self._compare(before, [asked], LaneEvent.ASK, late=False)
        return asked

    def withdraw(self) -> list[Item]:
        before = self._standings()
        out = self.lane.withdraw()
        self.inside = [entry for entry in self.inside if entry not in out]
        self._compare(before, out, LaneEvent.WITHDRAW, late=False)
        return out

    def divert(self, sent_until: float) -> list[Item]:
        before = self._standings()
        out = self.lane.divert(sent_until)
        self.inside = [entry for entry in self.inside if entry not in out]
        ghosts = [entry for entry in self.lane.pending() if entry.is_ghost]
        self.inside += [ghost for ghost in ghosts if ghost not in self.inside]
        self.wire = [ghost_of(entry, ghosts) if entry in out else entry for entry in self.wire]
        self._compare(before, out, LaneEvent.DIVERT, late=False)
        return out


def ghost_of(entry: Item, ghosts: list[Item]) -> Item:
    return next(ghost for ghost in ghosts if ghost.item == entry.item and ghost.sent_at == entry.sent_at)


def test_each_row_of_the_table_can_happen_and_nothing_else_does() -> None:
    """All orders of four events after two publishes; what several orders lead to is followed once."""
    rows: set[tuple[Standing, LaneEvent]] = set()
    known: set[bytes] = set()

    def frozen(lane: Watched) -> bytes:
        rows.update(lane.rows)
        lane.rows.clear()
        return pickle.dumps(lane)

    def after(state: bytes) -> Iterator[bytes]:
        for act in acts(pickle.loads(state)):  # noqa: S301 - our own bytes
            lane = pickle.loads(state)  # noqa: S301
            act(lane)
            yield frozen(lane)

    reached: set[bytes] = set()
    for keys in (("k",), ()):
        lane = Watched()
        lane.submit(Item(item=0, keys=("k",)))
        lane.submit(Item(item=1, keys=keys))
        reached.add(frozen(lane))
    for _ in range(4):
        known |= reached
        reached = {new for state in reached for new in after(state)} - known
    assert rows == set(STEPS)


def acts(lane: Watched) -> Iterator[Callable[[Watched], object]]:
    """What may happen next."""
    yield from (Watched.write, Watched.lose, Watched.withdraw, Watched.ask, divert_all, late)
    for place in range(len(lane.inside)):
        yield partial(give_up_at, place)
    if lane.wire:
        yield Watched.answer
        yield from (partial(Watched.refuse, again=again) for again in (False, True))


def divert_all(lane: Watched) -> None:
    lane.divert(lane.now)


def give_up_at(place: int, lane: Watched) -> None:
    lane.give_up(lane.inside[place])


def late(lane: Watched) -> None:
    lane.now += PROMPT_REFUSAL + 0.1


# ---------------------------------------------------------------- stories


class LaneMachine(RuleBasedStateMachine):
    """Two partitions of a topic, and every order of what can happen to a publish.

    The leader may store what is on the wire at any time: before its answer, before a refusal that comes late, when the
    connection goes, and long after that, when a frozen leader wakes and finds it in its socket.
    """

    @initialize(window=st.integers(1, 8))
    def start(self, window: int) -> None:
        self.one = Watched(window)
        self.other = Watched(window)
        self.made: list[Item] = []
        self.stored: list[Item] = []
        self.limbo: list[Item] = []
        self.told: dict[int, bool | None] = {}
        """What a caller was told: None for stored, else whether it may be stored."""
        self.first_written: dict[object, list[int]] = {}
        self.losses: dict[object, int] = {}

    @property
    def lanes(self) -> tuple[Watched, Watched]:
        return self.one, self.other

    def lane_of(self, entry: Item) -> Watched:
        return self.one if entry in self.one.inside else self.other

    @rule(keys=st.lists(st.sampled_from("abc"), max_size=2))
    def publish(self, keys: list[str]) -> None:
        entry = Item(item=len(self.made), keys=tuple(keys))
        self.made.append(entry)
        self.one.submit(entry)

    @rule(other=st.booleans())
    def write(self, other: bool) -> None:
        for entry in self.lanes[other].write():
            assert entry.item not in self.told, "nobody waits for it"
            if entry.attempts == 1:
                for key in entry.keys:
                    self.first_written.setdefault(key, []).append(entry.item)

    @precondition(lambda self: self.one.wire or self.other.wire)
    @rule(other=st.booleans())
    def answer(self, other: bool) -> None:
        lane = self.lanes[other]
        if lane.wire:
            self._store(lane.wire[0])
            self._acknowledge(lane.answer())

    @precondition(lambda self: self.one.wire or self.other.wire)
    @rule(other=st.booleans(), count=st.integers(0, 8))
    def answer_run(self, other: bool, count: int) -> None:
        """The leader stored some, and all their answers come in one read."""
        lane = self.lanes[other]
        run = lane.wire[:count]
        for entry in run:
            self._store(entry)
        for entry in lane.answer_run(len(run)):
            self._acknowledge(entry)

    def _acknowledge(self, entry: Item) -> None:
        if entry.is_ghost:
            # Its copy need not be written any more, where it is not yet.
            self._end(entry.item, None)
            self.give_up(self.made[entry.item])
        elif not entry.given_up:
            self._end(entry.item, None)

    @precondition(lambda self: self.one.wire or self.other.wire)
    @rule(other=st.booleans(), again=st.booleans(), stored=st.booleans())
    def refuse(self, other: bool, again: bool, stored: bool) -> None:
        lane = self.lanes[other]
        if lane.wire:
            entry = lane.wire[0]
            if stored and lane.now - entry.sent_at > PROMPT_REFUSAL:
                self._store(entry)
                self._count_loss(entry)
            lane.refuse(again=again)
            if not again and not entry.given_up:
                self._end(entry.item, entry.maybe_stored)

    @rule(other=st.booleans(), stored=st.integers(0, 8), frozen=st.booleans())
    def lose(self, other: bool, stored: int, frozen: bool) -> None:
        """The connection is gone."""
        lane = self.lanes[other]
        wire = list(lane.wire)
        for entry in wire:
            self._count_loss(entry)
        for entry in wire[:stored]:
            self._store(entry)
        if frozen:
            self.limbo += wire[stored:]
        lane.lose()

    @precondition(lambda self: self.one.wire or self.other.wire)
    @rule(other=st.booleans(), answered=st.booleans(), frozen=st.booleans())
    def ask(self, other: bool, answered: bool, frozen: bool) -> None:
        """A silent leader gets a copy over another connection; perhaps it answers that, or stores it much later."""
        entry = self.lanes[other].ask()
        if entry is None:
            return
        self._count_loss(entry)
        if answered:
            self._store(entry)
            self._end(entry.item, None)
            self.give_up(entry)
        elif frozen:
            self.limbo.append(entry)

    @precondition(lambda self: self.limbo)
    @rule(count=st.integers(1, 8))
    def wake(self, count: int) -> None:
        """A frozen leader was not replaced: what lay in its socket is stored after all."""
        for entry in self.limbo[:count]:
            self._store(entry)
        self.limbo.clear()

    @rule(seconds=st.floats(0.0, 2.0))
    def divert(self, seconds: float) -> None:
        for entry in self.one.divert(self.one.now - seconds):
            assert not entry.keys
            self.other.submit(entry)

    @rule()
    def withdraw(self) -> None:
        for entry in self.one.withdraw():
            assert not entry.keys
            self.other.submit(entry)

    @precondition(lambda self: self.made)
    @rule(place=st.integers(0, 10**6))
    def expire(self, place: int) -> None:
        entry = self.made[place % len(self.made)]
        self.give_up(entry)
        self._end(entry.item, entry.maybe_stored)

    def give_up(self, entry: Item) -> None:
        self.lane_of(entry).give_up(entry)

    @rule(seconds=st.floats(0.1, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.one.now += seconds
        self.other.now += seconds

    def _end(self, item: int, outcome: bool | None) -> None:
        self.told.setdefault(item, outcome)

    def _store(self, entry: Item) -> None:
        assert self.told.get(entry.item) is not False, "it was called not stored"
        self.stored.append(entry)

    def _count_loss(self, entry: Item) -> None:
        for key in entry.keys:
            self.losses[key] = self.losses.get(key, 0) + 1

    @invariant()
    def one_unanswered_of_a_key(self) -> None:
        keys = [key for entry in self.one.wire for key in entry.keys]
        assert len(keys) == len(set(keys))

    @invariant()
    def first_written_in_the_order_of_submission(self) -> None:
        for order in self.first_written.values():
            assert order == sorted(order)

    @invariant()
    def what_was_acknowledged_is_stored_in_order(self) -> None:
        """Of each key the first copies stand in order; a call that failed in doubt may end anywhere."""
        for key in "abc":
            of_key = [e.item for e in self.stored if key in e.keys and self.told.get(e.item, None) is None]
            first = list(dict.fromkeys(of_key))
            assert first == sorted(first)

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        acknowledged = {item for item, outcome in self.told.items() if outcome is None}
        assert acknowledged <= {entry.item for entry in self.stored}

    @invariant()
    def one_repeat_of_a_key_for_each_fault(self) -> None:
        for key in "abc":
            of_key = [entry.item for entry in self.stored if key in entry.keys]
            assert len(of_key) - len(set(of_key)) <= self.losses.get(key, 0)

    @invariant()
    def what_was_called_not_stored_is_not(self) -> None:
        for entry in self.made:
            if not entry.maybe_stored and self.told.get(entry.item, True) is not None:
                assert entry not in self.stored

    @invariant()
    def nothing_is_forgotten(self) -> None:
        for lane in self.lanes:
            alive = {entry for entry in lane.inside if entry.stage is not Stage.DONE}
            assert set(lane.lane.pending()) == alive
            assert lane.lane.waiting == sum(entry.stage in (Stage.READY, Stage.BLOCKED) for entry in alive)
            assert lane.lane.unanswered == len(lane.wire) <= lane.window
            assert lane.lane.oldest is (lane.wire[0] if lane.wire else None)
        for entry in self.made:
            assert entry.stage is not Stage.DONE or entry.item in self.told

    @invariant()
    def what_is_blocked_waits_for_somebody(self) -> None:
        pending = self.one.lane.pending()
        for place, entry in enumerate(self.made):
            if entry.stage is Stage.BLOCKED:
                before = [e for e in self.made[:place] if set(e.keys) & set(entry.keys) and e in pending]
                assert before

    def teardown(self) -> None:
        """When the leaders are well again everything ends, and whoever waited still is told *stored*."""
        if not hasattr(self, "one"):
            return
        waiting = [entry for entry in self.made if entry.item not in self.told]
        for _ in range(len(self.made) + 1):
            for other in (False, True):
                self.write(other)
                while self.lanes[other].wire:
                    self.answer(other)
        assert all(self.told[entry.item] is None for entry in waiting)
        for lane in self.lanes:
            assert (lane.lane.pending(), lane.lane.waiting, lane.lane.unanswered) == ([], 0, 0)


LaneMachine.TestCase.settings = settings(stateful_step_count=40)
TestLane = LaneMachine.TestCase


@pytest.fixture
def many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take and release the keys of each publish with two keys as those of a large batch."""
    monkeypatch.setattr("nsq_ha.policy.lane._MANY", 1)


class ManyKeys(LaneMachine):
    """The same for large batches."""


ManyKeys.TestCase.settings = settings(stateful_step_count=40)
TestLaneWithManyKeys = pytest.mark.usefixtures("many_keys")(ManyKeys.TestCase)


def test_what_was_given_up_is_not_kept_behind_what_waits() -> None:
    lane: Lane[Item] = Lane()
    made = [Item(item=number) for number in range(1000)]
    for entry in made:
        lane.submit(entry)
    for entry in made[1:-1]:
        lane.give_up(entry)
        assert len(lane._ready) <= 2 * lane.waiting + 1
    assert lane.pending() == lane.withdraw() == [made[0], made[-1]]
    assert lane.take(0.0, 10) == []
