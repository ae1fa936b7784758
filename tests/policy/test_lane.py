"""The lane's invariants, by hand and under every order of events that hypothesis finds."""

from __future__ import annotations

import pytest

from nsq_ha.policy.lane import PROMPT_REFUSAL, Entry, Lane, Stage


class Item(Entry, eq=False, kw_only=True):
    item: str


def entries(*specs: tuple[str, tuple[str, ...]]) -> list[Item]:
    return [Item(item=name, keys=keys) for name, keys in specs]


def submitted(*specs: tuple[str, tuple[str, ...]]) -> tuple[Lane[Item], list[Item]]:
    lane: Lane[Item] = Lane()
    made = entries(*specs)
    for entry in made:
        lane.submit(entry)
    return lane, made


def names(found: list[Item]) -> list[str]:
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


def test_a_run_of_answers_ends_the_oldest_and_frees_what_waited_for_them() -> None:
    lane, made = submitted(("a1", ("a",)), ("2", ()), ("3", ()), ("a2", ("a",)))
    lane.take(0.0, 10)
    assert names(lane.all_answered(2)) == ["a1", "2"]
    assert [entry.stage for entry in made] == [Stage.DONE, Stage.DONE, Stage.SENT, Stage.READY]
    assert (lane.unanswered, lane.waiting, lane.oldest) == (1, 1, made[2])


def test_more_answers_than_publishes_end_none() -> None:
    lane, (entry,) = submitted(("a", ()))
    lane.take(0.0, 10)
    with pytest.raises(IndexError, match="2 answers came to 1 publishes"):
        lane.all_answered(2)
    assert (entry.stage, lane.unanswered) == (Stage.SENT, 1)


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


def test_what_was_given_up_is_neither_written_nor_taken_back() -> None:
    lane, made = submitted(*((f"{number}", ()) for number in range(10)))
    lane.give_up(made[0])
    lane.give_up(made[2])
    assert names(lane.take(0.0, 3)) == ["1", "3", "4"]
    assert names(lane.lost()) == ["1", "3", "4"]
    lane.give_up(made[4])
    assert names(lane.pending()) == ["1", "3", "5", "6", "7", "8", "9"]
    assert names(lane.take(1.0, 100)) == ["1", "3", "5", "6", "7", "8", "9"]
    assert lane.waiting == 0


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
    other: Lane[Item] = Lane()
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


def test_a_silent_leader_is_asked_with_each_unanswered_publish_in_turn() -> None:
    lane, made = submitted(("a", ("a",)), ("b", ()), ("c", ()), ("d", ()))
    assert (lane.is_awaited, lane.ask_again()) == (False, None)
    lane.take(0.0, 4)
    lane.give_up(made[1])
    asked = [lane.ask_again() for _ in range(4)]
    assert asked == [made[0], made[2], made[3], made[0]]
    assert [entry.attempts for entry in made] == [3, 1, 2, 2]
    assert all(entry.maybe_stored for entry in made)
    assert lane.unanswered == 4  # the copies are elsewhere
    for entry in made:
        lane.give_up(entry)
    assert (lane.is_awaited, lane.ask_again()) == (False, None)


def test_what_was_lost_is_in_doubt_unless_it_was_cut_short_or_never_read() -> None:
    for is_read, doubtful in ((True, [True, False]), (False, [False, False])):
        lane, made = submitted(("a", ("a",)), ("b", ("b",)))
        lane.take(0.0, 10)
        assert lane.lost(is_read=is_read, cut=made[1]) == made
        assert [entry.maybe_stored for entry in made] == doubtful
