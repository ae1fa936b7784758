"""One throw-away channel on one partition's leader, read through a blocking socket.

Owns the connection of one replay: opening the channel at an offset, the
handshake, heartbeats, RDY and FIN. Does not decide what a message is worth
(``chain``) nor what follows a failure (``reader``).

A FIN here only means "send more": the channel is this reader's own, and vanishes
with it. So everything accepted is finished at once.

**Source:** Spark reference 1.2; protocol reference 3, 5, 7.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.errors import (
    AuthError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    NotInFlightError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.names import EPHEMERAL_SUFFIX
from nsq_ha.protocol import (
    NOP,
    ClientProtocol,
    Offer,
    Ready,
    SubAdvanced,
    SubOrdered,
    decode_identity,
    encode_fins,
    layout_for,
    upgrades,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.protocol import Command
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.planner import Range

CHANNEL_PREFIX: Final = "spark-"
"""How the channels of replays begin; what analyses the server's traces leaves them out by it."""

READ_BYTES: Final = 256 * 1024
"""What one read takes from the socket at most."""

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""What may be under way unfinished; RDY follows it and the largest message seen."""

_FIRST_READY: Final = 32  # times the largest message (1 MiB): IN_FLIGHT_BYTES, until the sizes are known
_MAX_READY: Final = 2500
_MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
_CONNECT_TIMEOUT: Final = 2.0
# The server raises 1..9 ms to 10; the last part of a range waits that long.
_OUTPUT_BUFFER_MS: Final = 10
_OUTPUT_BUFFER_BYTES: Final = 64 * 1024


class Replay:
    """A subscription to one range, from ``position`` on. Use it as a context manager.

    Attributes:
        topic: Of the range.
        channel: Its own, made for this connection.
        partition: Of the range.
        nsqd: ``host:port`` of the leader.
    """

    def __init__(self, asked: Range, node: Node, cluster: Cluster) -> None:
        """Prepare; :meth:`open` does the work."""
        self.topic = asked.topic
        self.partition = asked.partition
        self.channel = f"{CHANNEL_PREFIX}{secrets.token_hex(8)}{EPHEMERAL_SUFFIX}"
        self.nsqd = node.address
        self._asked = asked
        self._node = node
        self._cluster = cluster
        self._protocol = ClientProtocol(max_frame_bytes=_MAX_FRAME_BYTES)
        self._socket: socket.socket | None = None
        self._early: list[Message] = []
        self._max_ready = 1
        self._ready = 0
        self._largest = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, position: int) -> None:
        """Create the channel at ``position``, connect and subscribe.

        Raises:
            TransportError: No connection, or no answer in time.
            ServerError: The node refused; ``retriable`` tells whether another leader may not.
            RemoteProtocolError: The node's answers make no sense.
        """
        self._cluster.open_channel(self.topic, self.partition, self._node, self.channel, position)
        try:
            until = time.monotonic() + _CONNECT_TIMEOUT
            try:
                self._socket = socket.create_connection((self._node.host, self._node.tcp_port), _CONNECT_TIMEOUT)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                raise ConnectError(f"no connection to nsqd {self.nsqd}: {error}") from error
            self._identify(until)
            self._subscribe(until)
        except BaseException:
            # Only the last client's leaving makes an ephemeral channel vanish, and there was none.
            self.close()
            with contextlib.suppress(NsqError):
                self._cluster.delete_channel(self.topic, self.partition, self._node, self.channel)
            raise

    def close(self) -> None:
        """Close the connection, and with it the channel; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def receive(self, until: float) -> list[Message]:
        """Wait for messages.

        Args:
            until: ``time.monotonic()`` at which to give up.

        Returns:
            What came, in the order of arrival; empty when only a heartbeat did.

        Raises:
            ResponseTimeoutError: Nothing at all until then.
            ConnectionLostError: The connection went; without a word when the leader moved.
            ServerError: The node says why it is about to close.
            RemoteProtocolError: It sent what it may not.
        """
        if self._early:
            messages, self._early = self._early, []
        else:
            messages = self._receive(until)
        if messages:
            self._follow_sizes(messages)
        return messages

    def finish(self, message: Message) -> None:
        """Finish one, as :meth:`finish_all`."""
        self.finish_all((message,))

    def finish_all(self, messages: Iterable[Message]) -> None:
        """Tell the server to send more in place of ``messages``.

        Raises:
            ConnectionLostError: The connection went.
        """
        self._send(encode_fins([message.id for message in messages]))

    def requeue(self, message: Message, delay: float | None) -> None:
        """Refuse: a replay has nothing to give back."""
        raise LocalProtocolError("a message of a replay cannot be requeued")

    def touch(self, message: Message) -> None:
        """Refuse: a replay finishes at once."""
        raise LocalProtocolError("a message of a replay needs no touch")

    def _identify(self, until: float) -> None:
        offer = Offer(
            client_id="spark",
            hostname=socket.gethostname(),
            user_agent=_user_agent(),
            output_buffer_size=_OUTPUT_BUFFER_BYTES,
            output_buffer_timeout=_OUTPUT_BUFFER_MS,
            extend_support=self._asked.extended,
        )
        identity = decode_identity(self._request(offer.command(), until))
        upgrades(identity, offer)
        if identity.auth_required:
            raise AuthError("E_AUTH_FIRST", f"nsqd {self.nsqd} asks for AUTH, which format 'nsq' does not do yet")
        self._protocol.receive(self._protocol.take_trailing())
        self._max_ready = min(identity.max_rdy_count, _MAX_READY)

    def _subscribe(self, until: float) -> None:
        layout = layout_for(detail=True, ext=self._asked.extended)
        self._protocol.subscribe_to(self, layout)
        # Never with a start position: that makes the server ignore the partition.
        kind = SubOrdered if self._asked.ordered else SubAdvanced
        self._request(kind(self.topic, self.channel, self.partition), until)
        self._set_ready(min(_FIRST_READY, self._max_ready))

    def _request(self, command: Command, until: float) -> bytes:
        self._send(self._protocol.send(command))
        while True:
            self._early += self._receive(until)
            for answer in self._protocol.received.answers:
                if isinstance(answer, ServerError):
                    raise answer
                return answer

    def _receive(self, until: float) -> list[Message]:
        wait = until - time.monotonic()
        if wait <= 0:
            raise ResponseTimeoutError(f"nsqd {self.nsqd} sends nothing of {self.topic}-{self.partition}")
        data = self._read(wait)
        received = self._protocol.receive(data)
        if received.heartbeats:
            self._send(NOP)
        if received.damaged:
            raise RemoteProtocolError(f"nsqd {self.nsqd} sent a message that cannot be decoded")
        for refusal in received.refusals:
            # A stray that the reset drained is not ours any more; that says nothing about the chain.
            if not isinstance(refusal, NotInFlightError):
                raise refusal
        return received.messages

    def _read(self, wait: float) -> bytes:
        try:
            connection = self._connected()
            connection.settimeout(wait)
            data = connection.recv(READ_BYTES)
        except TimeoutError as error:
            raise ResponseTimeoutError(f"nsqd {self.nsqd} sends nothing of {self.topic}-{self.partition}") from error
        except OSError as error:
            raise ConnectionLostError(f"connection to nsqd {self.nsqd} went: {error}") from error
        if not data:
            raise ConnectionLostError(f"nsqd {self.nsqd} closed the connection")
        return data

    def _send(self, data: bytes) -> None:
        if not data:
            return
        try:
            connection = self._connected()
            connection.settimeout(_CONNECT_TIMEOUT)
            connection.sendall(data)
        except OSError as error:
            raise ConnectionLostError(f"connection to nsqd {self.nsqd} went: {error}") from error

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError(f"the connection to nsqd {self.nsqd} is closed")
        return self._socket

    def _follow_sizes(self, messages: list[Message]) -> None:
        """Keep what is under way within its bound, whatever the size of the messages."""
        self._largest = max(self._largest, *[len(message.body) for message in messages], 1)
        wanted = max(1, min(self._max_ready, IN_FLIGHT_BYTES // self._largest))
        # Small steps are not worth a command.
        if wanted < self._ready or wanted >= 2 * self._ready:
            self._set_ready(wanted)

    def _set_ready(self, count: int) -> None:
        self._send(self._protocol.send(Ready(count)))
        self._ready = count


def _user_agent() -> str:
    try:
        return f"nsq_ha-spark/{version('nsq_ha')}"
    except PackageNotFoundError:
        # A checkout shipped to executors as files has no metadata.
        return "nsq_ha-spark"
