"""One upstream nsqlookupd: its process, its ports and its memory.

It answers HTTP, and real nsqds can register at its TCP port. The embedded nsqds
register without a socket (see ``plain_control``). Topics and channels stay when the last nsqd goes; only ephemeral
ones go with it.

Source: nsqio/nsq ``nsqlookupd/registration_db.go``, ``lookup_protocol_v1.go``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec

from nsq_ha.base.shapes import decoder
from nsq_ha.devcluster.host import PLAIN_VERSION, Host
from nsq_ha.devcluster.nodes import HOST, Accepted, ClusterNode, Listener, WebServer
from nsq_ha.devcluster.storage.log import is_ephemeral
from nsq_ha.options.checks import is_valid_name
from nsq_ha.protocol.server.stream import Limits, StreamDecoder

if TYPE_CHECKING:
    import asyncio

    from nsq_ha.devcluster.security import App

_MAX_BODY: Final = 1 << 20
_MAX_LINE: Final = 4096
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


INACTIVE_AFTER: Final = 300.0
"""Seconds without a PING after which lookups leave an nsqd out (``-inactive-producer-timeout``)."""
TOMBSTONE_LIFETIME: Final = 45.0
"""Seconds for which a tombstone hides an nsqd from the lookups of a topic (``-tombstone-lifetime``)."""


class Peer(msgspec.Struct, eq=False):
    """An nsqd as it describes itself in IDENTIFY.

    Attributes:
        broadcast_address: Where clients reach it.
        tcp_port: Port of its TCP.
        http_port: Port of its HTTP.
        version: Its version.
        hostname: Name of its machine.
        remote_address: Its end of the connection.
        seen: Time of its last PING.
    """

    broadcast_address: Annotated[str, msgspec.Meta(min_length=1)]
    tcp_port: _Port
    http_port: _Port
    version: Annotated[str, msgspec.Meta(min_length=1)]
    hostname: str = ""
    remote_address: str = ""
    seen: float = 0.0


Key = tuple[str, str]
"""Topic and channel; the channel is empty for the topic itself."""


@dataclass(slots=True, eq=False)
class Registrations:
    """The memory of one nsqlookupd.

    Attributes:
        peers: All nsqds that are connected.
        entries: The nsqds of each topic and channel, and when each got a tombstone there.
        now: Returns the time.
        factor: Factor of the server's own times.
    """

    now: Callable[[], float]
    factor: float
    peers: list[Peer] = field(default_factory=list)
    entries: dict[Key, dict[Peer, float | None]] = field(default_factory=dict)

    def add(self, topic: str, channel: str = "", peer: Peer | None = None) -> None:
        """Add a topic, a channel of it if it is not empty, and the nsqd that has them."""
        for key in {(topic, channel), (topic, "")}:
            peers = self.entries.setdefault(key, {})
            if peer is not None:
                peers.setdefault(peer, None)

    def remove(self, topic: str, channel: str, peer: Peer) -> None:
        """Remove an nsqd from a channel, or from a topic and all its channels if ``channel`` is empty."""
        keys = [(topic, channel)] if channel else [key for key in self.entries if key[0] == topic]
        for key in keys:
            peers = self.entries.get(key, {})
            peers.pop(peer, None)
            if not peers and is_ephemeral(key[1] or key[0]) and key[1] == channel:
                self.entries.pop(key, None)

    def forget(self, topic: str, channel: str = "") -> bool:
        """Delete a channel, or a topic and all its channels; return whether there was one."""
        keys = [key for key in self.entries if key == (topic, channel) or (key[0] == topic and not channel)]
        for key in keys:
            del self.entries[key]
        return bool(keys)

    def disconnected(self, peer: Peer) -> None:
        """Remove an nsqd from everything."""
        if peer in self.peers:
            self.peers.remove(peer)
        for peers in self.entries.values():
            peers.pop(peer, None)

    def clear(self) -> None:
        """Forget everything, as a process that ends."""
        self.peers.clear()
        self.entries.clear()

    # ------------------------------------------------------------ questions

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return [topic for topic, channel in self.entries if not channel]

    def channels(self, topic: str) -> list[str]:
        """Return the names of a topic's channels."""
        return [channel for name, channel in self.entries if name == topic and channel]

    def producers(self, topic: str) -> list[Peer] | None:
        """Return the active nsqds of a topic without those that have a tombstone; None for an unknown topic."""
        peers = self.entries.get((topic, ""))
        if peers is None:
            return None
        return [peer for peer in peers if self._is_active(peer) and not self.is_tombstoned(topic, peer)]

    def nodes(self) -> list[Peer]:
        """Return the active nsqds."""
        return [peer for peer in self.peers if self._is_active(peer)]

    def topics_of(self, peer: Peer) -> list[str]:
        """Return the topics of an nsqd."""
        return [topic for (topic, channel), peers in self.entries.items() if not channel and peer in peers]

    def tombstone(self, topic: str, node: str) -> None:
        """Mark an nsqd, given as ``broadcast_address:http_port``, so that lookups of a topic leave it out."""
        peers = self.entries.get((topic, ""), {})
        for peer in peers:
            if f"{peer.broadcast_address}:{peer.http_port}" == node:
                peers[peer] = self.now()

    def is_tombstoned(self, topic: str, peer: Peer) -> bool:
        """Return whether an nsqd has a tombstone for a topic."""
        marked = self.entries.get((topic, ""), {}).get(peer)
        return marked is not None and self.now() - marked < TOMBSTONE_LIFETIME * self.factor

    def _is_active(self, peer: Peer) -> bool:
        return self.now() - peer.seen <= INACTIVE_AFTER * self.factor


