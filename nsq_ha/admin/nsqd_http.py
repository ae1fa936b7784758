"""A client of one nsqd's HTTP, for partitions, channels and stored messages.

Most requests must go to the partition's leader; another node refuses them. The
caller finds the leader.

An nsqd that runs with ``-tls-required`` refuses plain HTTP, and nsqlookupd does not know the port of its HTTPS. A plain
nsqd names it in the refusal. The partitioned one does not; there it is taken to be the port after that of HTTP, as in
nsqd's defaults (4151 and 4152).

The invariant: no certificate goes unverified that ``tls`` wants verified, and nothing is sent by HTTPS that plain HTTP
accepts.

Source: server protocol 12; Spark design 1.1, 1.2; youzan/nsq ``nsqdserver/http.go``; upstream ``nsqd/http.go``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from nsq_ha.admin.description import Stats, node_stats, partition_stats, unfinished_of
from nsq_ha.engine.body import Body, Int64, decode_json, decoded
from nsq_ha.engine.http import HttpPeer, ask, new_client
from nsq_ha.errors import (
    ChannelNotRegisteredError,
    ConnectError,
    InvalidCommandError,
    RemoteProtocolError,
    ServerError,
    TlsRequiredError,
    TransportError,
    server_error,
)
from nsq_ha.options.checks import MAX_INT64, MAX_PARTITION_ID, check_channel, check_partition, check_topic, is_port
from nsq_ha.policy.topology import Node

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    import httpx

    from nsq_ha.admin.description import NodeStats, PartitionStats, Unfinished
    from nsq_ha.options.start_from import StartFrom
    from nsq_ha.options.types import TlsConfig


T = TypeVar("T")

Search = Literal["id", "count", "virtual_offset"]
"""How ``/message/get`` finds a message: internal id, number counted from 1, byte offset."""

ChannelAction = Literal["create", "delete", "pause", "unpause", "skip", "unskip", "empty"]
"""A change of a channel; each has a route of its name. Plain nsqds cannot skip."""

TopicAction = Literal["delete", "pause", "unpause", "empty"]
"""A change of a topic of a plain nsqd; each has a route of its name."""

EMPTY_LOG: Final = "commit log end of file"
"""Error text for a search in a partition without messages; a SUB with a start position gets it, too."""
_NOT_READABLE: Final = ("overflowed", "INTERNAL_ERROR", EMPTY_LOG, "search commit log data not found")
"""Parts of the error texts of ``/message/get`` if a message does not exist or is not flushed yet."""

_STEPS: Final = 3
"""Numbers to try for a message whose id the server does not find; more than one only if ids are missing between."""
NO_CHANNEL: Final = "CHANNEL_NOT_FOUND"
"""Part of the error text for a channel that the partition does not have."""
_BAD_START: Final = ("Invalid timestamp", "invalid consume offset", "not supported offset type", "Not supported while")
"""How texts begin that refuse a start position permanently; errors of SUB have the code E_INVALID before them."""


class _Info(msgspec.Struct):
    tcp_port: int


class _Replica(msgspec.Struct):
    node_id: str


class _Coordinated(msgspec.Struct):
    name: str
    partition: int
    isr_stats: list[_Replica] | None = None
    catchup_stats: list[_Replica] | None = None


class _Coordination(msgspec.Struct):
    topic_coord_stats: list[_Coordinated] | None = None


class _Stored(msgspec.Struct):
    """Has its fields in the order of :class:`StoredMessage`."""

    id: int
    trace_id: int
    timestamp: Int64
    offset: Int64
    queue_cnt_index: Int64
    body: str = ""
    ext: str = ""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message found in a partition's queue.

    Attributes:
        internal_id: The server's id.
        trace_id: 0 if it has none.
        timestamp_ns: Time of the publish by the server's clock.
        offset: Its position in bytes.
        number: Its number in the partition; the first message has 1.
        body: The body as text; the server damages bodies that are not UTF-8.
        headers: The extension header as text; empty if there is none.
    """

    internal_id: int
    trace_id: int
    timestamp_ns: int
    offset: int
    number: int
    body: str
    headers: str


