"""The checker of histories finds each broken rule, and nothing in a good history."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from integration.history.checking import Checker
from integration.history.recording import History
from nsq_ha import Receipt

Event = dict[str, Any]


def seen(seq: int, at: float, **other: object) -> Event:
    found: Event = {"event": "seen", "at": at, "key": "k", "seq": seq, "id": 10 + seq, "offset": 100 * seq}
    return found | {"nsqd": "n:1", "partition": 0} | other


def stored(seq: int, at: float, **other: object) -> Event:
    return seen(seq, at) | {"event": "stored"} | other


def call(seq: int, at: float) -> Event:
    return {"event": "call", "at": at, "key": "k", "seq": seq}


def finish(seq: int, at: float) -> Event:
    return {"event": "finish", "at": at, "nsqd": "n:1", "partition": 0, "id": 10 + seq}


BEGIN: Final[Event] = {"event": "begin", "at": 0.0, "limit": 5.0, "ordered": True, "partitioned": True}
END: Final[Event] = {"event": "end", "at": 99.0}
GOOD: Final[list[Event]] = [
    BEGIN,
    *(call(seq, 1.0 + seq) for seq in range(3)),
    *(stored(seq, 4.0 + seq) for seq in range(3)),
    seen(0, 7.0),
    finish(0, 7.1),
    seen(1, 8.0),
    seen(0, 8.1, nsqd="n:2"),
    finish(0, 8.2),
    seen(2, 9.0),
    END,
]


def wrong(events: list[Event]) -> list[str]:
    checker = Checker()
    checker.read(json.dumps(event) for event in events)
    return checker.wrong


def without(kind: str, seq: int | None = None) -> list[Event]:
    return [event for event in GOOD if event["event"] != kind or event.get("seq") != seq]


def test_what_comes_after_the_end_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path, "orders", "ch", limit=5.0, ordered=True) as history:
        history.called("k", 0)
        history.stored("k", 0, Receipt("orders", 1, "n:1", internal_id=7, offset=70))
        history.seen("k", 0, at=1.0, nsqd="n:1", partition=1, internal_id=7, offset=70)
    history.called("k", 1)
    history.__exit__(None, None, None)
    checker = Checker()
    checker.read(path.read_text().splitlines())
    assert checker.wrong == []
    assert checker.counts == {"begin": 1, "call": 1, "stored": 1, "seen": 1, "end": 1, "distinct": 1, "receipts": 1}


def test_a_good_history_breaks_no_rule() -> None:
    checker = Checker()
    checker.read(json.dumps(event) for event in GOOD)
    assert checker.wrong == []
    assert (checker.counts["seen"], checker.counts["distinct"]) == (4, 3)


BROKEN: Final[dict[str, tuple[list[Event], str]]] = {
    "lost": (without("seen", 1), "k:1 was acknowledged and never seen"),
    "order": (
        [*without("seen", 1)[:-1], seen(1, 10.0), END],
        "k:1 was seen for the first time after k:2",
    ),
    "a lie": (
        [
            *without("stored", 1),
            call(7, 1.0),
            {"event": "failed", "at": 2.0, "key": "k", "seq": 1, "maybe_stored": False},
        ],
        "k:1 was called not stored, and was seen",
    ),
    "a receipt of another message": (
        [*without("stored", 2), stored(2, 6.0, id=11)],
        "k:1 was seen at ('', 0, 11), where the receipt of k:2 points",
    ),
    "a wrong offset": (
        [*without("stored", 2), stored(2, 6.0, offset=5)],
        "k:2 was seen at offset 200, and its receipt says 5",
    ),
    "a late end": ([*without("stored", 2), stored(2, 9.0)], "the call for k:2 took 6.00 s, its limit is 5 s"),
    "no end of a call": (without("stored", 2), "the call for k:2 never ended"),
    "two ends of a call": ([*GOOD, stored(2, 6.1)], "the call for k:2 ended twice"),
    "an end without a call": (without("call", 2), "k:2 ended without a call"),
    "a FIN of an unseen message": (
        [*GOOD, finish(5, 9.0)],
        "the message at ('', 0, 15) was finished, and the program had not seen it",
    ),
    "a message of nobody": ([*GOOD, seen(9, 9.0)], "k:9 was seen, and nobody published it"),
    "no end": (GOOD[:-1], "the history has no end"),
    "no beginning, so that no limit and no order counts": (GOOD[1:], "the history has no beginning"),
    "nothing was done": ([BEGIN, END], "the history has no call"),
    "an unknown event": ([*GOOD, {"event": "stores", "at": 7.0}], "the event 'stores' is unknown"),
    "two calls": ([*GOOD, call(2, 6.0)], "the call for k:2 began twice"),
    "two messages under one id": (
        [*GOOD[:-1], call(3, 7.0), seen(3, 9.1, id=11), seen(1, 9.2), END],
        "k:1 and k:3 were both seen at ('', 0, 11)",
    ),
    "the receipt of another one, before its own": (
        [BEGIN, call(2, 3.0), stored(2, 3.5, id=11), *without("stored", 2)[1:]],
        "the receipts of k:2 and k:1 both point to ('', 0, 11)",
    ),
    "a receipt of nothing": (
        [*without("stored", 0), stored(0, 4.0, id=9)],
        "nothing was seen at ('', 0, 9), where the receipt of k:0 points",
    ),
}


@pytest.mark.parametrize(("events", "said"), BROKEN.values(), ids=BROKEN)
def test_each_broken_rule_is_found(events: list[Event], said: str) -> None:
    assert said in wrong(events)


def test_ids_of_plain_nsqds_are_told_apart() -> None:
    plain = [BEGIN | {"partitioned": False, "ordered": False}, call(0, 1.0), call(1, 1.0)]
    same_id = [stored(0, 2.0, id=7), stored(1, 2.0, id=7, nsqd="n:2"), seen(1, 3.0, id=7, nsqd="n:2", offset=None)]
    assert wrong([*plain, *same_id, seen(0, 3.0, id=7, offset=None), END]) == []
    assert wrong([*plain, *same_id, seen(0, 3.0, id=7, nsqd="n:3", offset=None), finish(0, 4.0), END]) != []


def test_what_another_process_saw_counts_by_its_own_time() -> None:
    """Its lines are read later; what it saw first was in order, and what it saw last was not."""
    assert wrong([*without("seen", 1)[:-1], seen(1, 8.5), END]) == []
    early = [event for event in GOOD if event["event"] != "seen" or event["seq"] != 2]
    assert wrong([*early[:-1], seen(2, 7.5), END]) == ["k:1 was seen for the first time after k:2"]


def test_a_publish_in_doubt_may_come_late() -> None:
    failed = {"event": "failed", "at": 5.0, "key": "k", "seq": 1, "maybe_stored": True}
    late = [event for event in GOOD if event.get("seq") != 1 or event["event"] == "call"]
    assert wrong([*late[:-1], failed, seen(1, 10.0), END]) == []


def test_without_order_any_order_is_right() -> None:
    events = [BEGIN | {"ordered": False}, *without("seen", 1)[1:-1], seen(1, 10.0), END]
    assert wrong(events) == []


def test_a_key_that_moved_as_the_topic_grew_is_in_order_within_each_partition() -> None:
    moved = [BEGIN, call(0, 1.0), call(1, 1.0), call(2, 1.0)]
    there = {"partition": 1}
    acknowledged = [stored(0, 2.0), stored(1, 2.0, **there), stored(2, 2.0, **there)]
    assert wrong([*moved, *acknowledged, seen(1, 3.0, **there), seen(2, 4.0, **there), seen(0, 5.0), END]) == []
    backwards = [seen(2, 3.0, **there), seen(1, 4.0, **there), seen(0, 5.0)]
    assert wrong([*moved, *acknowledged, *backwards, END]) == ["k:1 was seen for the first time after k:2"]
