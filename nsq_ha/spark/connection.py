"""Blocking connections to nsqds, one layer above the other.

:class:`Wire` is TCP and TLS. :class:`BlockingConnection` adds IDENTIFY, compression and AUTH,
:class:`BlockingSubscription` a channel, whose RDY follows the size of the messages.

This module does not decide what to send (``read.range_reader``, ``write.partition_writer``,
``ack.puller``) or what follows a failure. The partitioned nsqd can write to a TLS
connection for a short time only, so the owner closes the connection in time and opens
another one (``policy.tls_renewal``). It is blocking, because Spark's tasks are plain
functions in their own processes.

**Source:** server protocol 3, 4.
"""

from __future__ import annotations

import math
import random
import socket
import time
from typing import TYPE_CHECKING, Final, TypeVar

from nsq_ha._version import __version__
from nsq_ha.engine.tls import ssl_context, trust_hint
from nsq_ha.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    NotInFlightError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.options.types import TlsConfig
from nsq_ha.policy.tls_renewal import Lifetime, Phase
from nsq_ha.protocol import ClientProtocol, Offer, Ready
from nsq_ha.protocol.encoding import NOP, encode_fins
from nsq_ha.protocol.handshake import Advice, Handshake, Send, StartCodec, StartTls
from nsq_ha.spark.options.names import in_tls_options

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.protocol import Command, Identity, Layout, Received, Sub, SubAdvanced, SubOrdered
    from nsq_ha.protocol.compression import Codec
    from nsq_ha.spark.options import ConnectionOptions

READ_BYTES: Final = 256 * 1024
"""Maximum bytes of one read from the socket."""

CONNECT_TIMEOUT: Final = 2.0
"""Seconds from connecting to the last answer of the handshake."""

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Limit of unfinished messages in bytes; RDY follows from it and the largest message so far."""

FIRST_READY: Final = 32  # times the largest message (1 MiB): IN_FLIGHT_BYTES, until the sizes are known
_OUTPUT_BUFFER_BYTES: Final = 64 * 1024
_NO_OUTPUT_BUFFER: Final = -1  # on the wire; with a timeout of -1 instead, nsqd never sends a buffer that is not full
_DEFLATE_LEVEL: Final = 6
_LONGEST_BLOCK: Final = 0.1  # seconds beyond a limit for the rest of a block that has begun
_SEND_TIMEOUT: Final = 10.0  # for all bytes of a batch, as for its answer
_SEND_BYTES: Final = 64 * 1024
_MESSAGE_BYTES: Final = 500  # beside its body
_LEAST_WAIT: Final = 0.001  # 0 would be another mode of the socket, with other errors
_ADVICE: Final = Advice(
    no_tls="turn TLS on at the nsqd, or set tls=false",
    no_secret="set option 'authSecret'",  # noqa: S106 - a text
)


T = TypeVar("T")


class ConnectionExpiredError(ConnectionLostError):
    """The nsqd can no longer write to this TLS connection; open another one."""


class Wire:
    """A TCP connection whose errors are those of this library. :meth:`connect` first; :meth:`close` last.

    Args:
        host: Host name or IP address.
        port: The port.
        name: The other side, for error messages.
    """

    def __init__(self, host: str, port: int, name: str) -> None:
        self._address = host, port
        self._name = name
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        """Connect.

        Raises:
            ConnectError: That failed.
        """
        try:
            self._socket = socket.create_connection(self._address, CONNECT_TIMEOUT)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError, OverflowError) as error:
            # A resolver raises the latter two for invalid names and ports.
            raise ConnectError(f"cannot connect to {self._name}: {error}") from error

    def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Go on with TLS.

        Raises:
            ConnectError: That failed.
        """
        try:
            self._socket = context.wrap_socket(self._connected(), server_hostname=server_name)
        except (OSError, ValueError, TypeError) as error:  # ssl raises the latter two for names that it rejects
            raise ConnectError(f"TLS with {self._name} failed: {error}{in_tls_options(trust_hint(error))}") from error

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, data: bytes, until: float = math.inf) -> None:
        """Send all of ``data``; a large batch may take longer than the other side is silent.

        Raises:
            ConnectionLostError: The connection was lost, or some was not sent before ``until`` (``time.monotonic()``).
        """
        until = min(until, time.monotonic() + _SEND_TIMEOUT)
        connection, rest = self._connected(), memoryview(data)
        try:
            # In parts: ``sendall`` has one limit for the whole, and so has ``send`` with TLS.
            connection.settimeout(CONNECT_TIMEOUT)
            while rest:
                rest = rest[connection.send(rest[:_SEND_BYTES]) :]
                if rest and time.monotonic() > until:
                    raise TimeoutError(f"{len(rest)} of {len(data)} bytes were not sent in time")
        except OSError as error:
            raise ConnectionLostError(f"connection to {self._name} lost: {error}") from error

    def receive(self, wait: float) -> bytes:
        """Wait for data.

        Raises:
            ResponseTimeoutError: There was none for so many seconds.
            ConnectionLostError: The connection ended.
        """
        return self._received(wait, lambda connection: connection.recv(READ_BYTES))

    def receive_into(self, part: memoryview, wait: float) -> int:
        """Wait for data, write it there and return its size; raises as :meth:`receive`."""
        return self._received(wait, lambda connection: connection.recv_into(part))

    def _received(self, wait: float, receive: Callable[[socket.socket], T]) -> T:
        try:
            connection = self._connected()
            connection.settimeout(max(wait, _LEAST_WAIT))
            received = receive(connection)
        except TimeoutError as error:
            raise ResponseTimeoutError(f"{self._name} sent nothing in time") from error
        except OSError as error:
            raise ConnectionLostError(f"connection to {self._name} lost: {error}") from error
        if not received:
            raise ConnectionLostError(f"{self._name} closed the connection")
        return received

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError(f"the connection to {self._name} is closed")
        return self._socket


