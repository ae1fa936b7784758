"""The lane's invariants, by hand and under every order of events that hypothesis finds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.policy.lane import PROMPT_REFUSAL, Entry, Lane, Stage


def entries(*specs: tuple[str, tuple[str, ...]]) -> list[Entry[str]]:
    return [Entry(name, keys) for name, keys in specs]


def submitted(*specs: tuple[str, tuple[str, ...]]) -> tuple[Lane[str], list[Entry[str]]]:
    lane: Lane[str] = Lane()
    made = entries(*specs)
    for entry in made:
        lane.submit(entry)
    return lane, made


def names(found: list[Entry[str]]) -> list[str]:
    return [entry.item for entry in found]


def names_of(found: list[Entry[int]]) -> list[int]:
    return [entry.item for entry in found]


def test_of_one_key_only_one_is_written() -> None:
    lane, _ = submitted(("a1", ("a",)), ("a2", ("a",)), ("b1", ("b",)))
    assert names(lane.take(0.0, 10)) == ["a1", "b1"]
    assert lane.answered().item == "a1"
    assert names(lane.take(0.0, 10)) == ["a2"]


def test_without_keys_all_are_written_up_to_the_window() -> None:
    lane, _ = submitted(("1", ()), ("2", ()), ("3", ()))
    assert names(lane.take(0.0, 2)) == ["1", "2"]
    assert (lane.unanswered, lane.waiting) == (2, 1)


def test_a_batch_waits_for_all_of_its_keys() -> None:
    lane, _ = submitted(("a", ("a",)), ("b", ("b",)), ("ab", ("a", "b", "a")), ("b2", ("b",)))
    assert names(lane.take(0.0, 10)) == ["a", "b"]
    lane.answered()
    assert lane.take(0.0, 10) == []
    lane.answered()
    assert names(lane.take(0.0, 10)) == ["ab"]
    lane.answered()
    assert names(lane.take(0.0, 10)) == ["b2"]


def test_a_prompt_refusal_is_retried_before_the_next_of_its_key_and_leaves_no_doubt() -> None:
    lane, (first, second) = submitted(("a1", ("a",)), ("a2", ("a",)))
    lane.take(0.0, 10)
    assert lane.refused(PROMPT_REFUSAL, retry=True) is first
    assert (first.stage, first.maybe_stored) == (Stage.READY, False)
    assert names(lane.take(1.0, 10)) == ["a1"]
    assert first.attempts == 2
    assert second.stage is Stage.BLOCKED


def test_a_late_refusal_leaves_doubt() -> None:
    lane, (entry,) = submitted(("a", ()))
    lane.take(0.0, 1)
    lane.refused(PROMPT_REFUSAL + 0.01, retry=False)
    assert entry.maybe_stored
    assert entry.stage is Stage.DONE


def test_a_lost_connection_puts_all_back_in_order_and_in_doubt() -> None:
    lane, made = submitted(("1", ()), ("2", ("k",)), ("3", ()), ("4", ()))
    lane.take(0.0, 3)
    assert lane.oldest is made[0]
    assert names(lane.lost()) == ["1", "2", "3"]
    assert lane.oldest is None
    assert [entry.maybe_stored for entry in made] == [True, True, True, False]
    assert names(lane.take(1.0, 10)) == ["1", "2", "3", "4"]


def test_a_given_up_publish_keeps_its_key_until_its_answer() -> None:
    lane, (first, second) = submitted(("a1", ("a",)), ("a2", ("a",)))
    lane.take(0.0, 10)
    lane.give_up(first)
    assert first.maybe_stored
    assert lane.take(0.0, 10) == []
    assert lane.refused(0.1, retry=True) is first
    assert first.stage is Stage.DONE
    assert lane.take(0.0, 10) == [second]


def test_a_given_up_publish_ends_with_its_connection() -> None:
    lane, (first, second) = submitted(("a1", ("a",)), ("a2", ("a",)))
    lane.take(0.0, 10)
    lane.give_up(first)
    assert lane.lost() == [first]
    assert lane.take(0.0, 10) == [second]


def test_giving_up_what_was_never_written_leaves_no_doubt_and_nothing_behind() -> None:
    lane, (first, second, third) = submitted(("a1", ("a",)), ("a2", ("a", "b")), ("b", ("b",)))
    lane.give_up(second)
    assert (second.stage, second.maybe_stored, second.attempts) == (Stage.DONE, False, 0)
    lane.give_up(second)
    assert lane.waiting == 2
    assert lane.take(0.0, 10) == [first, third]


def test_withdraw_takes_only_what_has_no_key_and_is_not_written() -> None:
    lane, (first, second, third) = submitted(("1", ()), ("2", ("k",)), ("3", ()))
    assert lane.take(0.0, 1) == [first]
    assert lane.withdraw() == [third]
    assert lane.withdraw() == []
    assert (lane.waiting, lane.take(0.0, 5)) == (1, [second])


def test_what_waits_long_goes_elsewhere_in_doubt_and_its_answer_is_the_ghosts() -> None:
    lane, (old, keyed, given_up, young) = submitted(("1", ()), ("2", ("k",)), ("3", ()), ("4", ()))
    lane.take(0.0, 3)
    lane.take(1.0, 4)
    lane.give_up(given_up)
    assert lane.divert(0.5) == [old]
    assert (old.stage, old.maybe_stored, old.attempts) == (Stage.READY, True, 1)
    assert lane.divert(0.5) == []
    assert (lane.unanswered, lane.waiting) == (4, 0)
    assert lane.oldest is not None
    assert (lane.oldest is old, lane.oldest.item, lane.oldest.sent_at) == (False, "1", 0.0)
    other: Lane[str] = Lane()
    other.submit(old)
    ghost = lane.answered()
    assert (ghost.item, ghost.is_ghost, ghost.stage) == ("1", True, Stage.DONE)
    assert [lane.answered() for _ in range(3)] == [keyed, given_up, young]
    assert other.take(2.0, 1) == [old]
    assert old.attempts == 2


def test_a_ghost_is_never_written_again() -> None:
    lane, (entry,) = submitted(("1", ()))
    lane.take(0.0, 1)
    lane.divert(0.0)
    assert lane.refused(0.1, retry=True).stage is Stage.DONE
    lane, (entry,) = submitted(("1", ()))
    lane.take(0.0, 1)
    lane.divert(0.0)
    assert [ghost.is_ghost for ghost in lane.lost()] == [True]
    assert (lane.waiting, lane.unanswered, lane.pending()) == (0, 0, [])
    assert entry.stage is Stage.READY


def test_pending_lists_each_publish_once() -> None:
    lane, made = submitted(("1", ("a",)), ("2", ("a",)), ("3", ()), ("4", ("b", "c")))
    lane.take(0.0, 1)
    assert sorted(names(lane.pending())) == sorted(names(made))


class LaneMachine(RuleBasedStateMachine):
    """Every order of submit, write, answer, refuse, lose and give up."""

    @initialize(window=st.integers(1, 8))
    def start(self, window: int) -> None:
        self.lane: Lane[int] = Lane()
        self.elsewhere: Lane[int] = Lane()
        self.window = window
        self.now = 0.0
        self.made: list[Entry[int]] = []
        self.first_written: dict[object, list[int]] = {}
        self.stored_order: dict[object, list[int]] = {}
        self.wire: list[Entry[int]] = []
        self.surely_unstored: dict[int, bool] = {}
        self.gone: set[int] = set()

    @rule(keys=st.lists(st.sampled_from("abc"), max_size=2))
    def submit(self, keys: list[str]) -> None:
        entry: Entry[int] = Entry(len(self.made), keys)
        self.made.append(entry)
        self.surely_unstored[entry.item] = True
        self.lane.submit(entry)

    @rule()
    def write(self) -> None:
        for entry in self.lane.take(self.now, self.window):
            self.wire.append(entry)
            for key in entry.keys:
                written = self.first_written.setdefault(key, [])
                if entry.attempts == 1:
                    written.append(entry.item)

    @precondition(lambda self: self.wire)
    @rule()
    def store_and_answer(self) -> None:
        entry = self.wire.pop(0)
        self._store(entry)
        answered = self.lane.answered()
        assert answered is entry or (answered.is_ghost and answered.item == entry.item)
        assert answered.stage is Stage.DONE

    @precondition(lambda self: self.wire)
    @rule(retry=st.booleans())
    def refuse(self, retry: bool) -> None:
        entry = self.wire.pop(0)
        refused = self.lane.refused(self.now, retry=retry)
        assert refused is entry or (refused.is_ghost and refused.item == entry.item)
        assert (refused.stage is Stage.READY) == (retry and not refused.given_up)

    @rule(stored=st.integers(0, 8))
    def lose(self, stored: int) -> None:
        for entry in self.wire[:stored]:
            self._store(entry)
        assert names_of(self.lane.lost()) == names_of(self.wire)
        self.wire.clear()

    @rule(seconds=st.floats(0.0, 2.0))
    def divert(self, seconds: float) -> None:
        for entry in self.lane.divert(self.now - seconds):
            assert not entry.keys
            assert entry.maybe_stored
            self.elsewhere.submit(entry)
            self.gone.add(entry.item)

    @rule(window=st.integers(1, 8))
    def answer_elsewhere(self, window: int) -> None:
        for entry in self.elsewhere.take(self.now, window):
            self.surely_unstored[entry.item] = False
            assert self.elsewhere.answered() is entry

    @precondition(lambda self: self.made)
    @rule(pick=st.randoms(use_true_random=False))
    def give_up(self, pick: object) -> None:
        choice = getattr(pick, "choice")  # noqa: B009 - hypothesis gives a Random
        entry = choice(self.made)
        (self.elsewhere if entry.item in self.gone else self.lane).give_up(entry)

    @rule(seconds=st.floats(0.1, 3.0))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def _store(self, entry: Entry[int]) -> None:
        self.surely_unstored[entry.item] = False
        for key in entry.keys:
            self.stored_order.setdefault(key, []).append(entry.item)

    @invariant()
    def one_unanswered_of_a_key(self) -> None:
        keys = [key for entry in self.wire for key in entry.keys]
        assert len(keys) == len(set(keys))

    @invariant()
    def stored_in_order_repeats_apart(self) -> None:
        for order in self.stored_order.values():
            first = list(dict.fromkeys(order))
            assert first == sorted(first)

    @invariant()
    def not_stored_is_true(self) -> None:
        for entry in self.made:
            done_ok = entry.stage is Stage.DONE and not entry.maybe_stored and entry.attempts > 0
            if not done_ok and not entry.maybe_stored and entry not in self.wire:
                assert self.surely_unstored[entry.item]

    @invariant()
    def nothing_is_forgotten(self) -> None:
        here = [entry for entry in self.made if entry.item not in self.gone]
        alive = {entry.item for entry in here if entry.stage is not Stage.DONE}
        assert {entry.item for entry in self.lane.pending() if not entry.is_ghost} == alive
        assert self.lane.waiting == sum(entry.stage in (Stage.READY, Stage.BLOCKED) for entry in here)
        assert self.lane.unanswered == len(self.wire) <= self.window
        diverted = {e.item for e in self.made if e.item in self.gone and e.stage is not Stage.DONE}
        assert {entry.item for entry in self.elsewhere.pending()} == diverted


LaneMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLane = LaneMachine.TestCase
