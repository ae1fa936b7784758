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
import time
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.errors import LocalProtocolError, NotInFlightError, NsqError, ResponseTimeoutError, TransportError
from nsq_ha.names import EPHEMERAL_SUFFIX
from nsq_ha.protocol import Ready, SubAdvanced, SubOrdered, encode_fins, layout_for
from nsq_ha.spark.link import CONNECT_TIMEOUT, Link

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.planner import Range

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""What may be under way unfinished; RDY follows it and the largest message seen."""

UNGATHERED_BYTES: Final = 32 * 1024
"""Ranges up to this size are sent message by message: to gather them costs the server's 10 ms, and they take less."""

_FIRST_READY: Final = 32  # times the largest message (1 MiB): IN_FLIGHT_BYTES, until the sizes are known


class Replay:
    """A subscription to one range, from ``position`` on. Use it as a context manager.

    Attributes:
        topic: Of the range.
        channel: Its own, made for this connection.
        partition: Of the range.
        nsqd: ``host:port`` of the leader.
    """

    def __init__(self, asked: Range, node: Node, cluster: Cluster, options: ReadOptions) -> None:
        """Prepare; :meth:`open` does the work."""
        self.topic = asked.topic
        self.partition = asked.partition
        self._is_own = options.channel is None
        self.channel = options.channel or f"{options.channel_prefix}{secrets.token_hex(8)}{EPHEMERAL_SUFFIX}"
        self.nsqd = node.address
        self._asked = asked
        self._node = node
        self._cluster = cluster
        self._options = options
        gathers = asked.end - asked.start > UNGATHERED_BYTES
        self._link = Link(node, options.access, extended=asked.extended, gathers=gathers)
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
        try:
            self._place_channel(position)
        except TransportError:
            # The node does not answer: deleting the channel would take another time limit.
            raise
        except BaseException:
            self._delete_channel()
            raise
        try:
            identity = self._link.open()
            self._max_ready = min(identity.max_rdy_count, self._options.ready)
            self._subscribe(time.monotonic() + CONNECT_TIMEOUT)
        except BaseException:
            self.close()
            self._delete_channel()
            raise

    def _delete_channel(self) -> None:
        """Delete a channel without clients; an ephemeral one vanishes only when its last client leaves."""
        if self._is_own:
            with contextlib.suppress(NsqError):
                self._cluster.delete_channel(self.topic, self.partition, self._node, self.channel)

    def _place_channel(self, position: int) -> None:
        # Creating one that is there changes nothing, so a registered one may take the same way.
        self._cluster.open_channel(self.topic, self.partition, self._node, self.channel, position)

    def close(self) -> None:
        """Close the connection, and with it the channel; a second call does nothing."""
        self._link.close()

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
            RemoteProtocolError: It broke the protocol.
        """
        if self._link.early:
            messages, self._link.early = self._link.early, []
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
        self._link.send(encode_fins([message.id for message in messages]))

    def requeue(self, message: Message, delay: float | None) -> None:
        """Refuse: a replay has nothing to give back."""
        raise LocalProtocolError("a message of a replay cannot be requeued")

    def touch(self, message: Message) -> None:
        """Refuse: a replay finishes at once."""
        raise LocalProtocolError("a message of a replay needs no touch")

    def _subscribe(self, until: float) -> None:
        layout = layout_for(detail=True, ext=self._asked.extended)
        self._link.protocol.subscribe_to(self, layout)
        # Never with a start position: that makes the server ignore the partition.
        kind = SubOrdered if self._asked.ordered else SubAdvanced
        self._link.request(kind(self.topic, self.channel, self.partition), until)
        self._set_ready(min(_FIRST_READY, self._max_ready))

    def _receive(self, until: float) -> list[Message]:
        try:
            received = self._link.receive(until)
        except ResponseTimeoutError as error:
            raise ResponseTimeoutError(f"nsqd {self.nsqd} sends nothing of {self.topic}-{self.partition}") from error
        for refusal in received.refusals:
            # A stray that the reset drained is not ours any more; that says nothing about the chain.
            if not isinstance(refusal, NotInFlightError):
                raise refusal
        return received.messages

    def _follow_sizes(self, messages: list[Message]) -> None:
        """Keep what is under way within its bound, whatever the size of the messages."""
        self._largest = max(self._largest, *[len(message.body) for message in messages], 1)
        wanted = max(1, min(self._max_ready, IN_FLIGHT_BYTES // self._largest))
        # Small steps are not worth a command.
        if wanted < self._ready or wanted >= 2 * self._ready:
            self._set_ready(wanted)

    def _set_ready(self, count: int) -> None:
        self._link.send(self._link.protocol.send(Ready(count)))
        self._ready = count
