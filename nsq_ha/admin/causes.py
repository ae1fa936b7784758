"""What is wrong in a cluster now: one sentence for each cause, with what follows from it.

Hundreds of partitions can lose their leader because one nsqd died: that is one incident. All who show a cluster lead
with these. Pure: a reading comes in as an argument.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar, cast

from nsq_ha.admin.consuming import LONG, of_consumers
from nsq_ha.admin.description import NodeStats
from nsq_ha.admin.incident import OF_CHANNELS, Incident, Trouble
from nsq_ha.admin.memory import Sighting, TopicPartition
from nsq_ha.admin.reading import Reading
from nsq_ha.admin.words import brief, counted, some, span
from nsq_ha.engine.http import UNRESOLVED

T = TypeVar("T")

MISSING: Final[tuple[Trouble, ...]] = ("gone", "silent", "cut")
"""Ways in which an nsqd is missing; one may turn into another."""

SLOW: Final = 1.0
"""Seconds above which an answer may be slow."""

_TIMES_SLOWER: Final = 10
"""How many times as long as that of the others a slow answer takes."""

_CHECK_NAME: Final = "check the name for typing errors (--lookupd, NSQ_HA_LOOKUPD), and this machine's DNS"

_CHECK_PORT: Final = "start the nsqlookupds, or check the addresses (--lookupd, NSQ_HA_LOOKUPD), those of their HTTP"

_NO_ROOM: Final = ("no space", "disk full", "file too large", "quota")
"""Parts of what an nsqd says that cannot write."""


def _once(find: Callable[[Reading], T]) -> Callable[[Reading], T]:
    """Return a function that finds something in a reading only once: each page and each poll ask several times."""

    @functools.wraps(find)
    def found(reading: Reading) -> T:
        known = reading.__dict__  # that of a frozen value, which its own cached properties use, too
        if find.__name__ not in known:
            known[find.__name__] = find(reading)
        return cast("T", known[find.__name__])

    return found


@_once
def incidents(reading: Reading) -> tuple[Incident, ...]:
    """Return what is wrong now, the worst first."""
    if not reading.is_fresh:
        return (_unanswered(reading),)
    missing = list(_missing(reading))
    explained = frozenset(p for each in missing for p in each.unled)
    if missing and (left := unled(reading).keys() - explained):  # its followers are too few to write, so nobody leads
        first = max(missing, key=lambda each: (each.since or 0.0, each.subject))
        text = _without_leader(len(left), "more partition" if first.unled else "partition")
        effects = (*first.effects, f"{text}, since too few replicas are left")
        missing.remove(first)
        missing.append(replace(first, effects=effects, unled=first.unled | left, is_bad=True))
        explained |= left
    found = [_unanswered(reading)] if reading.unanswered else []
    found += [*missing, *_present(reading), *_lookupds(reading)]
    found += _rest(reading, explained, is_explained=bool(found))
    return tuple(sorted([*found, *of_consumers(reading, incomplete(reading))], key=_rank))


def _rank(each: Incident) -> tuple[float, ...]:
    """Return what sorts the worst first: servers before the consumers that follow from them, which have an order."""
    is_channel = each.trouble in OF_CHANNELS
    return not each.is_bad, is_channel, not each.unled, -len(each.unled), 0.0 if is_channel else each.since or 0.0


@_once
def unled(reading: Reading) -> Mapping[TopicPartition, str]:
    """Return the partitions that nobody serves now, with the reason."""
    if reading.is_plain or not reading.is_fresh:
        return {}
    found: dict[TopicPartition, str] = {}
    # A new partition gets its first leader within seconds.
    gone = (each for each in reading.remembered.unled.values() if not reading.at - LONG < each.seen == each.lost)
    lost = {partition for each in gone for partition in each.led}
    for partition in sorted(reading.leaders.keys() | lost):
        leader = reading.leaders.get(partition)
        if leader is None:
            before = reading.former.get(partition)
            found[partition] = f"leader {before} lost" if before else "no leader"
        elif leader in reading.silent:
            found[partition] = f"leader {leader} does not answer"
    return found


def prepare(reading: Reading) -> None:
    """Find all that is shown of a reading: in a thread, since 100,000 channels take seconds."""
    for name in ("rows", "parts", "published", "rates", "nsqds", "names", "channels", "holders", "kept", "remembered"):
        getattr(reading, name)
    incidents(reading)
    unled(reading)


def expected(reading: Reading) -> tuple[int, int]:
    """Return how many nsqds answer, and how many there should be."""
    missing = {each.subject for each in incidents(reading) if each.trouble == "gone" and each.is_bad}
    return len(reading.nodes) - len(reading.silent), len(reading.nodes.keys() | missing)


def incomplete(reading: Reading) -> frozenset[str]:
    """Return the topics whose figures lack a part now, since nobody serves it."""
    if not reading.is_plain:
        return frozenset(topic for topic, _ in unled(reading))
    listed = {topic for address in reading.silent for topic in reading.nsqds[address].topics}
    gone = reading.remembered.nsqds.keys() - reading.answering  # what one has that answers is in the sum
    lost = (reading.remembered.nsqds[each].led for each in gone)
    return frozenset(listed | {topic for led in lost for topic, _ in led if topic in reading.names})


def at_least(reading: Reading) -> str:
    """Return the mark of a sum over the cluster that lacks a part; empty if it is whole."""
    return "≥ " if incomplete(reading) else ""


def _unanswered(reading: Reading) -> Incident:
    """Return the incident that no nsqlookupd, or nobody, answers."""
    known = max(reading.remembered.lookupds.values(), key=lambda each: each.seen, default=None)
    who, effects = "no nsqlookupd answers", ("clients that start find nothing; those that run know their nsqds",)
    return Incident(
        trouble="unanswered",
        subject="cluster",
        cause=_seen(who if reading.unanswered else "the cluster does not answer", known, reading.at),
        since=None if known is None else known.since,
        effects=effects if reading.unanswered else (),
        detail=reading.unanswered or reading.errors["nsqds"],
        remedy=_for_lookupd(reading.unanswered, _CHECK_PORT),
    )


# ---------------------------------------------------------------- nsqds that are missing


def _missing(reading: Reading) -> Iterator[Incident]:
    named = {address for each in reading.replicas.values() for address in (*each.in_sync, *each.behind)}
    known = {address: each.since for address, each in reading.remembered.nsqds.items() if each.lost is not None}
    only_named = sorted(named - reading.nodes.keys() - known.keys())
    lost = frozenset({*reading.silent, *(known.keys() - reading.nodes.keys()), *only_named})
    for address in sorted(lost):
        yield _lost(reading, address, lost)
    listed = {address for each in reading.lookupds for address in each.nsqds}
    cut = [a for a, said in sorted(reading.absent.items()) if not said.error and a not in listed]
    if cut and not reading.unanswered:
        many = f"{len(cut):,} nsqds answer, but no nsqlookupd lists them: {some(cut, 3)}"
        ways = "the ways to the nsqlookupds' TCP ports" + ("" if reading.is_plain else ", and to etcd")
        yield Incident(
            trouble="cut",
            subject=cut[0] if len(cut) == 1 else "cluster",
            cause=f"nsqd {cut[0]} answers, but no nsqlookupd lists it" if len(cut) == 1 else many,
            since=min((since for each in cut if (since := known.get(each))), default=None),
            effects=("clients do not find what is there",),
            remedy=f"if an nsqlookupd has just started, wait half a minute until they register; else check {ways}",
        )


def _lost(reading: Reading, address: str, lost: frozenset[str]) -> Incident:
    """Return the incident of one nsqd of those that are missing."""
    known = reading.remembered.nsqds.get(address, Sighting(0.0))
    led = known.led | {partition for partition, leader in reading.leaders.items() if leader == address}
    gone = led & unled(reading).keys()
    moved = sum(reading.leaders.get(each, address) != address for each in led)
    took = f" after {span(known.replaced - known.seen)}" if known.replaced and known.since is not None else ""
    effects = [f"{counted(moved, 'partition')} led by others{took}"] if moved else []
    kept = {partition for partition in gone if reading.leaders.get(partition) == address}
    if kept:  # perhaps only those who ask here cannot reach it
        effects.append(f"it leads {counted(len(kept), 'partition')}, which may be out of service")
    if bare := len(gone - kept):
        effects.append(_without_leader(bare))
    effects += _writes(reading, address, lost, is_more=bool(bare))
    if known.waiting:
        effects.append(f"{counted(known.waiting, 'message')} waited there")
    said = reading.nodes.get(address) or reading.absent.get(address)
    is_listed = address in reading.nodes
    trouble: Trouble = "silent" if is_listed else "gone"
    how = "hangs or is cut off" if said is not None and said.hangs else "does not answer" if is_listed else "gone"
    matters = bool(effects) or reading.is_plain or is_listed
    return Incident(
        trouble=trouble,
        subject=address,
        cause=_seen(f"nsqd {address} {how}", known, reading.at),
        since=known.since,
        effects=tuple(effects),
        remedy=_remedy(address, said, is_listed=is_listed),
        detail=said.error if said is not None else "",
        is_bad=matters,
        unled=frozenset(gone),
    )


def _seen(cause: str, known: Sighting | None, at: float, done: str = "seen by nsq-ha") -> str:
    """Return a cause with all that is known of its time, unless ``since`` says it."""
    if known is None or not known.seen or known.since is not None:
        return cause
    return f"{cause}, last {done} {span(at - known.seen)} ago"


def _for_lookupd(reason: str, remedy: str) -> str:
    """Return what to do about an nsqlookupd: with its name if that is the reason."""
    return _CHECK_NAME if UNRESOLVED in reason else remedy


def _remedy(address: str, said: NodeStats | None, *, is_listed: bool) -> str:
    if said is not None and UNRESOLVED in said.error:
        return "start it with -broadcast-address, a name or an address that this machine can resolve"
    if said is not None and said.hangs:
        return "see whether its process is stopped (kill -CONT), its disk or the network hangs; otherwise restart it"
    if is_listed:
        return "start it, or open its HTTP port; with -tls-required=true, give --tls-ca, or use tcp-https there"
    return f"start it, or repair the network path to it; if it was removed for good: nsq-ha node forget {address}"


def _writes(reading: Reading, address: str, lost: frozenset[str], *, is_more: bool) -> list[str]:
    """Return what the loss means for writing to partitions that have a leader; the others are named as having none."""
    stopped, thin = set[TopicPartition](), set[str]()
    for partition, replicas in reading.replicas.items():
        alive = len(replicas.in_sync - lost)
        if address not in replicas.in_sync | replicas.behind or alive > replicas.needed:
            continue
        if alive == replicas.needed:
            thin.add(partition[0])
        elif partition in reading.leaders:
            stopped.add(partition)
    effects = []
    if stopped:
        topics = some(sorted({topic for topic, _ in stopped}), 3)
        many = counted(len(stopped), "more partition" if is_more else "partition")
        effects.append(f"{many} of {topics} cannot be written")
    if thin:
        effects.append(f"one more loss stops writes of {counted(len(thin), 'topic')}")
    return effects


# ---------------------------------------------------------------- nsqds that answer


def _present(reading: Reading) -> Iterator[Incident]:
    answering = [node for node in reading.nodes.values() if not node.error]
    for node in answering:
        address = node.node.address
        if node.health not in ("", "OK"):
            has_room = not any(word in node.health.lower() for word in _NO_ROOM)
            yield Incident(
                trouble="ill",
                subject=address,
                cause=f"nsqd {address} {'is not healthy' if has_room else 'cannot write: its disk is full'}",
                effects=(f"it says {node.health[:200]}",),
                remedy="look at its log, and at its disk" if has_room else "free space on its disk, and restart it",
                detail=node.health[:400],
            )
        others = [other.took for other in answering if other is not node] if node.took >= SLOW else []
        usual = statistics.median(others) if others else 0.0
        if others and node.took >= _TIMES_SLOWER * usual:
            yield Incident(
                trouble="slow",
                subject=address,
                cause=f"nsqd {address} is slow: it answered after {span(node.took)}, the others after {brief(usual)}",
                remedy="look at its load, its disk, and the network between",
                is_bad=False,
            )
    yield from _catching_up(reading)


def _catching_up(reading: Reading) -> Iterator[Incident]:
    behind: dict[str, set[TopicPartition]] = {}
    for partition, replicas in reading.replicas.items():
        for address in replicas.behind:
            if address in reading.nodes and address not in reading.silent:
                behind.setdefault(address, set()).add(partition)
    for address, partitions in sorted(behind.items()):
        topics = some(sorted({topic for topic, _ in partitions}), 3)
        yield Incident(
            trouble="behind",
            subject=address,
            cause=f"nsqd {address} catches up",
            effects=(f"it is not in sync yet in {counted(len(partitions), 'partition')} of {topics}",),
            # A partitioned nsqd whose disk is full says that it is well, gives up what it leads, and falls behind.
            remedy="wait; if it lasts, look whether its disk is full, and at its log",
            is_bad=False,
        )


# ---------------------------------------------------------------- nsqlookupds, and the rest


def _lookupds(reading: Reading) -> Iterator[Incident]:
    if reading.cluster is None or "cluster" in reading.errors:
        return
    listed = {each.url: each for each in reading.lookupds}
    known = reading.remembered.lookupds
    for url in sorted({*(url for url, each in known.items() if each.lost is not None), *listed}):
        error = listed[url].error if url in listed else ""
        if url in listed and not error:
            continue
        left = sum(not each.error for each in reading.lookupds)
        yield Incident(
            trouble="lookupd",
            subject=url,
            cause=_seen(f"nsqlookupd {url} {'does not answer' if error else 'gone'}", known.get(url), reading.at),
            since=known[url].since if url in known else None,
            effects=(f"{counted(left, 'nsqlookupd')} left to look topics up at",),
            remedy=_for_lookupd(
                error,
                "start it, or open its HTTP port; if it was removed for good, take it out of lookupd, and run"
                f" nsq-ha node forget {url}",
            ),
            detail=error,
        )
    if not reading.cluster.is_plain and not any(each.leads and not each.error for each in reading.lookupds):
        yield Incident(
            trouble="leading",
            subject="cluster",
            cause="no nsqlookupd leads",
            effects=("until one does, leaders cannot change and topics cannot be created or altered",),
            remedy="look at the nsqlookupds' logs and at etcd",
        )
    yield from _disagreeing(reading)


def _disagreeing(reading: Reading) -> Iterator[Incident]:
    """Yield the nsqlookupds that lack nsqds which others list."""
    answering = [each for each in reading.lookupds if not each.error]
    everyone = {address for each in answering for address in each.nsqds}
    for each in answering:
        missing = sorted(everyone - {*each.nsqds})
        if missing:
            yield Incident(
                trouble="disagree",
                subject=each.url,
                cause=f"nsqlookupds disagree: {each.url} does not list nsqd {some(missing, 3)}, another one does",
                effects=("clients that ask it do not find what these have",) if reading.is_plain else (),
                remedy="start each nsqd with -lookupd-tcp-address for every nsqlookupd, and open that port"
                if reading.is_plain
                else "look again in 5 s; if it stays, restart the nsqlookupd that is behind",
                is_bad=False,
            )


def _rest(reading: Reading, explained: frozenset[TopicPartition], *, is_explained: bool) -> Iterator[Incident]:
    """Yield what no other incident explains."""
    left = {each: why for each, why in unled(reading).items() if each not in explained}
    if left:
        names = [f"{topic}-{number}" for topic, number in left]
        lost = reading.remembered.unled
        known = [lost[name] for name in names if name in lost and lost[name].seen]
        first = min(known, key=lambda each: each.seen, default=None)
        yield Incident(
            trouble="leaderless",
            subject="cluster",
            cause=_seen(f"{_without_leader(len(left))}: {some(names, 3)}", first, reading.at, "seen led by nsq-ha"),
            since=None if first is None else first.since,
            remedy="wait half a minute; if it stays, start the nsqds that hold it, and look at the nsqlookupds' logs",
            unled=frozenset(left),
        )
    if reading.stable is False and not (is_explained or left):
        yield Incident(
            trouble="unstable",
            subject="cluster",
            cause="the cluster is unstable: a node joins or leaves, or replicas are copied",
            effects=("until then topics cannot be expanded, and leaders not moved",),
            remedy="wait some minutes",
            is_bad=False,
        )


def _without_leader(number: int, noun: str = "partition") -> str:
    return f"{counted(number, noun)} {'has' if number == 1 else 'have'} no leader"
