"""Compare the observations of both sides in one case.

Pure: no clock, no socket. To exclude chance (one side's clock has flushed and the
other side's has not), a case with a difference runs again: only differences that
last count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from integration.differential.commands import Command
    from integration.differential.observing import Event, Observation

TOLERANCES: Final[dict[str, float]] = {
    "first delivery": 0.5,
    "another delivery": 0.8,
    "error": 0.5,
    "response": 0.5,
    "closed": 0.5,
}
"""Seconds by which the times of the two sides may differ.

A redelivery waits for a scan: the real server scans every 0.1 to 0.5 s, the embedded one every 0.05 s.
"""


@dataclass(frozen=True)
class Difference:
    """A difference between the two sides.

    Attributes:
        step: Number of the command in its case, from 1.
        kind: ``answer``, ``events``, ``order`` or ``time``.
        real: What the real side did.
        embedded: What the embedded side did.
    """

    step: int
    kind: str
    real: str
    embedded: str


def compare(real: Sequence[Observation], embedded: Sequence[Observation]) -> list[Difference]:
    """Return the first difference, if any; later ones may follow from it."""
    waiting: list[_Waiting] = []
    for step, (one, other) in enumerate(zip(real, embedded, strict=False), 1):
        if one.answer != other.answer:
            return [Difference(step, "answer", one.answer, other.answer)]
        shared = one.shared or other.shared
        waiting += [_Waiting(event, shared, step, "real") for event in one.events]
        waiting += [_Waiting(event, shared, step, "embedded") for event in other.events]
        waiting = _unmatched(waiting)
        now = min(one.at, other.at)
        for late in waiting:
            if now - late.event.at > TOLERANCES[_class_of(late.event)]:
                return [_difference(late, waiting, one, other)]
        if not shared and not waiting and (wrong := _disorder(step, one, other)):
            return [wrong]
    return []


@dataclass(frozen=True)
class _Waiting:
    """An event of one side without its counterpart so far."""

    event: Event
    shared: bool
    step: int
    side: str

    @property
    def key(self) -> tuple[int, str, str, int]:
        event = self.event
        return (0 if self.shared else event.connection, event.what, event.text, event.attempts)


def _unmatched(waiting: list[_Waiting]) -> list[_Waiting]:
    """Remove events that have a counterpart in time on the other side."""
    left: list[_Waiting] = []
    for new in waiting:
        match = next((old for old in left if old.side != new.side and old.key == new.key and _in_time(old, new)), None)
        if match is None:
            left.append(new)
        else:
            left.remove(match)
    return left


def _in_time(one: _Waiting, other: _Waiting) -> bool:
    return abs(one.event.at - other.event.at) <= TOLERANCES[_class_of(one.event)]


def _difference(late: _Waiting, waiting: list[_Waiting], real: Observation, embedded: Observation) -> Difference:
    same = [other for other in waiting if other.side != late.side and other.key == late.key]
    happened = f"{late.event} after {late.event.at:.2f} s"
    missing = f"{same[0].event} after {same[0].event.at:.2f} s" if same else _instead(late, real, embedded)
    kind = "time" if same else "events"
    return Difference(late.step, kind, *((happened, missing) if late.side == "real" else (missing, happened)))


def _instead(late: _Waiting, real: Observation, embedded: Observation) -> str:
    other = embedded if late.side == "real" else real
    return f"not that; last: {_listed(other.events) or 'nothing'}"


def _disorder(step: int, real: Observation, embedded: Observation) -> Difference | None:
    one, other = list(real.events), list(embedded.events)
    if one == other or Counter(one) != Counter(other):
        return None
    return Difference(step, "order", _listed(one), _listed(other))


def _class_of(event: Event) -> str:
    if event.what == "message":
        return "first delivery" if event.attempts == 1 else "another delivery"
    return event.what


def _listed(events: Sequence[Event]) -> str:
    return "; ".join(str(event) for event in events)


def lasting(runs: Sequence[list[Difference]]) -> list[Difference]:
    """Return the differences of the first run, if each run had one at the same step and of the same kind."""
    if not runs or not all(runs):
        return []
    places = {(run[0].step, run[0].kind) for run in runs}
    return runs[0] if len(places) == 1 else []


def described(commands: Sequence[Command], found: Difference, where: str) -> str:
    """Return a readable description: the commands, and what each side did."""
    lines = [f"{where}, step {found.step}, {found.kind}:"]
    lines += [f"    {number}. {command}" for number, command in enumerate(commands[: found.step], 1)]
    lines += [f"  real:     {found.real}", f"  embedded: {found.embedded}"]
    return "\n".join(lines)