class BlockingConnection:
    """One connection to an nsqd. Call :meth:`open` first and :meth:`close` last; nothing else closes it.

    Args:
        node: The nsqd.
        options: Secrets, TLS, compression and timeouts.
        extended: Whether the connection is for a subscription to an extended topic.
        gathers: Whether nsqd gathers messages before it sends them; otherwise it sends each immediately.

    Attributes:
        protocol: The state of the protocol; tell it about commands that are encoded elsewhere.
        early: Messages that arrived before the answer to a request.
    """

    def __init__(self, node: Node, options: ConnectionOptions, *, extended: bool = False, gathers: bool = True) -> None:
        self.protocol: ClientProtocol = ClientProtocol(max_frame_bytes=options.max_frame_bytes)
        self.early: list[Message] = []
        self._node = node
        self._name = f"nsqd {node.address}"
        self._wire = Wire(node.host, node.tcp_port, self._name)
        self._options = options
        self._extended = extended
        self._gathers = gathers
        self._codec: Codec | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._lifetime: Lifetime | None = None

    @property
    def is_late(self) -> bool:
        """Whether too little time is left for another answer."""
        return self._lifetime is not None and self._lifetime.phase(time.monotonic()) in (Phase.LATE, Phase.STALE)

    def open(self) -> Identity:
        """Connect and complete the handshake.

        Returns:
            The server's side of the negotiation.

        Raises:
            ConfigError: A file of the TLS options cannot be used on this machine.
            ConnectError: Connecting or TLS failed.
            TransportError: No answer in time.
            AuthError: The secret is missing or wrong; retries do not help.
            RemoteProtocolError: The server's answers violate the protocol.
        """
        until = time.monotonic() + CONNECT_TIMEOUT
        self._wire.connect()
        secret = self._options.auth_secret
        handshake = Handshake(self.protocol, self._offer(), address=self._name, secret=secret, advice=_ADVICE)
        identified_at = time.monotonic()
        for step in handshake:
            if isinstance(step, Send):
                self.send(step.data)
            elif isinstance(step, StartTls):
                self._start_tls()
            elif isinstance(step, StartCodec):
                self._codec, self._pieces = step.codec, step.codec.pieces(step.trailing)
            else:
                handshake.feed(self.read(until))
        if self._options.tls is not None:
            self._lifetime = Lifetime.of(handshake.identity.version, identified_at, random.random)
        return handshake.identity

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._wire.close()

    def request(self, command: Command, until: float) -> bytes:
        """Send a command that has an answer, and wait for it.

        Raises:
            ServerError: The server refused it.
            TransportError: No answer before ``until`` (``time.monotonic()``), or the connection was lost.
        """
        self.send(self.protocol.send(command))
        return self.answer(until)

    def answer(self, until: float) -> bytes:
        """Wait for the answer to the only pending request; raises as :meth:`request`.

        Raises:
            RemoteProtocolError: More messages than fit into one frame came before it, too.
        """
        room = self._options.max_frame_bytes
        while True:
            received = self.receive(until)
            room -= sum(_MESSAGE_BYTES + len(message.body) for message in received.messages)
            if room < 0:
                raise RemoteProtocolError(f"{self._name} sent messages in place of an answer")
            self.early += received.messages
            for answer in received.answers:
                if isinstance(answer, ServerError):
                    raise answer
                return answer
            for refusal in received.refusals:
                raise refusal

    def receive(self, until: float) -> Received:
        """Wait for data from the server; answer heartbeats.

        Raises:
            ResponseTimeoutError: No data before ``until``.
            ConnectionExpiredError: The server can no longer write to this TLS connection.
            ConnectionLostError: The connection ended; if the leader moved, the server sends no error before.
            RemoteProtocolError: The server violated the protocol.
        """
        received = self.protocol.receive(self.read(until))
        if received.heartbeats:
            self.send(NOP)
        if received.damaged:
            raise RemoteProtocolError(f"{self._name} sent a message that cannot be decoded")
        return received

    def read(self, until: float) -> bytes:
        """Wait for data; raises as :meth:`receive`."""
        now = time.monotonic()
        if until <= now:
            raise ResponseTimeoutError(f"{self._name} sent nothing in time")
        over = self._lifetime.stale_at if self._lifetime is not None else until
        try:
            if over > now:
                return self._read(min(until, over) - now)
        except ResponseTimeoutError:
            if over >= until:
                raise
        raise ConnectionExpiredError(f"{self._name} can no longer write to this TLS connection")

    def send(self, data: bytes, until: float = math.inf) -> None:
        """Send encoded commands.

        Raises:
            ConnectionLostError: As of :meth:`Wire.send`; unanswered requests are in doubt.
        """
        if data:
            self._wire.send(data if self._codec is None else self._codec.compress(data), until)

    def _offer(self) -> Offer:
        options = self._options
        return Offer(
            client_id="spark",
            hostname=socket.gethostname(),
            user_agent=f"nsq_ha-spark/{__version__}",
            output_buffer_size=_OUTPUT_BUFFER_BYTES if self._gathers else _NO_OUTPUT_BUFFER,
            output_buffer_timeout=round(options.output_buffer_timeout * 1000),
            msg_timeout=round((options.msg_timeout or 0) * 1000),
            tls=options.tls is not None,
            compression=options.compression,
            deflate_level=_DEFLATE_LEVEL,
            extend_support=self._extended,
        )

    def _start_tls(self) -> None:
        tls = self._options.tls or TlsConfig()
        try:
            context = ssl_context(tls)
        except ConfigError as error:
            raise ConfigError(in_tls_options(str(error))) from error
        self._wire.start_tls(context, tls.server_name or self._node.host)

    def _read(self, wait: float) -> bytes:
        until = time.monotonic() + wait
        while (piece := next(self._pieces, None)) is None:
            if (left := until - time.monotonic()) < -_LONGEST_BLOCK:
                raise ResponseTimeoutError(f"{self._name} sent only parts of compressed data in time")
            data = self._wire.receive(left)
            if self._codec is None:
                return data
            # A block may need more bytes before it yields any, and empty ones may come without end.
            self._pieces = self._codec.pieces(data)
        return piece


