"""Move messages of one plain nsqd into the spool: subscribe, receive, write, and only then finish.

Each puller has a thread and a connection to one nsqd for one topic. ``planner`` limits
how much may wait in the spool.

The invariant: a message is finished only after the file that holds it is on disk. A
kill between the two repeats the message; none is lost.

**Source:** Spark design 2.2; server protocol 5, 7.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConnectionLostError, NotInFlightError, NsqError, ResponseTimeoutError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import delay_after
from nsq_ha.protocol import Ready, Sub, layout_for
from nsq_ha.protocol.encoding import encode_fins
from nsq_ha.spark.connection import CONNECT_TIMEOUT, BlockingConnection
from nsq_ha.spark.read.replay import IN_FLIGHT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.ack.spool import Spool
    from nsq_ha.spark.options import ReadOptions

log: Final = logging.getLogger("nsq_ha.spark")

FILE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of messages after which to write a file."""

_GATHER: Final = 0.05  # seconds to wait for more messages after the first one of a file
_LOOK: Final = 0.25  # seconds after which to check for stop() and for room in the spool
_SILENCE: Final = 75.0  # a heartbeat comes every 30 s
_FIRST_READY: Final = 32
_LEAST_BUFFERING: Final = 0.025  # minimum of an upstream nsqd with default settings
_RECONNECT: Final = Backoff(initial=0.1, maximum=5.0, factor=2.0, jitter=0.3)


