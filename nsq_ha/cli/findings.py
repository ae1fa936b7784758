"""What ``nsq-ha doctor`` finds in what it has gathered, and what to do about it.

Pure: the facts come in as arguments.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from nsq_ha.cli.figures import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nsq_ha.admin import ClusterState, ClusterStats, PartitionDescription, TopicDescription

Status = Literal["ok", "warning", "failed", "skipped"]

CLOCK_TOLERANCE: Final = 2.0
"""Seconds by which clocks may differ. Servers tell whole seconds."""

_NAMED: Final = 5
"""Number of things that a text names."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check.

    Attributes:
        check: What was checked.
        status: How it is.
        text: What was found.
        remedy: What to do; empty if there is nothing to do.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was gathered.

    Attributes:
        state: The nsqlookupds.
        stats: The nsqds.
        topics: The topics that were looked at.
        left_out: Number of topics that were not.
        differing: Topics about which the nsqlookupds differ, with the partitions; empty for the whole topic.
        registered: On a plain cluster, the nsqds that each nsqlookupd lists.
        unreachable: Why no connection to a node was possible, by its address.
        clocks: By how many seconds the clock of a server is ahead of ours (or behind, negative), by its URL.
    """

    state: ClusterState
    stats: ClusterStats
    topics: Sequence[TopicDescription] = ()
    left_out: int = 0
    differing: Mapping[str, Sequence[int]] = field(default_factory=dict)
    registered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)


def findings_of(facts: Facts) -> Iterator[Finding]:
    """Return the outcome of each check."""
    yield _lookupds_answer(facts)
    yield _one_leads(facts)
    yield _lookupds_agree(facts)
    yield _nsqds_answer(facts)
    yield _addresses(facts)
    yield _leaders(facts)
    yield _flags(facts)
    yield _channels(facts)
    yield _clocks(facts)


def _lookupds_answer(facts: Facts) -> Finding:
    check = "nsqlookupds answer"
    lookupds = facts.state.lookupds
    silent = [f"{each.url} ({each.error})" for each in lookupds if each.error]
    if silent:
        remedy = "start it, or open its HTTP port; if it was removed for good, take it out of lookupd"
        return Finding(check, "failed", f"no answer from {_some(silent)}", remedy)
    if len(lookupds) == 1:
        text, remedy = "there is only one", "run two or more, and give clients all addresses, so that one may fail"
        return Finding(check, "warning", text, remedy)
    return Finding(check, "ok", f"all {len(lookupds)}")


def _one_leads(facts: Facts) -> Finding:
    check = "the cluster is stable"
    if facts.state.is_plain:
        return Finding(check, "skipped", "a plain cluster has no leader")
    leaders = [each.url for each in facts.state.lookupds if each.leads]
    if not leaders:
        remedy = "look at the nsqlookupds' logs and at etcd: until one leads, no leader of a partition can change"
        return Finding(check, "failed", "no nsqlookupd leads", remedy)
    if facts.state.stable is None:
        return Finding(check, "warning", f"{leaders[0]} leads, but does not say", "ask again in a minute")
    if not facts.state.stable:
        remedy = (
            "start the nsqds that are missing, and wait: after each node that joins or leaves it takes some minutes,"
            " during which topics cannot be expanded and leaders not moved"
        )
        return Finding(check, "warning", "a node joins or leaves, or replicas are missing", remedy)
    return Finding(check, "ok", f"{leaders[0]} leads, and all partitions have their replicas")


def _lookupds_agree(facts: Facts) -> Finding:
    if facts.state.is_plain:
        check = "nsqds register everywhere"
        everyone = frozenset[str]().union(*facts.registered.values()) if facts.registered else frozenset()
        missing = [
            f"{node} at {url}" for url, nodes in sorted(facts.registered.items()) for node in sorted(everyone - nodes)
        ]
        if missing:
            remedy = "start each nsqd with -lookupd-tcp-address for every nsqlookupd"
            return Finding(check, "warning", f"not registered: {_some(missing)}", remedy)
        return Finding(
            check, "ok", f"{counted(len(everyone), 'nsqd')} at {counted(len(facts.registered), 'nsqlookupd')}"
        )
    check = "nsqlookupds agree"
    if facts.differing:
        topics = [
            f"{topic}{' partition ' + ', '.join(map(str, partitions)) if partitions else ''}"
            for topic, partitions in sorted(facts.differing.items())
        ]
        remedy = (
            "ask again in 5 s; if it stays, compare them with nsq-ha lookup TOPIC, and restart the one that is behind"
        )
        return Finding(check, "failed", f"their answers differ about {_some(topics)}", remedy)
    return Finding(check, "ok", _looked_at(facts))


def _nsqds_answer(facts: Facts) -> Finding:
    check = "nsqds answer"
    nodes = facts.stats.nodes
    if not nodes:
        remedy = "start nsqd, with the addresses of the nsqlookupds"
        return Finding(check, "failed", "the nsqlookupds list no nsqd", remedy)
    silent = [f"{node.node.http_url} ({node.error})" for node in facts.stats.silent]
    if silent:
        remedy = "start it, or open its HTTP port; with -tls-required=true, give --tls-ca, or use tcp-https there"
        return Finding(check, "failed", f"no answer from {_some(silent)}", remedy)
    ill = [f"{node.node.address}: {node.health}" for node in nodes if node.health not in ("", "OK")]
    if ill:
        return Finding(check, "failed", _some(ill), "look at the log of that nsqd, and at its disk")
    versions = sorted({node.version for node in nodes if node.version})
    if len(versions) > 1:
        return Finding(check, "warning", f"their versions differ: {', '.join(versions)}", "complete the upgrade")
    return Finding(check, "ok", f"all {len(nodes)}{', version ' + versions[0] if versions else ''}")


def _addresses(facts: Facts) -> Finding:
    check = "nsqds can be reached"
    if facts.unreachable:
        nodes = [f"{address} ({reason})" for address, reason in sorted(facts.unreachable.items())]
        remedy = (
            "start nsqd with -broadcast-address, a name or an address that clients can reach, and open its TCP port"
        )
        return Finding(check, "failed", f"no connection to {_some(nodes)}", remedy)
    hosts = [node.node.host for node in facts.stats.nodes]
    local = [host for host in hosts if _is_loopback(host)]
    if local and not all(_is_loopback(urlsplit(each.url).hostname or "") for each in facts.state.lookupds):
        remedy = "start nsqd with -broadcast-address, a name or an address that other machines can reach"
        return Finding(check, "failed", f"the nsqlookupds name {_some(local)}, which each machine is itself", remedy)
    return Finding(check, "ok", f"a connection to each of {len(hosts)}")


def _leaders(facts: Facts) -> Finding:
    check = "leaders are writable"
    if facts.state.is_plain:
        return Finding(check, "skipped", "a plain cluster has no partitions")
    troubles = [_trouble(found, entry) for found in facts.topics for entry in found.partitions]
    unled, wrong, unwritable, thin = (
        [name for kind, name in troubles if kind == wanted] for wanted in ("unled", "wrong", "unwritable", "thin")
    )
    if unled:
        remedy = "start the nsqds that hold it; a new leader is elected within about 20 s"
        return Finding(check, "failed", f"no leader: {_some(unled)}", remedy)
    if wrong:
        remedy = "wait a minute; if it stays, restart that nsqd"
        return Finding(check, "failed", f"the nsqd does not know that it leads: {_some(wrong)}", remedy)
    if unwritable:
        remedy = "start the nsqds with its other replicas: a majority is needed to write. A topic without channel may"
        return Finding(
            check, "failed", f"cannot be written: {_some(unwritable)}", f"{remedy} need one: nsq-ha channel create"
        )
    if thin:
        remedy = "start the nsqds that are missing; until then, another failure may stop writes"
        return Finding(check, "warning", f"replicas are not in sync: {_some(thin)}", remedy)
    partitions = sum(len(found.partitions) for found in facts.topics)
    return Finding(check, "ok", f"{counted(partitions, 'partition')}, {_looked_at(facts)}")


def _trouble(found: TopicDescription, entry: PartitionDescription) -> tuple[str, str]:
    """Return what kind of trouble a partition has, and its name; the kind is empty if there is none."""
    name = f"{found.view.topic}-{entry.partition}"
    replicas = found.view.meta.replica if found.view.meta is not None else 0
    if entry.leader is None:
        return "unled", name
    if not entry.writable:
        return "unwritable", name + (f" ({found.note})" if found.note else "")
    if entry.stats is not None and not entry.stats.is_leader:
        return "wrong", f"{name} at {entry.leader.address}"
    if entry.replicas and len(entry.replicas) < replicas:
        return "thin", f"{name} ({len(entry.replicas)} of {replicas})"
    return "", name


def _flags(facts: Facts) -> Finding:
    check = "nsqds know the settings"
    if facts.state.is_plain:
        return Finding(check, "skipped", "plain topics have no settings")
    wrong = []
    for found in facts.topics:
        meta = found.view.meta
        for entry in found.partitions:
            if meta is None or entry.stats is None:
                continue
            for word, wanted, present in (
                ("ordered", meta.ordered, entry.stats.ordered),
                ("extended", meta.extend_support, entry.stats.extended),
            ):
                if wanted is not present:
                    wrong.append(f"{found.view.topic}-{entry.partition} is {'' if present else 'not '}{word}")
    if wrong:
        remedy = "update the topic again (nsq-ha topic update), or restart that nsqd: its clients are refused"
        return Finding(check, "failed", f"differently from the nsqlookupds: {_some(wrong)}", remedy)
    return Finding(check, "ok", f"ordered and extended are the same, {_looked_at(facts)}")


def _channels(facts: Facts) -> Finding:
    check = "channels are consumed"
    channels = [(topic.topic, each) for topic in facts.stats.topics for each in topic.channels]
    orphaned = [
        f"{topic}/{each.name} ({each.depth:,} wait)" for topic, each in channels if each.depth and not each.clients
    ]
    held = [
        f"{topic}/{each.name} ({'skipped' if each.skipped else 'paused'})"
        for topic, each in channels
        if each.paused or each.skipped
    ]
    if orphaned:
        remedy = "start its consumers; if they are gone for good: nsq-ha channel delete TOPIC CHANNEL"
        return Finding(check, "warning", f"nobody consumes {_some(orphaned)}", remedy)
    if held:
        remedy = "if that is over: nsq-ha channel resume TOPIC CHANNEL"
        return Finding(check, "warning", f"an operator stopped {_some(held)}", remedy)
    return Finding(check, "ok", counted(len(channels), "channel"))


def _clocks(facts: Facts) -> Finding:
    check = "clocks agree"
    if not facts.clocks:
        return Finding(check, "skipped", "no server says what time it is")
    wrong = [
        f"{url} is {abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"
        for url, seconds in sorted(facts.clocks.items())
        if abs(seconds) > CLOCK_TOLERANCE
    ]
    if wrong:
        remedy = (
            "synchronise the clocks (NTP), that of this machine too: start positions by time and lags depend on them"
        )
        return Finding(check, "warning", f"by this machine's clock, {_some(wrong)}", remedy)
    return Finding(check, "ok", f"{counted(len(facts.clocks), 'server')}, to {CLOCK_TOLERANCE:.0f} s")


def _looked_at(facts: Facts) -> str:
    text = counted(len(facts.topics), "topic")
    return f"{text} ({facts.left_out} more were not looked at: give --topic)" if facts.left_out else text


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return "; ".join(listed[:_NAMED]) + rest


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
