"""Check a history: it knows nothing of the library, only what was asked and what came of it.

========================  ==========================================================================
rule                      broken by
========================  ==========================================================================
at least once             a message that was acknowledged and never seen
order                     the first sight of a message after that of a later one of its key and partition
                          (ordered): keys move when a topic grows
"not stored" is true      a message that failed as *not stored*, and was seen
receipts                  an id or offset of a receipt under which another message was seen, or (ordered) none; one id
                          in two receipts
limits                    a call that took longer than its limit, or never ended, began twice or ended twice
FIN                       a finish of a message that the program had not seen before
distinct values           a message that nobody published; two messages under one id
whole                     no beginning, no end, no call, or an event that is unknown here
========================  ==========================================================================
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

LIMIT_GRACE: Final = 0.5
"""Seconds by which a call may exceed its limit."""

Value = tuple[str, int]
Place = tuple[str, int, int]


class Checker:
    """Reads the lines of one history.

    Attributes:
        counts: Events by name, the distinct messages seen as ``distinct``, and publishes with an id as ``receipts``.
        wrong: What broke a rule, in words.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._limit = float("inf")
        self._ordered = self._partitioned = False
        self._called: dict[Value, float] = {}
        self._ended: set[Value] = set()
        self._stored: set[Value] = set()
        self._denied: set[Value] = set()
        self._doubted: set[Value] = set()
        self._seen: set[Value] = set()
        self._first: dict[tuple[str, int], dict[int, float]] = {}
        self._passed: dict[tuple[str, int], int] = {}
        self._at: dict[Place, tuple[Value, int | None]] = {}
        self._receipts: dict[Place, tuple[Value, int]] = {}

    def read(self, lines: Iterable[str]) -> None:
        """Read all lines, then check what only the end shows."""
        for line in lines:
            self._take(json.loads(line))
        self.counts["distinct"], self.counts["receipts"] = len(self._seen), len(self._receipts)
        for kind, name in (("begin", "beginning"), ("end", "end"), ("call", "call")):
            if not self.counts[kind]:
                self.wrong.append(f"the history has no {name}")
        self._compare()
        if self._ordered:
            self._judge_order()

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        self.counts[kind] += 1
        match kind:
            case "begin":
                self._limit, self._ordered, self._partitioned = event["limit"], event["ordered"], event["partitioned"]
            case "call":
                self._begins(event)
            case "stored":
                self._ends(event)
                self._stored.add(_value(event))
                if event["id"]:  # a publish that is not traced has no receipt of the server
                    self._receives(event)
            case "failed":
                self._ends(event)
                (self._denied if event["maybe_stored"] is False else self._doubted).add(_value(event))
            case "seen":
                self._sees(event)
            case "finish":
                self._finishes(event)
            case "end":
                pass
            case _:
                self.wrong.append(f"the event {kind!r} is unknown")

    def _compare(self) -> None:
        for value in sorted(self._stored - self._seen):
            self.wrong.append(f"{_name(value)} was acknowledged and never seen")
        for value in sorted(self._denied & self._seen):
            self.wrong.append(f"{_name(value)} was called not stored, and was seen")
        for value in sorted(self._called.keys() - self._ended):
            self.wrong.append(f"the call for {_name(value)} never ended")
        for place, (value, offset) in sorted(self._receipts.items()):
            if place not in self._at and self._ordered and place[2] < self._passed.get(place[:2], -1):
                self.wrong.append(f"nothing was seen at {place}, where the receipt of {_name(value)} points")
            found, at = self._at.get(place, (value, offset))
            if found != value:
                self.wrong.append(f"{_name(found)} was seen at {place}, where the receipt of {_name(value)} points")
            elif at is not None and at != offset:
                self.wrong.append(f"{_name(value)} was seen at offset {at}, and its receipt says {offset}")

    def _place(self, event: dict[str, Any]) -> Place:
        """Return what names a message: an id of a partition is unique in the cluster, one of a plain nsqd is not."""
        return "" if self._partitioned else event["nsqd"], event["partition"], event["id"]

    def _begins(self, event: dict[str, Any]) -> None:
        value = _value(event)
        if value in self._called:
            self.wrong.append(f"the call for {_name(value)} began twice")
        self._called[value] = event["at"]

    def _finishes(self, event: dict[str, Any]) -> None:
        if (place := self._place(event)) not in self._at:
            self.wrong.append(f"the message at {place} was finished, and the program had not seen it")

    def _ends(self, event: dict[str, Any]) -> None:
        value = _value(event)
        if value in self._ended:
            self.wrong.append(f"the call for {_name(value)} ended twice")
        self._ended.add(value)
        if value not in self._called:
            self.wrong.append(f"{_name(value)} ended without a call")
        elif (took := event["at"] - self._called[value]) > self._limit + LIMIT_GRACE:
            self.wrong.append(f"the call for {_name(value)} took {took:.2f} s, its limit is {self._limit:g} s")

    def _receives(self, event: dict[str, Any]) -> None:
        value, place = _value(event), self._place(event)
        other, _ = self._receipts.get(place, (value, None))
        self._receipts[place] = value, event["offset"]
        if other != value:
            self.wrong.append(f"the receipts of {_name(other)} and {_name(value)} both point to {place}")

    def _sees(self, event: dict[str, Any]) -> None:
        value, place, at = _value(event), self._place(event), event["at"]
        key, seq = value
        before, _ = self._at.get(place, (value, None))
        if before != value:
            self.wrong.append(f"{_name(before)} and {_name(value)} were both seen at {place}")
        self._at[place] = value, event["offset"]
        self._passed[place[:2]] = max(place[2], self._passed.get(place[:2], -1))
        if not key:  # a probe has no key
            return
        # What another process sees is written later than what happened meanwhile.
        first = self._first.setdefault((key, place[1]), {})
        first[seq] = min(at, first.get(seq, at))
        if value in self._seen:
            return
        self._seen.add(value)
        if value not in self._called:
            self.wrong.append(f"{_name(value)} was seen, and nobody published it")

    def _judge_order(self) -> None:
        for (key, _), first in sorted(self._first.items()):
            highest = -1
            for seq in sorted(first, key=first.__getitem__):
                # What failed in doubt may lie with an nsqd that stands still, and be stored after all that followed it.
                if seq < highest and (key, seq) not in self._doubted:
                    self.wrong.append(f"{_name((key, seq))} was seen for the first time after {_name((key, highest))}")
                highest = max(highest, seq)


def _value(event: dict[str, Any]) -> Value:
    return event["key"], event["seq"]


def _name(value: Value) -> str:
    return f"{value[0]}:{value[1]}"