class PlainNsqlookupd(ClusterNode):
    """One upstream nsqlookupd.

    Args:
        name: Its name in controls, ``nsqlookupd-0``.
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        port: The port of its HTTP, one above that of its TCP, as 4161 and 4160 are; 0 for free ones.

    Attributes:
        known: What it knows.
        requests: Number of lookups that it answered; tests of clients check it.

    Raises:
        OSError: A port is taken.
    """

    def __init__(self, name: str, host: Host, app: Callable[[PlainNsqlookupd], App], port: int = 0) -> None:
        super().__init__(name, host)
        self.known: Registrations = Registrations(host.now, host.timing.scale)
        self.requests = 0
        self.tcp_port: int = self._reserve(
            lambda: Listener[_LookupSession](lambda others: _LookupSession(self, others), port and port - 1)
        ).port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, port)).port

    def start(self) -> None:
        """Start the process; it knows nothing until the nsqds register."""
        super().start()
        self.known.clear()

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self.known.clear()


class _LookupDecoder(StreamDecoder[list[str] | bytes]):
    """Reads the words of each line, and after those of IDENTIFY its body."""

    magic = b"  V1"

    def __init__(self) -> None:
        super().__init__(Limits(max_line_bytes=_MAX_LINE, max_body_bytes=_MAX_BODY))

    def _run(self) -> Generator[list[str] | bytes | None, None, None]:
        while (length := (yield from self._find_end(0))) is not None:
            words = (yield from self._take(length)).strip().decode("utf-8", "replace").split(" ")
            yield words
            if words[0] == "IDENTIFY":
                size = yield from self._take_size()
                if not 0 <= size <= self._limits.max_body_bytes:  # the real one reads any size
                    return
                yield (yield from self._take(size))


class _LookupSession(Accepted):
    """The connection of a real nsqd: IDENTIFY, REGISTER, UNREGISTER and PING.

    Args:
        lookupd: The nsqlookupd.
        connections: The open connections of the port.
    """

    def __init__(self, lookupd: PlainNsqlookupd, connections: set[Self]) -> None:
        super().__init__(lookupd, connections)
        self._lookupd = lookupd
        self._decoder = _LookupDecoder()
        self._peer: Peer | None = None
        self._address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the port."""
        host, port = transport.get_extra_info("peername")[:2]
        self._address = f"{host}:{port}"
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the nsqd."""
        super().connection_lost(exc)
        if self._peer is not None:
            self._lookupd.known.disconnected(self._peer)

    def data_received(self, data: bytes) -> None:
        """Execute the complete commands."""
        self._decoder.feed(data)
        while self._transport is not None and not self._transport.is_closing():
            event = self._decoder.next_event()
            if event is None:
                return
            if isinstance(event, bytes):
                self._identify(event)
            elif isinstance(event, list):
                self._execute(event)
            elif event.data:
                self._fail(event.data.decode())
            else:
                self.abort()

    # ------------------------------------------------------------ commands

    def _execute(self, words: list[str]) -> None:
        word = words[0]
        if word == "PING":
            if self._peer is not None:
                self._peer.seen = self._lookupd.known.now()
            self._answer(b"OK")
        elif word == "IDENTIFY":
            if self._peer is not None:
                self._fail("E_INVALID cannot IDENTIFY again")
        elif word in ("REGISTER", "UNREGISTER"):
            self._register(word, words[1:])
        else:
            self._fail(f"E_INVALID invalid command {word}")

    def _identify(self, body: bytes) -> None:
        try:
            peer: Peer = decoder(Peer).decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # The real one tells JSON that it cannot read from JSON that lacks a field.
            self._fail("E_BAD_BODY IDENTIFY missing fields")
            return
        peer.remote_address, peer.seen = self._address, self._lookupd.known.now()
        self._lookupd.known.peers.append(peer)
        self._peer = peer
        answer = {
            "broadcast_address": HOST,
            "hostname": socket.gethostname(),
            "http_port": self._lookupd.http_port,
            "tcp_port": self._lookupd.tcp_port,
            "version": PLAIN_VERSION,
        }
        self._answer(msgspec.json.encode(answer))

    def _register(self, word: str, words: list[str]) -> None:
        if self._peer is None:
            self._fail("E_INVALID client must IDENTIFY")
            return
        if not words:
            self._fail(f"E_INVALID {word} insufficient number of params")
            return
        topic, channel = words[0], words[1] if len(words) > 1 else ""
        if not is_valid_name(topic):
            self._fail(f"E_BAD_TOPIC {word} topic name '{topic}' is not valid")
        elif channel and not is_valid_name(channel):
            self._fail(f"E_BAD_CHANNEL {word} channel name '{channel}' is not valid")
        else:
            if word == "REGISTER":
                self._lookupd.known.add(topic, channel, self._peer)
            else:
                self._lookupd.known.remove(topic, channel, self._peer)
            self._answer(b"OK")

    def _answer(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(len(data).to_bytes(4, "big") + data)

    def _fail(self, text: str) -> None:
        self._answer(text.encode())
        if self._transport is not None:
            self._transport.close()
