"""The table: one row for each run of a scenario, with its target, and what must never happen.

Figures that miss their target are reported; a broken invariant makes the run fail.
"""

import dataclasses
from typing import Any, NamedTuple

from integration.faults.audit import LIMIT_GRACE
from integration.faults.load import Load
from integration.faults.probes import Probes


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a scenario is to reach: seconds added to the cluster's own outage. None where another figure counts.

    Attributes:
        publish: Most seconds added for the worst key's publishing.
        consume: The same for consuming.
        errors: Errors to the caller.
        extra: Ceilings of the scenario's own figures, by their names.
    """

    publish: float | None = None
    consume: float | None = None
    errors: int = 0
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        parts = [] if self.publish is None else [f"<= {self.publish:g} / <= {self.consume:g} s"]
        parts += [f"{name} <= {ceiling:g}" for name, ceiling in self.extra.items()]
        return ", ".join([*parts, f"{self.errors} errors"])


@dataclasses.dataclass(slots=True)
class Figures:
    """One topic's figures. Times are seconds, ``outage`` is the cluster's own of the worst key's partition.

    ``publish_held`` and ``consume_held`` are what the machine took from this process within that key's stall: the
    time for which it could run and was not let. It is in the figures, and is left out when they are judged.
    """

    topic: str
    publish_added: float
    consume_added: float
    publish_held: float
    consume_held: float
    publish_stall: float
    consume_stall: float
    outage: float
    errors: int
    in_doubt: int
    slowest_call: float
    published: int
    lost: int
    out_of_order: int
    not_stored_but_delivered: int
    repeats: int
    stored_again_worst_key: int
    loop_lag: float
    slowest_held: float
    loop_lag_own: float
    errors_seen: list[str]


@dataclasses.dataclass(slots=True)
class Row:
    """One run of one scenario."""

    scenario: str
    fault: str
    target: Target
    run: int = 0
    faults: int = 0
    figures: list[Figures] = dataclasses.field(default_factory=list)
    extra: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    broken: list[str] = dataclasses.field(default_factory=list)
    code: str = ""
    """The commit that ran."""

    def missed(self) -> list[str]:
        """Name the figures that are over their target."""
        target, missed = self.target, []
        for one in self.figures:
            if target.publish is not None and one.publish_added - one.publish_held > target.publish:
                missed.append(f"{one.topic} publish")
            if target.consume is not None and one.consume_added - one.consume_held > target.consume:
                missed.append(f"{one.topic} consume")
            if one.errors > target.errors:
                missed.append(f"{one.topic} errors")
        missed += [name for name, ceiling in target.extra.items() if self.extra.get(name, float("inf")) > ceiling]
        return missed

    def __str__(self) -> str:
        measured = [
            f"{one.topic} {one.publish_added:.2f} / {one.consume_added:.2f} s"
            f" (cluster {one.outage:.2f}, slowest {one.slowest_call:.2f}, {one.errors} errors,"
            f" {one.repeats} repeats, the machine's share {one.publish_held:.2f} / {one.consume_held:.2f},"
            f" loop held up {one.loop_lag:.2f} s, at most {one.loop_lag_own:.2f} by itself)"
            for one in self.figures
        ]
        measured += [f"{name} {value:.2f}" for name, value in self.extra.items()]
        verdict = "reached" if not self.missed() else "MISSED: " + ", ".join(self.missed())
        if self.broken:
            verdict = "BROKEN: " + ", ".join(self.broken)
        lines = [f"| {self.fault} #{self.run} | {self.target} | {'; '.join(measured)} | {verdict} |"]
        lines += [f"|   note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return everything, for machines."""
        return dataclasses.asdict(self) | {"target": str(self.target), "missed": self.missed()}


def figures_of(load: Load, probes: Probes, since: float, until: float) -> Figures:
    """Compute one topic's figures for the time between ``since`` and ``until``."""
    audit = load.audit
    published, consumed = _worst(load, probes, since, until)
    return Figures(
        topic="ordered" if load.ordered else "ordinary",
        publish_added=published.added,
        consume_added=consumed.added,
        publish_held=load.hold_ups.machine_between(*published.span),
        consume_held=load.hold_ups.machine_between(*consumed.span),
        publish_stall=published.stall,
        consume_stall=consumed.stall,
        outage=max(published.outage, consumed.outage),
        errors=audit.errors,
        in_doubt=sum(bool(one.maybe_stored) for one in audit.failures),
        slowest_call=audit.slowest,
        published=audit.started,
        lost=len(audit.waiting),
        out_of_order=audit.out_of_order() if load.ordered else 0,
        not_stored_but_delivered=audit.denied_and_delivered,
        repeats=audit.repeated,
        stored_again_worst_key=max(audit.stored_again(key) for key in audit.keys),
        loop_lag=load.hold_ups.worst,
        slowest_held=load.slowest_held(),
        loop_lag_own=load.hold_ups.worst_own,
        errors_seen=sorted({one.text for one in audit.failures})[:5],
    )


class _Stall(NamedTuple):
    """One of a key's: they compare by what was added."""

    added: float
    stall: float
    outage: float
    span: tuple[float, float]


def _worst(load: Load, probes: Probes, since: float, until: float) -> tuple[_Stall, _Stall]:
    """Return the worst key's stall, for publishing and for consuming.

    A stall is excused by what the cluster took of that time, and not by an outage at another one.
    """
    audit, published, consumed = load.audit, list[_Stall](), list[_Stall]()
    for key in audit.keys:
        partition = audit.partition_of(key, 0.0)
        # Without a key any partition may have been meant to take it: the slowest one counts, as for a key.
        meant = [(load.topic, partition)] if load.ordered and partition is not None else probes.of(load.topic)
        outage = max(probes.outage(*each, since, until) for each in meant)

        def stalled(span: tuple[float, float], meant: list[tuple[str, int]] = meant, outage: float = outage) -> _Stall:
            stall = span[1] - span[0]
            excused = max(probes.outage_within(*each, *span) for each in meant)
            return _Stall(max(stall - excused, 0.0), stall, outage, span)

        published += map(stalled, audit.publish_gaps(key, since, until))
        consumed += map(stalled, audit.consume_gaps(key, since, until))
    return max(published), max(consumed)


def broken_by(figures: Figures, limit: float) -> list[str]:
    """Name the invariants that one topic's figures break."""
    broken = []
    if figures.lost:
        broken.append(f"{figures.topic}: {figures.lost} acknowledged lost")
    if figures.out_of_order:
        broken.append(f"{figures.topic}: {figures.out_of_order} out of order")
    if figures.not_stored_but_delivered:
        broken.append(f"{figures.topic}: {figures.not_stored_but_delivered} 'not stored' delivered")
    # What the machine took from the loop is nobody's fault here; what the loop itself took is.
    if figures.slowest_call > limit + LIMIT_GRACE + figures.slowest_held:
        broken.append(f"{figures.topic}: a call took {figures.slowest_call:.1f} s")
    return broken