class NsqdHttp(HttpPeer):
    """Asks one nsqd. Use it as an async context manager, or call :meth:`aclose`.

    Every method raises :class:`TransportError` or :class:`RemoteProtocolError` if the
    node gives no usable answer (a change may have been made; repeating it is harmless),
    and :class:`ServerError` if it refuses: if ``stale_leader`` is set, look up the
    leader again.

    Args:
        node: The node, or the base URL of its HTTP.
        timeout: Seconds for one request, from connecting to the end of the answer.
        client: An HTTP client to share. None creates a private one.
        local_addr: Host of the source address, without ``client``. None lets the system choose.
        https: Asked if the node refuses plain HTTP. None raises :class:`TlsRequiredError` then.
    """

    def __init__(
        self,
        node: Node | str,
        *,
        timeout: float = 1.0,
        client: httpx.AsyncClient | None = None,
        local_addr: str | None = None,
        https: Https | None = None,
    ) -> None:
        self._https = https
        self.url: str = node.http_url if isinstance(node, Node) else node.rstrip("/")
        super().__init__(self.url, timeout=timeout, client=client, local_addr=local_addr)

    async def stats(
        self, topic: str | None = None, *, channel: str | None = None, leader_only: bool = False, clients: bool = False
    ) -> tuple[PartitionStats, ...]:
        """Return the partitions of this node, sorted by topic and number; a plain nsqd has one for each topic.

        Args:
            topic: Return only partitions of this topic. None for all.
            channel: Return no other channel of partitions that have this one. None for all channels.
            leader_only: Return only partitions that the node leads.
            clients: Return the clients of the channels, too.
        """
        return await self._stats(partition_stats, topic, channel, leader_only=leader_only, clients=clients)

    async def node_stats(
        self, node: Node, topic: str | None = None, *, channel: str | None = None, clients: bool = False
    ) -> NodeStats:
        """Return :meth:`stats` with what the node says of itself; ``node`` has its addresses."""
        return await self._stats(partial(node_stats, node=node), topic, channel, leader_only=False, clients=clients)

    async def _stats(
        self, read: Callable[[Stats], T], topic: str | None, channel: str | None, *, leader_only: bool, clients: bool
    ) -> T:
        wants_clients = str(clients).lower()
        params = {"format": "json", "needClients": wants_clients, "leaderOnly": str(leader_only).lower()}
        params |= {"include_clients": wants_clients, "include_mem": "false"}  # for plain nsqds
        if topic is not None:
            params["topic"] = check_topic(topic)
        if channel is not None:
            params["channel"] = check_channel(channel)
        return await self._decoded("/stats", params, lambda body: read(decode_json(body.data, Stats)))

    async def _decoded(self, path: str, params: dict[str, str], read: Callable[[Body], T]) -> T:
        return await decoded(Body(200, await self.request("GET", path, params)), read)

    async def unfinished(self, topic: str, channel: str) -> Unfinished | None:
        """Return the messages that a channel still has to deliver; works with upstream nsqds, too.

        Returns:
            The counts. None if the node does not have the channel.
        """
        read = partial(unfinished_of, topic=topic, channel=channel)
        return await self._stats(read, topic, channel, leader_only=True, clients=True)

    async def tcp_port(self) -> int:
        """Return the node's TCP port."""
        return decode_json(await self.request("GET", "/info", {}), _Info).tcp_port

    async def replicas(self, topic: str, partition: int) -> tuple[str, ...]:
        """Return the cluster's names of the in-sync nodes; none if this node does not hold the partition."""
        return next((in_sync for number, in_sync, _ in await self.members(topic, partition) if number == partition), ())

    async def members(
        self, topic: str, partition: int | None = None
    ) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
        """Return the partitions of a topic that this node holds, or one of them.

        Returns:
            For each its number, and the cluster's names of the nodes in sync, and of those that are not: dead ones, and
            those that catch up.
        """
        params = {"topic": check_topic(topic)}
        if partition is not None:
            params["partition"] = str(check_partition(partition))
        return await self._decoded("/coordinator/stats", params, partial(_members_of, topic=topic))

    async def change_topic(self, action: TopicAction, topic: str) -> None:
        """Change a topic of a plain nsqd."""
        await self.request("POST", f"/topic/{action}", {"topic": check_topic(topic)})

    async def change_channel(self, action: ChannelAction, topic: str, partition: int | None, channel: str) -> None:
        """Change a channel of the partition (None on a plain nsqd); one that exists is not created again."""
        await self.request("POST", f"/channel/{action}", _place(topic, partition, channel))

    async def set_offset(self, topic: str, partition: int, channel: str, start: StartFrom | str) -> None:
        """Move an existing channel of the partition to another position, for all clients that read it, too.

        Args:
            topic: The topic.
            partition: The partition.
            channel: The channel.
            start: The position, or its wire form, such as ``virtual_queue:0``.

        Raises:
            InvalidCommandError: The server does not support this position.
        """
        try:
            await self.request("POST", "/channel/setoffset", _place(topic, partition, channel), str(start).encode())
        except ServerError as error:
            if str(error).startswith(_BAD_START):
                raise InvalidCommandError("E_INVALID", str(error)) from error
            raise

    async def start_channel_from(self, topic: str, partition: int, channel: str, start: StartFrom | str) -> None:
        """Create a channel and move it to ``start``, before any client subscribes.

        If only registered channels are allowed, the server refuses to create even a
        registered channel that exists; but it can be moved.

        On an empty partition the server refuses every position; but there the new
        channel is already at the right one.
        """
        refusal: ChannelNotRegisteredError | None = None
        try:
            await self.change_channel("create", topic, partition, channel)
        except ChannelNotRegisteredError as error:
            refusal = error
        try:
            await self.set_offset(topic, partition, channel, start)
        except ServerError as error:
            if refusal is not None and NO_CHANNEL in str(error).upper():
                raise refusal from error
            if EMPTY_LOG not in str(error):
                raise

    async def finish(self, topic: str, partition: int, channel: str, internal_id: int) -> None:
        """Finish a message of a channel that is in flight, whoever has it."""
        params = _place(topic, partition, channel) | {"msgid": str(internal_id)}
        await self.request("POST", "/message/finish", params)

    async def set_order(self, topic: str, partition: int, channel: str, *, ordered: bool) -> None:
        """Switch a channel of the partition to ordered delivery or back."""
        await self.request(
            "POST", "/channel/setorder", _place(topic, partition, channel) | {"order": str(ordered).lower()}
        )

    async def message_get(self, topic: str, partition: int, mode: Search, position: int) -> StoredMessage | None:
        """Find one stored message. Use it for positions, since binary bodies are damaged.

        The server finds only committed and flushed messages, which may take some
        seconds after the publish. For a newer message it answers status 200 with
        the first message of the queue, or 500, or 404. So an answer counts only
        if it is the requested message. For the ``id`` of a message inside an MPUB
        it answers with the first message of that batch; the other ones are found
        by number.

        Returns:
            The message. None if it cannot be read: it is not flushed yet, was
            cleaned up, or is beyond the end.

        Source: youzan/nsq nsqdserver/http.go (doMessageGet), which ignores that its seek failed.
        """
        stored = await self._stored(topic, partition, mode, position)
        if mode == "id" and stored is not None and stored.id != position:
            stored = await self._beside(topic, partition, position, stored)
        if stored is None or not _is_answer(mode, position, stored):
            return None
        return StoredMessage(*msgspec.structs.astuple(stored))

    async def _stored(self, topic: str, partition: int, mode: Search, position: int) -> _Stored | None:
        """Return what the server answers, which may be another message."""
        params = {
            "topic": check_topic(topic),
            "partition": str(check_partition(partition)),
            "search_mode": mode,
            "search_pos": str(position),
            "needext": "true",
        }
        try:
            return decode_json(await self.request("GET", "/message/get", params), _Stored)
        except ServerError as error:
            if any(text in str(error) for text in _NOT_READABLE):
                return None
            raise

    async def _beside(self, topic: str, partition: int, wanted: int, known: _Stored) -> _Stored | None:
        """Return the message with the id ``wanted``, by its number; ids and numbers of a batch count up together."""
        for _ in range(_STEPS):
            number = known.queue_cnt_index + wanted - known.id
            if not 0 < number <= MAX_INT64:
                return None
            found = await self._stored(topic, partition, "count", number)
            if found is None or found.id == wanted or found.queue_cnt_index != number:
                return found
            known = found
        return None

    async def clock(self) -> float | None:
        """Return the node's time in whole seconds since 1970. None if the answer has no time."""
        return (await self._exchange("GET", "/ping")).clock

    async def request(self, method: str, path: str, params: dict[str, str], content: bytes | None = None) -> bytes:
        """Send any request, and return the content of the answer."""
        try:
            body = await self._answer(method, path, params, content)
        except (TransportError, RemoteProtocolError) as error:
            raise type(error)(f"nsqd {self.url}: {error}") from error
        if body.status == 200:
            return body.data
        if refuses_http(body):
            raise TlsRequiredError("", _refusal(self.url))
        if body.status == 403 and "not registered" in body.message:
            raise ChannelNotRegisteredError("", body.message)
        raise server_error((body.message or f"HTTP status {body.status}").encode())

    async def _answer(self, method: str, path: str, params: dict[str, str], content: bytes | None) -> Body:
        https, refusal = self._https, None
        if https is None or not https.is_known(self.url):
            refusal = await self._exchange(method, path, params, content)
            if https is None or not refuses_http(refusal):
                return refusal

        def send(client: httpx.AsyncClient, base: str) -> Awaitable[Body]:
            return ask(client, method, base + path, timeout=self._timeout, params=params, content=content)

        return await https.ask(self.url, refusal, send)


