"""What an operator does to a topic: more partitions; deleted and re-created."""

import collections
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from integration.faults.audit import Ack, Delivered
from integration.faults.bench import ORDERED, PARTITIONS, STARTED, Bench, Scenario
from integration.faults.load import Load
from integration.faults.probes import Probes
from integration.faults.rows import Row, Target, broken_by, figures_of
from integration.faults.waiting import until
from nsq_ha.admin import AdminClient

Events = Mapping[str, Sequence[Ack | Delivered]]

GROWN = 4
MANY = 50
"""Deliveries from a partition that show that it is in use."""
SETTLED = 150.0
GONE = 3.0
LONG = 60.0


def _grown(kind: str) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def play(bench: Bench, scenario: Scenario) -> Row:
        await bench.ready()
        topic = await bench.make_topic(kind)
        bench.topics[f"grown {kind}"] = topic
        await bench.wait_whole(stable=True)
        row = scenario.row()
        bench.loads.clear()
        load = bench.load(topic, ordered=kind == ORDERED, channel=bench.fresh("ch"), lookupds=bench.cluster.lookupds)
        try:
            started = time.monotonic()
            await load.start()
            await until(lambda: load.has_recovered(started, time.monotonic()), STARTED)
            began = bench.zero = time.monotonic()
            bench.say("--- expanding")
            async with AdminClient(bench.cluster.lookupds) as admin:
                await admin.expand(topic, GROWN)
            # The lookups name the new leaders up to a minute before these serve: that minute is the cluster's.
            served = time.monotonic()
            bench.say("the cluster serves all partitions")
            await until(lambda: min(_uses(load)) >= MANY * bench.pace.cluster, SETTLED)
            row.extra["publishing to all after"] = _latest(load.audit.acks, served)
            row.extra["consuming from all after"] = _latest(load.audit.deliveries, served)
            row.extra["the cluster itself took"] = served - began
            ended = time.monotonic()
            await load.end_publishing()
            await load.drain(LONG)
            figures = figures_of(load, _no_probes(bench, topic), began, ended)
            # Keys change their partition: order holds within each partition.
            figures.out_of_order = load.audit.out_of_order_within_partitions() if load.ordered else 0
            row.figures.append(figures)
            row.broken += broken_by(figures, load.audit.limit) + load.foreign
            row.notes += load.notes
        finally:
            await load.close()
            del bench.topics[f"grown {kind}"]
            await bench.delete(topic)
        return row

    return play


def _uses(load: Load) -> list[int]:
    """Count the deliveries from each partition of the grown topic."""
    counted = collections.Counter(one.partition for of_key in load.audit.deliveries.values() for one in of_key)
    return [counted[partition] for partition in range(GROWN)]


def _latest(events: Events, since: float) -> float:
    """Return the seconds until something happened in each partition of the grown topic."""
    return max(max(_first(events, partition, 0.0) for partition in range(GROWN)) - since, 0.0)


def _no_probes(bench: Bench, topic: str) -> Probes:
    """Return probes that measured nothing: stalls count in full."""
    probes = bench.cluster.probes(bench.say)
    probes.taken = {(topic, partition): [] for partition in range(GROWN)}
    probes.is_idle = True
    return probes


def _recreated(kind: str) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def play(bench: Bench, scenario: Scenario) -> Row:
        await bench.ready()
        topic = await bench.make_topic(kind)
        bench.topics[f"re-created {kind}"] = topic
        await bench.wait_whole()
        row = scenario.row()
        async with bench.stage({kind: topic}) as stage:
            load = stage.loads[kind]
            stage.fault("deleting")
            async with AdminClient(bench.cluster.lookupds) as admin:
                await admin.delete_topic(topic)
            bench.say("deleted")
            await bench.lasts(GONE)  # the fault
            again = time.monotonic()
            bench.say("making it again")
            await bench.create_topic(topic, kind)
            await until(lambda: _is_back(load, stage.probes, topic, again), LONG)
            await stage.recovered(limit=LONG)
            works = {one: min(t for t in stage.probes.taken[one] if t > again) for one in stage.probes.of(topic)}
            for name, back in (("producer back", load.audit.acks), ("consumer back", load.audit.deliveries)):
                row.extra[name] = max(_first(back, partition, again) - at for (_, partition), at in works.items())
            await load.end_publishing()
            await load.drain(10.0 * bench.pace.cluster)
        if load.audit.denied_and_delivered:
            row.broken.append(f"{load.audit.denied_and_delivered} 'not stored' delivered")
        row.broken += load.overdue() + load.foreign
        row.notes.append(f"{load.audit.errors} errors, slowest call {load.audit.slowest:.2f} s")
        row.notes += sorted({one.text for one in load.audit.failures})[:3]
        del bench.topics[f"re-created {kind}"]
        await bench.delete(topic)
        return row

    return play


def _is_back(load: Load, probes: Probes, topic: str, since: float) -> bool:
    return all(
        any(t > since for t in probes.taken[topic, partition])
        and _first(load.audit.acks, partition, since) < float("inf")
        and _first(load.audit.deliveries, partition, since) < float("inf")
        for partition in range(PARTITIONS)
    )


def _first(events: Events, partition: int, since: float) -> float:
    """Return when something happened first in a partition after ``since``."""
    found = (one.at for of_key in events.values() for one in of_key if one.partition == partition)
    return min((at for at in found if at > since), default=float("inf"))


# A producer may find the new partitions after 60 s, and waits for 65 s more, so that consumers find them, too.
_GROWN = Target(extra={"publishing to all after": 130.0, "consuming from all after": 130.0})
_RECREATED = Target(extra={"producer back": 1.0, "consumer back": 1.5})

SCENARIOS = (
    Scenario("grow-ordered", "ordered topic grows from 2 to 4", _GROWN, _grown(ORDERED)),
    Scenario("grow-ordinary", "ordinary topic grows from 2 to 4", _GROWN, _grown("ordinary")),
    Scenario("recreated-ordered", "ordered topic deleted and re-created", _RECREATED, _recreated(ORDERED)),
    Scenario("recreated-ordinary", "ordinary topic deleted and re-created", _RECREATED, _recreated("ordinary")),
)
