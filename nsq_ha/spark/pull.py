"""One plain nsqd emptied into the spool: SUB, receive, write, and only then FIN.

Owns the connection to one nsqd for one topic, and its thread. Does not decide
how much may wait (``ack_planner`` says so), nor what becomes of the files.

The invariant: a message is finished only after the file that holds it is on the
disk. A kill between the two gives the message twice, none is lost.

**Source:** Spark reference 2.2; protocol reference 5, 7.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.config import Backoff
from nsq_ha.errors import ConnectionLostError, NotInFlightError, NsqError, ResponseTimeoutError
from nsq_ha.policy.backoff import delay_after
from nsq_ha.protocol import Ready, Sub, encode_fins, layout_for
from nsq_ha.spark.link import CONNECT_TIMEOUT, Link
from nsq_ha.spark.replay import IN_FLIGHT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.spool import Spool

log: Final = logging.getLogger("nsq_ha.spark")

FILE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of messages after which a file is written."""

_GATHER: Final = 0.05  # seconds that the first message of a file waits for company
_LOOK: Final = 0.25  # seconds after which a change of mind is noticed
_SILENCE: Final = 75.0  # a heartbeat comes every 30 s
_FIRST_READY: Final = 32
_LEAST_BUFFERING: Final = 0.025  # an upstream nsqd takes no less, by its default settings
_RECONNECT: Final = Backoff(initial=0.1, maximum=5.0, factor=2.0, jitter=0.3)