def _members_of(body: Body, topic: str) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    found = {
        entry.partition: (entry.partition, _names(entry.isr_stats), _names(entry.catchup_stats))
        for entry in decode_json(body.data, _Coordination).topic_coord_stats or []
        if entry.name == topic and 0 <= entry.partition <= MAX_PARTITION_ID
    }
    return list(found.values())


def _names(replicas: list[_Replica] | None) -> tuple[str, ...]:
    return tuple(each.node_id for each in replicas or ())


def _is_answer(mode: Search, position: int, stored: _Stored) -> bool:
    """Return whether ``stored`` is the requested message."""
    if mode == "count":
        return stored.queue_cnt_index == position
    if mode == "id":
        return stored.id == position
    return stored.offset >= position


def _place(topic: str, partition: int | None, channel: str) -> dict[str, str]:
    place = {"topic": check_topic(topic), "channel": check_channel(channel)}
    return place if partition is None else place | {"partition": str(check_partition(partition))}


_ADVICE: Final = (
    "Give tls= with what this nsqd's HTTPS needs, let it listen there (-https-address), or let it accept plain HTTP"
    " (-tls-required=tcp-https)"
)


def refuses_http(body: Body) -> bool:
    """Return whether an answer says that nsqd takes HTTPS only."""
    return body.status == 403 and body.message == "TLS_REQUIRED"


