"""Decode the bodies of nsqlookupd's answers, which are untrusted input.

Owns the JSON shapes of ``/lookup``, ``/listlookup``, ``/nodes``, ``/topics`` and
``/channels``; ``body`` removes the envelope first. The HTTP exchange is in
``http``; ``policy.topology`` merges several answers.

The invariant: any body results in a valid value or a :class:`RemoteProtocolError`.
An invalid entry (a partition ``"x"``, a port 0) is skipped and the others are
used; a body of another shape is an error.

Source: server protocol 11; server failures 2, 5.2.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from nsq_ha.base.redaction import beginning
from nsq_ha.engine.body import MAX_TEXT, Body, decode_json, try_json
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.options.checks import MAX_PARTITION_ID, is_host_name, is_port, is_valid_name
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta

NOT_CREATED: Final = "the topic is not created"
"""The note in place of the server's "Key not found" or "TOPIC_NOT_FOUND"."""

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,4}")

_NULL: Final = msgspec.Raw(b"null")


class _Peer(msgspec.Struct):
    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    distributed_id: Annotated[str, msgspec.Meta(max_length=512)] = ""  # kept with the last leader of each partition


class _Answer(msgspec.Struct):
    """The answer of any route but ``/listlookup``: each has some of these."""

    partitions: dict[str, msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    producers: list[msgspec.Raw] | None = None
    topics: list[str] | None = None
    channels: list[str] | None = None
    meta: msgspec.Raw = _NULL
    meta_info: list[msgspec.Raw] | None = None


class _Lookupd(msgspec.Struct):
    node_ip: str = msgspec.field(name="NodeIP")
    http_port: str | int = msgspec.field(name="HttpPort")


class _LookupdList(msgspec.Struct):
    lookupdnodes: list[msgspec.Raw] | None = None
    lookupdleader: msgspec.Raw = _NULL


class _Producer(_Peer):
    hostname: str = ""
    version: str = ""
    partitions: dict[str, list[str] | None] | None = None
    topics: list[str] | None = None
    tombstones: list[bool] | None = None


class _TopicInfo(msgspec.Struct):
    name: str = msgspec.field(name="topic_name")
    ordered: bool = False
    extend_support: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False


@dataclass(frozen=True, slots=True)
class LookupdList:
    """One nsqlookupd's list of all nsqlookupds.

    Attributes:
        leader: Base URL of the leading one. None if the list names none.
        nodes: Base URLs of all, each once.
        supported: False if the server does not know the route; use the configured addresses then.
    """

    leader: str | None
    nodes: tuple[str, ...]
    supported: bool = True


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One nsqd as ``/nodes`` lists it.

    Attributes:
        node: Its addresses.
        hostname: The machine's name, as nsqd reports it.
        version: The server's version.
        partitions: Partitions it leads, by topic.
        topics: Its topics.
        tombstoned: Those of its topics that clients should no longer find there.
    """

    node: Node
    hostname: str
    version: str
    partitions: Mapping[str, tuple[int, ...]]
    topics: tuple[str, ...] = ()
    tombstoned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as ``/topics`` lists it; the flags are those of :class:`TopicMeta`."""

    name: str
    ordered: bool = False
    extend_support: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False


def decode_lookup(body: Body, lookupd: str) -> LookupAnswer:
    """Decode the answer to ``/lookup``; ``leads`` is False until the caller sets it.

    Refusals because of the topic are answers, too: the topic is unknown, or it has no
    channel (by default nsqlookupd hides such a topic from publishers).

    The answer of a plain nsqlookupd has neither partitions nor meta.

    Raises:
        RemoteProtocolError: It is not such an answer; ask again, or ask another nsqlookupd.
    """
    if body.status != 200:
        return _refused_lookup(body, lookupd)
    content = decode_json(body.data, _Answer)
    meta = try_json(bytes(content.meta), TopicMeta)
    listed = content.partitions if isinstance(content.partitions, dict) else {}
    is_plain = content.partitions is msgspec.UNSET and content.producers is not None and meta is None
    if not is_plain and not listed and content.producers is None and meta is None:
        raise RemoteProtocolError(
            "the answer is not that of an nsqlookupd: it has no partitions, no nodes and no settings of the topic"
        )
    entries: list[tuple[int | None, msgspec.Raw]] = [(int(n), raw) for n, raw in listed.items() if _is_number(n)]
    if is_plain:
        entries = [(None, raw) for raw in content.producers or ()]
    found = [(number, raw, _node(raw, is_plain=is_plain)) for number, raw in entries]
    note = _unusable_note([(number, raw) for number, raw, node in found if node is None])
    if is_plain:
        return LookupAnswer(lookupd, nodes=tuple(node for *_, node in found if node is not None), note=note)
    partitions = {number: node for number, _, node in found if number is not None and node is not None}
    if content.partitions is None:
        note = "no partition is listed, for example because writes are disabled"
    # With access "r", the answer for an unknown topic is a success with no partitions and the number 0.
    unknown = meta is not None and meta.partition_num == 0 and not partitions and not content.producers
    return LookupAnswer(
        lookupd,
        meta=_usable(meta),
        partitions=partitions,
        exists=not unknown,
        note="" if unknown else note,
        channels=_channels(content.channels),
    )


def decode_lookupd_list(body: Body, scheme: str) -> LookupdList:
    """Decode the answer to ``/listlookup``.

    Args:
        body: The answer.
        scheme: ``http`` or ``https``, as used for the request; the list does not name it.

    Raises:
        RemoteProtocolError: It is not such an answer.
    """
    if body.status == 404 or (body.status == 200 and body.data.strip() == b"null"):
        # An old server does not have the route; one without a coordinator has nothing to list.
        return LookupdList(leader=None, nodes=(), supported=False)
    content = decode_json(_accepted(body), _LookupdList)
    listed = (_lookupd_url(raw, scheme) for raw in content.lookupdnodes or ())
    leader = _lookupd_url(content.lookupdleader, scheme)
    nodes = dict.fromkeys(url for url in (*listed, leader) if url is not None)
    return LookupdList(leader=leader, nodes=tuple(nodes))


def decode_nodes(body: Body) -> tuple[NodeInfo, ...]:
    """Decode the answer to ``/nodes``.

    Raises:
        RemoteProtocolError: It is not such an answer.
    """
    found: list[NodeInfo] = []
    for raw in decode_json(_accepted(body), _Answer).producers or ():
        entry = try_json(bytes(raw), _Producer)
        node = _node(raw, is_plain=entry is not None and entry.partitions is None)
        if node is None or entry is None:
            continue
        partitions = {
            topic: tuple(sorted(int(n) for n in numbers or () if _is_number(n)))
            for topic, numbers in (entry.partitions or {}).items()
            if is_valid_name(topic)
        }
        topics = [topic for topic in entry.topics or () if is_valid_name(topic)]
        marks = zip(entry.topics or (), entry.tombstones or (), strict=False)
        tombstoned = frozenset(topic for topic, is_marked in marks if is_marked)
        hostname, version = entry.hostname[:MAX_TEXT], entry.version[:MAX_TEXT]
        found.append(NodeInfo(node, hostname, version, partitions, tuple(topics), tombstoned))
    return tuple(found)


def decode_topics(body: Body) -> tuple[TopicInfo, ...]:
    """Decode the answer to ``/topics?metaInfo=true``, sorted by name; a server without meta sends only names.

    Raises:
        RemoteProtocolError: It is not such an answer.
    """
    content = decode_json(_accepted(body), _Answer)
    found = {name: TopicInfo(name) for name in content.topics or () if is_valid_name(name)}
    for raw in content.meta_info or []:
        info = try_json(bytes(raw), _TopicInfo)
        if info is not None and is_valid_name(info.name):
            found[info.name] = TopicInfo(**msgspec.structs.asdict(info))
    return tuple(found[name] for name in sorted(found))


def decode_channels(body: Body) -> tuple[str, ...]:
    """Decode the answer to ``/channels``, sorted by name.

    Raises:
        RemoteProtocolError: It is not such an answer.
    """
    return _channels(decode_json(_accepted(body), _Answer).channels)


def is_host(text: str) -> bool:
    """Return whether ``text`` is a host name, or an IP address other than the unspecified one."""
    try:
        zone = text.partition("%")[2]  # of an IPv6 address: anything, as far as Python knows
        return not ipaddress.ip_address(text).is_unspecified and (not zone or _HOST_NAME.fullmatch(zone) is not None)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None and is_host_name(text)


def _channels(names: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(sorted({name for name in names or () if is_valid_name(name)}))


def _refused_lookup(body: Body, lookupd: str) -> LookupAnswer:
    text = body.message.lower()
    if body.status in (404, 500):
        if "topic_not_found" in text:  # only a plain one says so
            return LookupAnswer(lookupd, exists=False, note=NOT_CREATED, nodes=())
        if "key not found" in text:
            return LookupAnswer(lookupd, exists=False, note=NOT_CREATED)
        if "topic has no channel" in text:
            return LookupAnswer(lookupd, note=body.message)
    raise _unusable(body)


def _is_number(text: str) -> bool:
    """Return whether this is the number of a partition."""
    return _NUMBER.fullmatch(text) is not None and int(text) <= MAX_PARTITION_ID


def _accepted(body: Body) -> bytes:
    if body.status != 200:
        raise _unusable(body)
    return body.data


def _unusable(body: Body) -> RemoteProtocolError:
    if body.status != 404:
        return RemoteProtocolError(f"HTTP status {body.status}: {body.message}")
    said = f" ({body.message})" if body.message else ""
    return RemoteProtocolError(
        f"HTTP status 404{said}: this server does not know the request. Give the HTTP address of an nsqlookupd (port"
        " 4161 by default), not that of an nsqd"
    )


def _node(raw: msgspec.Raw, *, is_plain: bool = False) -> Node | None:
    peer = try_json(bytes(raw), _Peer)
    if peer is None or not is_host(peer.broadcast_address) or not is_port(peer.tcp_port):
        return None
    http_port = peer.http_port if is_port(peer.http_port) else 0
    return Node(peer.broadcast_address, peer.tcp_port, http_port, peer.distributed_id, is_plain=is_plain)


def _unusable_note(peers: Sequence[tuple[int | None, msgspec.Raw]]) -> str:
    """Describe the nsqds that ``_node`` refused, each with the partition that it leads; empty if there are none."""
    if not peers:
        return ""
    peer = try_json(bytes(peers[0][1]), _Peer)
    address = "that is missing" if peer is None else repr(f"{beginning(peer.broadcast_address, 100)}:{peer.tcp_port}")
    numbers = ", ".join(str(number) for number, _ in peers[:10] if number is not None)
    leads = f" that leads partition {numbers}" if numbers else ""
    return f"an nsqd{leads} has an address {address}, which is not valid: set nsqd's -broadcast-address"


def _usable(meta: TopicMeta | None) -> TopicMeta | None:
    if meta is None or not 1 <= meta.partition_num <= MAX_PARTITION_ID + 1:
        return None
    return dataclasses.replace(meta, is_partitioned=True)  # a server has no say in this


def _lookupd_url(raw: msgspec.Raw, scheme: str) -> str | None:
    entry = try_json(bytes(raw), _Lookupd)
    if entry is None or not is_host(entry.node_ip):
        return None
    port = str(entry.http_port)
    if not _NUMBER.fullmatch(port) or not is_port(int(port)):
        return None
    host = f"[{entry.node_ip}]" if ":" in entry.node_ip else entry.node_ip
    return f"{scheme}://{host}:{port}"