class Puller:
    """Pulls from one nsqd in a thread, from :meth:`start` to :meth:`stop`.

    Args:
        node: The nsqd.
        topic: The topic.
        options: Of the read.
        spool: Where messages go.
        may_pull: Asked again and again; False while enough waits on the disk.

    Attributes:
        channel: Of the options; together with the next two what a message says of its origin.
        partition: 0: a plain nsqd has none.
        nsqd: ``host:port``.
        node: The nsqd.
        fatal: What no retry cures; the thread has ended. None while all is well.
        trouble: The last failure while there is no connection. None while there is one.
        is_drained: No more messages are taken; see :meth:`finish_draining`.
        newest_ns: When the youngest message was published that was written, by the server's clock.
    """

    def __init__(
        self, node: Node, topic: str, options: ReadOptions, spool: Spool, may_pull: Callable[[], bool]
    ) -> None:
        self.topic = topic
        self.channel = options.channel or ""
        self.partition = 0
        self.nsqd = node.address
        self.fatal: Exception | None = None
        self.trouble: NsqError | None = None
        self.troubled_since = time.monotonic()
        self.node = node
        self._options = options
        least = max(options.access.output_buffer_timeout, _LEAST_BUFFERING)
        self._access = dataclasses.replace(options.access, output_buffer_timeout=least)
        self._spool = spool
        self._may_pull = may_pull
        self._over = threading.Event()
        self.is_drained = False
        self.newest_ns = 0
        self._older_than: int | None = None
        self._old_seen_at: float | None = None
        self._ready = 0
        self._largest = 1
        self._max_ready = 1
        # A daemon: Spark ends the process that plans without a word.
        self._thread = threading.Thread(target=self._run, name=f"nsq_ha-pull-{self.nsqd}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is gathered and not written comes again from the server."""
        self._over.set()
        self._thread.join(CONNECT_TIMEOUT + _LOOK)

    def drain(self, older_than_ns: int) -> None:
        """Watch for messages published before this time, in nanoseconds since the epoch; see :attr:`quiet_for`."""
        self._older_than = older_than_ns
        self._old_seen_at = None
        self.is_drained = False

    def finish_draining(self) -> None:
        """Take no more messages, until the connection is lost."""
        self.is_drained = True

    @property
    def quiet_for(self) -> float:
        """Seconds for which the server was asked for messages, and gave none from before :meth:`drain`."""
        seen = self._old_seen_at
        return 0.0 if self._older_than is None or seen is None else time.monotonic() - seen

    # ------------------------------------------------------------ answers: messages are finished here, by file

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
            link = Link(self.node, self._access)
            try:
                self._subscribe(link)
                failures = 0
                self.trouble = None
                self._pull(link)
            except NsqError as error:
                self._old_seen_at = None
                self.is_drained = False
                if not error.retriable:
                    self.fatal = error
                    return
                failures += 1
                if self.trouble is None:
                    self.troubled_since = time.monotonic()
                    log.warning("%s: connecting anew after: %s", self.nsqd, error)
                self.trouble = error
                self._over.wait(delay_after(_RECONNECT, failures, random.random))
            except Exception as error:  # noqa: BLE001 - a thread that dies in silence would stop the query so
                self.fatal = error
                return
            finally:
                link.close()

    def _subscribe(self, link: Link) -> None:
        identity = link.open()
        self._max_ready = min(identity.max_rdy_count, self._options.ready)
        self._ready = 0
        link.protocol.subscribe_to(self, layout_for(detail=False, ext=False))
        link.request(Sub(self.topic, self.channel, None), time.monotonic() + CONNECT_TIMEOUT)

    def _pull(self, link: Link) -> None:
        heard_at = time.monotonic()
        while not self._over.is_set():
            self._follow(link)
            messages, heard = self._gathered(link)
            if messages:
                self._spool.append(messages)
                link.send(encode_fins([message.id for message in messages]))
                self._note(messages)
            now = time.monotonic()
            heard_at = now if heard else heard_at
            if now - heard_at >= _SILENCE:
                raise ConnectionLostError(f"nsqd {self.nsqd} is silent, without a heartbeat")

    def _gathered(self, link: Link) -> tuple[list[Message], bool]:
        """Return what one file shall hold, and whether anything was heard at all."""
        gathered, link.early = link.early, []
        most = min(self._options.max_offsets or self._max_ready, max(1, (self._ready or self._max_ready) // 2))
        size, heard = 0, bool(gathered)
        until = time.monotonic() + (_GATHER if gathered else _LOOK)
        while len(gathered) < most and size < FILE_BYTES:
            try:
                received = link.receive(until)
            except ResponseTimeoutError:
                break
            heard = True
            for refusal in received.refusals:
                # Its time had run out, so it comes again: a repetition, as at-least-once allows.
                if not isinstance(refusal, NotInFlightError):
                    raise refusal
            if received.messages and not gathered:
                until = time.monotonic() + _GATHER
            gathered += received.messages
            size += sum(len(message.body) for message in received.messages)
        # What is over the limit of a micro-batch is the next file's.
        limit = self._options.max_offsets or len(gathered)
        link.early = gathered[limit:]
        return gathered[:limit], heard

    def _note(self, messages: list[Message]) -> None:
        self._largest = max(self._largest, *[len(message.body) for message in messages])
        if self._older_than is None or any(message.timestamp_ns < self._older_than for message in messages):
            self._old_seen_at = time.monotonic()
        self.newest_ns = max(self.newest_ns, *[message.timestamp_ns for message in messages])

    def _follow(self, link: Link) -> None:
        """Set RDY to what may be under way: by the size of messages, and nothing while the spool is full."""
        drained, wanted = self.is_drained, 0
        if not drained and self._may_pull():
            known = self._largest > 1
            wanted = min(self._max_ready, max(1, IN_FLIGHT_BYTES // self._largest) if known else _FIRST_READY)
        if not drained and (wanted == 0 or self._old_seen_at is None):
            # It is quiet only from when it may send.
            self._old_seen_at = time.monotonic()
        # Small steps are not worth a command.
        if wanted < self._ready or wanted >= 2 * self._ready > 0 or (wanted and not self._ready):
            link.send(link.protocol.send(Ready(wanted)))
            self._ready = wanted
