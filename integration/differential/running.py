"""Run cases on both sides at the same time, confirm differences, and shorten their cases."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from integration.differential.commands import Move, Wait
from integration.differential.comparing import TOLERANCES, Difference, compare, described, lasting
from integration.differential.performing import Performer
from integration.differential.plain import PlainPerformer, PlainSide
from integration.differential.side import QUIET, Side, UnstableError

if TYPE_CHECKING:
    from integration.differential.commands import Command, Kind
    from integration.differential.observing import Observation

Verdict = Literal["same", "differs", "not steady", "not tried"]

SHORTENINGS: Final = 14
"""Maximum number of runs to shorten one case."""
CONFIRMED_AFTER: Final = (0.4, 1.3, 2.1, 3.2, 4.3)
"""Seconds before each run in which the shortest case has to differ, too: nsqd does some things in a random order, and
looks for new channels each 5 s."""
QUIETS: Final = (0.26, 0.33, 0.29)
"""Seconds of ``QUIET`` in repetitions, so that steps and timeouts of messages meet elsewhere."""
_LATE: Final = Wait(max(TOLERANCES.values()))


@dataclass
class Found:
    """A lasting difference.

    Attributes:
        kind: Of the topic.
        commands: The shortest case that shows it.
        difference: What differs.
    """

    kind: Kind
    commands: Sequence[Command]
    difference: Difference

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key by which two findings count as the same."""
        last = self.commands[self.difference.step - 1]
        return type(last).__name__, self.difference.kind, self.difference.real[:40], self.difference.embedded[:40]

    def __str__(self) -> str:
        return described(self.commands, self.difference, f"{self.kind.name} topic")


@dataclass
class Tally:
    """The counts of a run.

    Attributes:
        cases: Cases run, repetitions not counted.
        commands: Commands given to each side, repetitions counted.
        unsteady: Cases that differed, but not each time, or that the cluster did not permit.
        found: Lasting differences, each once.
    """

    cases: int = 0
    commands: int = 0
    unsteady: int = 0
    found: list[Found] = field(default_factory=list)


class Runner:
    """Runs cases on two sides.

    Args:
        real: One side.
        embedded: The other.
        tell: Called with each line of output.
        until: Time of :func:`time.monotonic` after which no case starts.
    """

    def __init__(self, real: Side, embedded: Side, tell: Callable[[str], None], until: float) -> None:
        self.tally = Tally()
        self._sides = real, embedded
        self._tell = tell
        self._until = until
        self._numbers = itertools.count(1)
        self._pool = ThreadPoolExecutor(2)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until

    def check(self, kind: Kind, commands: Sequence[Command]) -> Verdict:
        """Run one case, repeatedly if it differs."""
        self.tally.cases += 1
        try:
            return self._check(kind, commands)
        except UnstableError as error:
            self.tally.unsteady += 1
            self._tell(f"left out: {error}")
            return "not tried"

    def _check(self, kind: Kind, commands: Sequence[Command]) -> Verdict:
        first = self._run(commands)
        if not first:
            return "same"
        again = zip(self._pauses(kind), QUIETS, strict=False)
        found = lasting([first, *(self._run(commands, pause, quiet) for pause, quiet in again)])
        if found:
            shortest = self._shortened(kind, list(commands[: found[0].step]), found[0])
            if lasting([self._run(shortest.commands, pause) for pause in CONFIRMED_AFTER]):
                self._add(shortest)
                return "differs"
        self.tally.unsteady += 1
        self._tell(f"differed once, not each time: {described(commands, first[0], kind.name)}")
        return "not steady"

    def _add(self, found: Found) -> None:
        if found.key not in {former.key for former in self.tally.found}:
            self.tally.found.append(found)
            self._tell(str(found))

    def _shortened(self, kind: Kind, commands: list[Command], found: Difference) -> Found:
        """Remove commands that the difference does not need."""
        left, place = SHORTENINGS, 0
        while place < len(commands) - 1 and left > 0:
            fewer = commands[:place] + commands[place + 1 :]
            left -= 1
            differences = self._run(fewer)
            if differences and differences[0].kind == found.kind and differences[0].step == len(fewer):
                commands, found = fewer, differences[0]
            else:
                place += 1
        return Found(kind, commands, found)

    @staticmethod
    def _pauses(kind: Kind) -> Sequence[float]:
        """Return the seconds before each repetition, so that the flush clocks are at another point."""
        return (1.1, 2.3, 3.7) if kind.sync_every > 1 else (0.0, 0.3)

    def _run(self, commands: Sequence[Command], pause: float = 0.0, quiet: float = QUIET) -> list[Difference]:
        run = f"{next(self._numbers)}"
        for side in self._sides:
            side.quiet = quiet
        count = max(side.ends()[0] for side in self._sides)
        list(self._pool.map(lambda side: side.begin(run, count), self._sides))
        time.sleep(pause)  # the subject: where the flush clocks stand when the case begins
        performers = [PlainPerformer(side) if isinstance(side, PlainSide) else Performer(side) for side in self._sides]
        observed: tuple[list[Observation], list[Observation]] = ([], [])
        # What the last command caused on one side only shows once it is late.
        for command in (*commands, _LATE):
            self.tally.commands += 1
            if isinstance(command, Move):
                list(self._pool.map(Side.wait_stable, self._sides))
            both = list(self._pool.map(Performer.perform, performers, (command, command)))
            for seen, mine in zip(both, observed, strict=True):
                mine.append(seen)
            if found := compare(*observed):
                # What comes later may follow from it.
                return [replace(each, step=min(each.step, len(commands))) for each in found]
        return []
