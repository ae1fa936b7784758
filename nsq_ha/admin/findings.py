"""All checks of ``nsq-ha doctor``, and what to do about what they find.

``causes`` has what a reading alone shows, for those who watch a cluster. Pure: facts come in as arguments.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from nsq_ha.admin.causes import MISSING, incidents
from nsq_ha.admin.incident import OF_CHANNELS, Trouble
from nsq_ha.admin.words import counted, some
from nsq_ha.options.checks import is_ip

if TYPE_CHECKING:
    from nsq_ha.admin.description import PartitionDescription, TopicDescription
    from nsq_ha.admin.reading import Reading

Status = Literal["ok", "warning", "failed", "skipped"]

CLOCK_TOLERANCE: Final = 2.0
"""Seconds by which clocks may differ. Servers tell whole seconds."""

TOLD: Final = "see the incidents above"
"""The text of a check whose problem is already listed as an incident."""

# ---------------------------------------------------------------- the checks


class Finding(NamedTuple):
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
        reading: The nsqlookupds, the nsqds, and descriptions of the topics that were looked at.
        left_out: Number of topics that were not.
        differing: Topics about which the nsqlookupds differ, with the partitions; empty for the whole topic.
        unreachable: Why no connection to a node was possible, by its address.
        clocks: By how many seconds the clock of a server is ahead of ours (or behind, negative), by its URL.
    """

    reading: Reading
    left_out: int = 0
    differing: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)


_Outcome = tuple[Status, str] | tuple[Status, str, str]
"""The fields of a finding, without what was checked."""


def findings_of(facts: Facts) -> Iterator[Finding]:
    """Return the outcome of each check."""
    is_plain = facts.reading.is_plain
    for check, examine, without in _CHECKS:
        if is_plain and without:
            yield Finding(check, "skipped", without)
        elif not is_plain or check != "agreement of nsqlookupds":
            yield Finding(check, *examine(facts))
        else:
            yield Finding("registration of nsqds", *_registered(facts))


def _caused(facts: Facts, *troubles: Trouble) -> _Outcome | None:
    """Return what incidents of these kinds, which are told before, mean for a check. None if there are none."""
    found = [each.is_bad for each in incidents(facts.reading) if each.trouble in troubles]
    return ("failed" if any(found) else "warning", TOLD) if found else None


_READ: Final[Mapping[str, str]] = {"cluster": "their state", "topics": "their topics", "nodes": "their nsqds"}
"""What is read of the nsqlookupds, by the part of the reading."""


def _unread(facts: Facts, parts: Iterable[str] = _READ) -> _Outcome | None:
    """Return what of the nsqlookupds could not be read. None if all was."""
    part = next((each for each in parts if each in facts.reading.errors), None)
    if part is None:
        return None
    text = f"{_READ[part]} cannot be read: {facts.reading.errors[part]}"
    return "failed", text, "look again; if it stays, ask each one alone (--lookupd)"


def _lookupds_answer(facts: Facts) -> _Outcome:
    count = len(facts.reading.lookupds)
    if found := _caused(facts, "unanswered", "lookupd") or _unread(facts):
        return found
    if count == 1:
        text, remedy = "there is only one", "run two or more, and give clients all addresses, so that one may fail"
        return "warning", text, remedy
    return "ok", f"all {count}"


def _one_leads(facts: Facts) -> _Outcome:
    if found := _caused(facts, "leading") or _unread(facts, ("cluster",)):
        return found
    leader = next((each.url for each in facts.reading.lookupds if each.leads), "")
    if facts.reading.stable is None:
        return "warning", f"{leader} leads, but does not say", "ask again in a minute"
    if not facts.reading.stable:  # the incident says it, or what it follows from
        return "warning", TOLD
    return "ok", f"{leader} leads, and all partitions have their replicas"


def _registered(facts: Facts) -> _Outcome:
    """Check a plain cluster, whose nsqlookupds only know what registers at each."""
    answering = [each for each in facts.reading.lookupds if not each.error]
    everyone = {nsqd for each in answering for nsqd in each.nsqds}
    text = f"{counted(len(everyone), 'nsqd')} at {counted(len(answering), 'nsqlookupd')}"
    return _caused(facts, "disagree") or ("ok", text)


def _lookupds_agree(facts: Facts) -> _Outcome:
    if not facts.differing:
        return "ok", _looked_at(facts)
    topics = [
        f"{topic}{' partition ' + ', '.join(map(str, partitions)) if partitions else ''}"
        for topic, partitions in sorted(facts.differing.items())
    ]
    remedy = "ask again in 5 s; if it stays, compare them with nsq-ha lookup TOPIC, and restart the one that is behind"
    return "failed", f"their answers differ about {some(topics)}", remedy


def _nsqds_answer(facts: Facts) -> _Outcome:
    nodes = facts.reading.stats.nodes
    if found := _caused(facts, *MISSING) or _caused(facts, "ill", "slow", "behind"):
        return found
    if not nodes:
        remedy = "start nsqd, with the addresses of the nsqlookupds"
        return "failed", "the nsqlookupds list no nsqd", remedy
    versions = sorted({node.version for node in nodes if node.version})
    if len(versions) > 1:
        return "warning", f"their versions differ: {', '.join(versions)}", "complete the upgrade"
    return "ok", f"all {len(nodes)}{', version ' + versions[0] if versions else ''}"