class BlockingSubscription:
    """A subscription through a connection of its own, and what its messages are answered through.

    Args:
        node: The nsqd.
        options: Those of the connection.
        place: Topic, channel and partition; 0 on a plain nsqd.
        extended: As for :class:`BlockingConnection`.
        gathers: As for :class:`BlockingConnection`.

    Attributes:
        topic: The topic.
        channel: The channel.
        partition: The partition.
        nsqd: ``host:port`` of the nsqd.
        connection: The connection.
        ready: The last RDY that was sent.
        max_ready: The largest RDY that may be sent.
    """

    def __init__(
        self,
        node: Node,
        options: ConnectionOptions,
        place: tuple[str, str, int],
        *,
        extended: bool = False,
        gathers: bool = True,
    ) -> None:
        self.topic: str
        self.channel: str
        self.partition: int
        self.topic, self.channel, self.partition = place
        self.nsqd: str = node.address
        self.connection: BlockingConnection = BlockingConnection(node, options, extended=extended, gathers=gathers)
        self.ready: int = 0
        self.max_ready: int = 1
        self._largest = 0

    def subscribe(self, command: Sub | SubAdvanced | SubOrdered, layout: Layout, most: int) -> None:
        """Connect and subscribe; :meth:`set_ready` or :meth:`follow` makes the nsqd send.

        Args:
            command: The command that subscribes.
            layout: The form of its messages.
            most: Maximum number of messages in flight, within what the nsqd allows.

        Raises:
            NsqError: See :meth:`BlockingConnection.open` and :meth:`BlockingConnection.request`.
        """
        self.max_ready = min(self.connection.open().max_rdy_count, most)
        self.connection.protocol.subscribe_to(self, layout)
        self.connection.request(command, time.monotonic() + CONNECT_TIMEOUT)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self.connection.close()

    @property
    def wanted(self) -> int:
        """The RDY that keeps messages as large as the largest so far within :data:`IN_FLIGHT_BYTES`."""
        if not self._largest:
            return max(1, min(FIRST_READY, self.max_ready))
        return max(1, min(self.max_ready, IN_FLIGHT_BYTES // self._largest))

    def follow(self, wanted: int) -> None:
        """Send RDY if it differs much from the last one; small changes are not worth a command."""
        if wanted < self.ready or wanted >= 2 * self.ready > 0 or (wanted and not self.ready):
            self.set_ready(wanted)

    def set_ready(self, count: int) -> None:
        """Send RDY.

        Raises:
            ConnectionLostError: The connection was lost.
        """
        self.connection.send(self.connection.protocol.send(Ready(count)))
        self.ready = count

    def receive(self, until: float) -> list[Message]:
        """Wait for messages.

        Args:
            until: ``time.monotonic()`` at which to give up.

        Returns:
            The messages in the order of arrival; empty after a heartbeat alone.

        Raises:
            ResponseTimeoutError: No data before ``until``.
            ConnectionLostError: The connection ended; if the leader moved, the server sends no error before.
            ServerError: The server refused something, other than to finish a message that it has taken back. It is
                about to close the connection.
            RemoteProtocolError: The server violated the protocol.
        """
        arrived, self.connection.early = self.connection.early, []
        if not arrived:
            try:
                received = self.connection.receive(until)
            except ResponseTimeoutError as error:
                where = f"{self.topic}-{self.partition}"
                raise ResponseTimeoutError(f"nsqd {self.nsqd} sent no message of {where} in time") from error
            for refusal in received.refusals:
                if not isinstance(refusal, NotInFlightError):
                    raise refusal
            arrived = received.messages
        self._largest = max([self._largest, *[len(message.body) for message in arrived]])
        return arrived

    def finish(self, message: Message) -> None:
        """Finish one message, as :meth:`finish_all`."""
        self.finish_all((message,))

    def finish_all(self, messages: Iterable[Message]) -> None:
        """Finish messages, so that the server sends more.

        Raises:
            ConnectionLostError: The connection was lost.
        """
        self.connection.send(encode_fins([message.id for message in messages]))

    def requeue(self, message: Message, delay: float | None = None) -> None:
        """Refuse: Spark's readers finish messages immediately."""
        raise LocalProtocolError("a message that Spark reads can only be finished")

    touch = requeue
