"""One upstream nsqlookupd: its process, its ports and its memory.

It answers HTTP, and real nsqds can register at its TCP port. The embedded nsqds
register without a socket (see ``plain_control``).

Source: nsqio/nsq ``nsqlookupd/lookup_protocol_v1.go``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Self

import msgspec

from nsq_ha.checks import is_valid_name
from nsq_ha.devcluster.control.registrations import Peer, Registrations
from nsq_ha.devcluster.host import PLAIN_VERSION, Node
from nsq_ha.devcluster.ports import HOST, Accepted, Listener, WebServer

if TYPE_CHECKING:
    import asyncio

    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.security import App

_MAGIC: Final = b"  V1"
_MAX_BODY: Final = 1 << 20
_MAX_LINE: Final = 4096
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class _Identify(msgspec.Struct):
    broadcast_address: Annotated[str, msgspec.Meta(min_length=1)]
    tcp_port: _Port
    http_port: _Port
    version: Annotated[str, msgspec.Meta(min_length=1)]
    hostname: str = ""


class PlainNsqlookupd(Node):
    """One upstream nsqlookupd.

    Args:
        name: Its name in controls, ``nsqlookupd-0``.
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        ports: The ports of its TCP and its HTTP, 0 for free ones.

    Attributes:
        known: What it knows.
        requests: Number of lookups that it answered; tests of clients check it.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self, name: str, host: Host, app: Callable[[PlainNsqlookupd], App], ports: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(name, host)
        self.known: Registrations = Registrations(host.now, host.timing.scale)
        self.requests = 0
        self.tcp_port: int = self._reserve(
            lambda: Listener[_LookupSession](lambda others: _LookupSession(self, others), ports[0])
        ).port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, ports[1])).port

    def start(self) -> None:
        """Start the process; it knows nothing until the nsqds register."""
        super().start()
        self.known.clear()

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self.known.clear()


class _LookupSession(Accepted):
    """The connection of a real nsqd: IDENTIFY, REGISTER, UNREGISTER and PING.

    Args:
        lookupd: The nsqlookupd.
        connections: The open connections of the port.
    """

    def __init__(self, lookupd: PlainNsqlookupd, connections: set[Self]) -> None:
        super().__init__(lookupd, connections)
        self._lookupd = lookupd
        self._buffer = bytearray()
        self._began = False
        self._identifies = False  # the body of IDENTIFY comes next
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
        self._buffer += data
        while self._transport is not None and not self._transport.is_closing() and self._step():
            pass

    # ------------------------------------------------------------ commands

    def _step(self) -> bool:
        """Execute one command; return False if it is not complete."""
        if not self._began:
            return self._begin()
        if self._identifies:
            return self._identify()
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > _MAX_LINE:
                self.abort()
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._execute(line.strip().decode("utf-8", "replace").split(" "))
        return True

    def _begin(self) -> bool:
        if len(self._buffer) < len(_MAGIC):
            return False
        if self._buffer[:4] != _MAGIC:
            self._fail("E_BAD_PROTOCOL")
        del self._buffer[:4]
        self._began = True
        return True

    def _execute(self, words: list[str]) -> None:
        word = words[0]
        if word == "PING":
            if self._peer is not None:
                self._peer.seen = self._lookupd.known.now()
            self._answer(b"OK")
        elif word == "IDENTIFY":
            if self._peer is not None:
                self._fail("E_INVALID cannot IDENTIFY again")
            self._identifies = True
        elif word in ("REGISTER", "UNREGISTER"):
            self._register(word, words[1:])
        else:
            self._fail(f"E_INVALID invalid command {word}")

    def _identify(self) -> bool:
        if len(self._buffer) < 4:
            return False
        size = int.from_bytes(self._buffer[:4], "big", signed=True)
        if not 0 <= size <= _MAX_BODY:  # the real one reads any size
            self.abort()
            return False
        if len(self._buffer) < 4 + size:
            return False
        body = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        self._identifies = False
        try:
            said = msgspec.json.decode(body, type=_Identify)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            # The real one tells JSON that it cannot read from JSON that lacks a field.
            self._fail("E_BAD_BODY IDENTIFY missing fields")
            return False
        known = self._lookupd.known
        self._peer = Peer(
            self._address,
            said.hostname,
            said.broadcast_address,
            said.tcp_port,
            said.http_port,
            said.version,
            known.now(),
        )
        known.peers.append(self._peer)
        answer = {
            "broadcast_address": HOST,
            "hostname": socket.gethostname(),
            "http_port": self._lookupd.http_port,
            "tcp_port": self._lookupd.tcp_port,
            "version": PLAIN_VERSION,
        }
        self._answer(msgspec.json.encode(answer))
        return True

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