def _addresses(facts: Facts) -> _Outcome:
    if facts.unreachable:
        nodes = [f"{address} ({reason})" for address, reason in sorted(facts.unreachable.items())]
        remedy = (
            "start nsqd with -broadcast-address, a name or an address that clients can reach, and open its TCP port"
        )
        return "failed", f"no connection to {some(nodes)}", remedy
    hosts = [node.node.host for node in facts.reading.stats.nodes]
    local = [host for host in hosts if is_loopback(host)]
    if local and not all(is_loopback(urlsplit(each.url).hostname or "") for each in facts.reading.lookupds):
        remedy = "start nsqd with -broadcast-address, a name or an address that other machines can reach"
        return "failed", f"the nsqlookupds name {some(local)}, which each machine is itself", remedy
    return "ok", f"a connection to each of {len(hosts)}"


_OF_PARTITIONS: Final[Mapping[str, tuple[Status, str, str]]] = {
    "wrong": ("failed", "the nsqd does not know that it leads: {}", "wait a minute; if it stays, restart that nsqd"),
    "unwritable": (
        "failed",
        "cannot be written: {}",
        (
            "start the nsqds with its other replicas: a majority is needed to write. A topic without channel may need"
            " one: nsq-ha channel create"
        ),
    ),
    "thin": (
        "warning",
        "replicas are not in sync: {}",
        "start the nsqds that are missing; until then, another failure may stop writes",
    ),
}
"""What can be wrong with a partition, the worst first, with what to do."""


def _leaders(facts: Facts) -> _Outcome:
    if any(each.unled for each in incidents(facts.reading)):
        return "failed", TOLD
    found = [_trouble(topic, entry) for topic in facts.reading.details.values() for entry in topic.partitions]
    for trouble, (status, text, remedy) in _OF_PARTITIONS.items():
        names = [name for kind, name in found if kind == trouble]
        if names:
            is_told = trouble == "thin" and _caused(facts, *MISSING, "behind") is not None
            return (status, TOLD) if is_told else (status, text.format(some(names)), remedy)
    return "ok", f"{counted(len(found), 'partition')}, {_looked_at(facts)}"


def _trouble(found: TopicDescription, entry: PartitionDescription) -> tuple[str, str]:
    """Return a key of :data:`_OF_PARTITIONS`, or an empty text, with the name of the partition."""
    name = f"{found.view.topic}-{entry.partition}"
    replicas = found.view.meta.replica if found.view.meta is not None else 0
    if not entry.writable:
        return "unwritable", name + (f" ({found.note})" if found.note else "")
    if entry.stats is not None and not entry.stats.is_leader:
        return "wrong", f"{name} at {entry.stats.nsqd}"
    if entry.replicas and len(entry.replicas) < replicas:
        return "thin", f"{name} ({len(entry.replicas)} of {replicas})"
    return "", name


def _flags(facts: Facts) -> _Outcome:
    wrong = []
    for found in facts.reading.details.values():
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
        return "failed", f"differently from the nsqlookupds: {some(wrong)}", remedy
    return "ok", f"ordered and extended are the same, {_looked_at(facts)}"


def _channels(facts: Facts) -> _Outcome:
    return _caused(facts, *OF_CHANNELS) or ("ok", counted(len(facts.reading.channels), "channel"))


def _clocks(facts: Facts) -> _Outcome:
    if not facts.clocks:
        return "skipped", "no server says what time it is"
    wrong = [
        f"{url} is {abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}"
        for url, seconds in sorted(facts.clocks.items())
        if abs(seconds) > CLOCK_TOLERANCE
    ]
    if wrong:
        remedy = (
            "synchronise the clocks (NTP), that of this machine too: start positions by time and lags depend on them"
        )
        return "warning", f"by this machine's clock, {some(wrong)}", remedy
    return "ok", f"{counted(len(facts.clocks), 'server')}, to {CLOCK_TOLERANCE:.0f} s"


def _looked_at(facts: Facts) -> str:
    text = counted(len(facts.reading.details), "topic")
    return f"{text} ({facts.left_out} more were not looked at: give --topic)" if facts.left_out else text


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself, by its name or address."""
    return host.lower() == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


_CHECKS: Final[Sequence[tuple[str, Callable[[Facts], _Outcome], str]]] = (
    ("nsqlookupds", _lookupds_answer, ""),
    ("stability", _one_leads, "a plain cluster has no leader"),
    ("agreement of nsqlookupds", _lookupds_agree, ""),
    ("nsqds", _nsqds_answer, ""),
    ("connections to nsqds", _addresses, ""),
    ("leaders", _leaders, "a plain cluster has no partitions"),
    ("settings of topics", _flags, "plain topics have no settings"),
    ("channels", _channels, ""),
    ("clocks", _clocks, ""),
)
"""The checks, and why a plain cluster does not need one; empty if it does."""