class Puller:
    """Pulls from one nsqd in a thread, from :meth:`start` to :meth:`stop`.

    Args:
        node: The nsqd.
        topic: The topic.
        options: Options of the read.
        spool: The spool for the messages.
        may_pull: Returns False while the spool is full.

    Attributes:
        channel: The channel of the options.
        partition: 0: a plain nsqd has no partitions.
        nsqd: ``host:port``.
        node: The nsqd.
        fatal: The error that ended the thread, since retries cannot fix it. None otherwise.
        trouble: The last failure, until there is a connection again. None otherwise.
        is_drained: Whether the puller has stopped taking messages; see :meth:`finish_draining`.
        newest_ns: Publish time of the youngest message in the spool, by the server's clock.
    """

    def __init__(
        self, node: Node, topic: str, options: ReadOptions, spool: Spool, may_pull: Callable[[], bool]
    ) -> None:
        self.topic = topic
        self.channel: str = options.channel or ""
        self.partition = 0
        self.nsqd: str = node.address
        self.fatal: Exception | None = None
        self.trouble: NsqError | None = None
        self.troubled_since: float = time.monotonic()
        self.node = node
        self._options = options
        least = max(options.connection.output_buffer_timeout, _LEAST_BUFFERING)
        self._connection_options = dataclasses.replace(options.connection, output_buffer_timeout=least)
        self._spool = spool
        self._may_pull = may_pull
        self._over = threading.Event()
        self.is_drained: bool = False
        self.newest_ns: int = 0
        self._older_than: int | None = None
        self._old_seen_at: float | None = None
        self._ready = 0
        self._largest = 1
        self._max_ready = 1
        # A daemon, since Spark kills the planning process without warning.
        self._thread = threading.Thread(target=self._run, name=f"nsq_ha-pull-{self.nsqd}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the server redelivers messages that are not written yet."""
        self._over.set()
        self._thread.join(CONNECT_TIMEOUT + _LOOK)

    def drain(self, older_than_ns: int) -> None:
        """Watch for messages published before this time, in nanoseconds since the epoch; see :attr:`quiet_for`."""
        self._older_than = older_than_ns
        self._old_seen_at = None
        self.is_drained = False

    def finish_draining(self) -> None:
        """Take no more messages until the connection is lost."""
        self.is_drained = True

    @property
    def quiet_for(self) -> float:
        """Seconds for which the server could send messages but sent none from before :meth:`drain`."""
        seen = self._old_seen_at
        return 0.0 if self._older_than is None or seen is None else time.monotonic() - seen

    # ------------------------------------------------------------ message callbacks: files finish their messages

    def finish(self, message: Message) -> None:
        """Do nothing: the file that holds the message finishes it."""

    def requeue(self, message: Message, delay: float | None) -> None:
        """Do nothing, as :meth:`finish`."""

    def touch(self, message: Message) -> None:
        """Do nothing, as :meth:`finish`."""

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        failures = 0
        while not self._over.is_set():
            connection = BlockingConnection(self.node, self._connection_options)
            try:
                self._subscribe(connection)
                failures = 0
                self.trouble = None
                self._pull(connection)
            except NsqError as error:
                self._old_seen_at = None
                self.is_drained = False
                if not error.retriable:
                    self.fatal = error
                    return
                failures += 1
                if self.trouble is None:
                    self.troubled_since = time.monotonic()
                    log.warning("topic %r: nsqd %s: reconnecting after %s", self.topic, self.nsqd, error)
                self.trouble = error
                self._over.wait(delay_after(_RECONNECT, failures, random.random))
            except Exception as error:  # noqa: BLE001 - the planner raises it; otherwise the query would stop silently
                self.fatal = error
                return
            finally:
                connection.close()

    def _subscribe(self, connection: BlockingConnection) -> None:
        identity = connection.open()
        self._max_ready = min(identity.max_rdy_count, self._options.rdy)
        self._ready = 0
        connection.protocol.subscribe_to(self, layout_for(detail=False, ext=False))
        connection.request(Sub(self.topic, self.channel, None), time.monotonic() + CONNECT_TIMEOUT)

    def _pull(self, connection: BlockingConnection) -> None:
        heard_at = time.monotonic()
        while not self._over.is_set():
            self._follow(connection)
            messages, heard = self._gathered(connection)
            if messages:
                self._spool.append(messages)
                connection.send(encode_fins([message.id for message in messages]))
                self._note(messages)
            now = time.monotonic()
            heard_at = now if heard else heard_at
            if now - heard_at >= _SILENCE:
                raise ConnectionLostError(f"nsqd {self.nsqd} sent no heartbeat for {_SILENCE:g} s")

    def _gathered(self, connection: BlockingConnection) -> tuple[list[Message], bool]:
        """Return the messages of the next file, and whether the server sent anything."""
        gathered, connection.early = connection.early, []
        limit = self._options.max_offsets_per_trigger
        most = min(limit or self._max_ready, max(1, (self._ready or self._max_ready) // 2))
        size, heard = 0, bool(gathered)
        until = time.monotonic() + (_GATHER if gathered else _LOOK)
        while len(gathered) < most and size < FILE_BYTES:
            try:
                received = connection.receive(until)
            except ResponseTimeoutError:
                break
            heard = True
            for refusal in received.refusals:
                # The message timed out and will be redelivered: at least once allows that.
                if not isinstance(refusal, NotInFlightError):
                    raise refusal
            if received.messages and not gathered:
                until = time.monotonic() + _GATHER
            gathered += received.messages
            size += sum(len(message.body) for message in received.messages)
        # Messages beyond the limit of a micro-batch go into the next file.
        limit = limit or len(gathered)
        connection.early = gathered[limit:]
        return gathered[:limit], heard

    def _note(self, messages: list[Message]) -> None:
        self._largest = max(self._largest, *[len(message.body) for message in messages])
        if self._older_than is None or any(message.timestamp_ns < self._older_than for message in messages):
            self._old_seen_at = time.monotonic()
        self.newest_ns = max(self.newest_ns, *[message.timestamp_ns for message in messages])

    def _follow(self, connection: BlockingConnection) -> None:
        """Set RDY by the size of the messages, and to 0 while the spool is full."""
        drained, wanted = self.is_drained, 0
        if not drained and self._may_pull():
            known = self._largest > 1
            wanted = min(self._max_ready, max(1, IN_FLIGHT_BYTES // self._largest) if known else _FIRST_READY)
        if not drained and (wanted == 0 or self._old_seen_at is None):
            # Silence counts only while the server may send.
            self._old_seen_at = time.monotonic()
        # Small changes are not worth a command.
        if wanted < self._ready or wanted >= 2 * self._ready > 0 or (wanted and not self._ready):
            connection.send(connection.protocol.send(Ready(wanted)))
            self._ready = wanted