class Https:
    """The HTTPS of all nsqds of a cluster.

    Args:
        tls: The option ``tls``. None trusts the system's authorities.
    """

    def __init__(self, tls: TlsConfig | ssl.SSLContext | None) -> None:
        self._tls = tls
        self._client: httpx.AsyncClient | None = None
        self._urls: dict[str, str] = {}  # those that have answered, by the base URLs of plain HTTP

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def is_known(self, url: str) -> bool:
        """Return whether the nsqd with this base URL of plain HTTP has answered by HTTPS."""
        return url in self._urls

    async def ask(
        self, url: str, refusal: Body | None, send: Callable[[httpx.AsyncClient, str], Awaitable[Body]]
    ) -> Body:
        """Send one request.

        Args:
            url: Base URL of the nsqd's plain HTTP.
            refusal: Its refusal of the request. None if it :meth:`is_known`.
            send: Sends the request by a client to a base URL.

        Raises:
            TlsRequiredError: Its HTTPS has never answered; the text says what to set.
            TransportError: It did not answer.
            RemoteProtocolError: The answer is not valid.
        """
        base = self._urls.get(url) if refusal is None else _https_url(url, refusal.https_port)
        if base is None:
            raise TlsRequiredError("", f"{_refusal(url)}, and says that it has no HTTPS. {_ADVICE}")
        if self._client is None:
            self._client = new_client([base], self._tls)
        try:
            body = await send(self._client, base)
        except (TransportError, RemoteProtocolError) as error:
            # The client of HTTPS is made like that of an nsqlookupd.
            text = str(error).replace("lookupd_tls", "tls")
            if refusal is not None:
                raise TlsRequiredError(
                    "", f"{_refusal(url)}, and its HTTPS cannot be used: {base}: {text}. {_ADVICE}"
                ) from error
            if isinstance(error, ConnectError):
                self._urls.pop(url, None)  # it may have been started again without -tls-required
            raise type(error)(text) from error
        self._urls[url] = base
        return body


def _refusal(url: str) -> str:
    return f"nsqd {url} refuses plain HTTP because it runs with -tls-required"


def _https_url(url: str, port: int | None) -> str | None:
    parts = urlsplit(url)
    if port is None:
        port = (parts.port or 0) + 1
    host = parts.netloc.rpartition(":")[0]
    return f"https://{host}:{port}" if is_port(port) else None
