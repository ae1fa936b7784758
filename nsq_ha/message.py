"""A received message and the receipt of a published one.

Owns the fields of a message and its single answer. The wire layout is in
``protocol.messages``. An answer goes through the message's source, the
subscription that delivered it.

The invariant: a message is answered at most once (finish or requeue), and only
through the connection that delivered it. If that is lost, the source drops the
answer, and the server delivers the message again.
"""

from __future__ import annotations

import copy
import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self, TypeVar, overload

import msgspec

from nsq_ha.base.identity import MessageIdentity, is_upstream_id
from nsq_ha.base.shapes import decoder
from nsq_ha.errors import BodyError, ConfigError, LocalProtocolError, RemoteProtocolError
from nsq_ha.options.checks import MAX_SECONDS, is_number, shown

_FIELD: Final = r" - at (?:`key` in )?`(\$[^`]*)`$"
"""The path of the wrong field, at the end of msgspec's errors."""

TAG_KEY: Final = "##client_dispatch_tag"
"""Key of a header whose value names the connections that may get the message."""

TRACE_KEY: Final = "##trace_id"
"""Key of a header with the message's trace id; the value is a string with a decimal number."""


_T = TypeVar("_T")


def _name_of(kind: object) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


class MessageSource(Protocol):
    """Sends the answers of a message. All three methods buffer and return at once."""

    topic: str
    channel: str
    partition: int
    nsqd: str

    def finish(self, message: Message) -> None:
        """Buffer a FIN."""

    def requeue(self, message: Message, delay: float | None) -> None:
        """Buffer a REQ; None uses the consumer's backoff."""

    def touch(self, message: Message) -> None:
        """Buffer a TOUCH."""


class State(enum.Enum):
    """Where a message of a consumer is. It has one state at a time; ``consumer.machine`` changes it."""

    QUEUED = enum.auto()
    """It waits here to be handed out."""
    HANDED_OUT = enum.auto()
    """A handler or an iterating task has it."""
    GIVING_UP = enum.auto()
    """It is being given up."""
    FINISHED = enum.auto()
    """Its FIN is sent, or will be in this turn."""
    REQUEUED = enum.auto()
    """Its REQ is sent, or waits here for its time; or it was left to the end of its connection."""
    ORPHANED = enum.auto()
    """Its connection is lost, or nsqd has delivered it again: an answer has no effect of its own."""


# gc=False: the garbage collector took an eighth of the time of a message, since thousands arrive together and leave one
# by one. The only cycle that can contain a message goes through a consumer's queue, and the queue drops the message
# when its connection ends.
class Message(msgspec.Struct, eq=False, gc=False):
    """One delivered message.

    Attributes:
        id: The 16 raw bytes that name it in answers to the nsqd that delivered it; not text, and no identity: compare
            ``identity``.
        body: The payload as published.
        attempts: Number of deliveries by the server's count, from 1. It does not grow
            after a lost connection or a leader change, so it does not reveal all repeats.
        timestamp_ns: Time of the publish at the server, in nanoseconds since the epoch.
        offset: Byte position in the partition's queue. None unless the subscription is
            ordered or has a start position.
        raw_size: Size in the queue, so the next message is at ``offset + raw_size``.
            None like ``offset``.
        ext: The raw extension header. None if there is none.
        source: The subscription that delivered it and sends its answer.
        answered: Whether it was finished or requeued.
        compressed: Body and extension header as they are stored, if the body was decompressed here. None if not.
        state: Where it is, if a consumer has it.
        deadline: When nsqd requeues it, by the event loop's clock, unless it is touched.
        arrived_at: When it arrived; 0 before it is first touched.
        taken_at: When it was handed out.
        taker: Who got it.
        returned: Why this library returned it to nsqd. None if it did not.
    """

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    source: MessageSource
    offset: int | None = None
    raw_size: int | None = None
    ext: bytes | None = None
    answered: bool = False
    compressed: tuple[bytes, bytes] | None = None
    state: State = State.QUEUED
    deadline: float = 0.0
    arrived_at: float = 0.0
    taken_at: float = 0.0
    taker: object = None
    returned: str | None = None

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.source.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.source.partition

    @property
    def nsqd(self) -> str:
        """``host:port`` of the nsqd that delivered it."""
        return self.source.nsqd

    @property
    def identity(self) -> MessageIdentity:
        """What tells this message from all others, and is equal for its redeliveries; use it as a key."""
        nsqd, partition = (self.nsqd, 0) if is_upstream_id(self.id) else ("", self.partition)
        return MessageIdentity(nsqd, self.topic, partition, self.id, self.timestamp_ns, self.offset)

    def is_copy_of(self, other: Message) -> bool:
        """Return whether both are deliveries of one message."""
        return self.id == other.id and self.identity == other.identity

    @property
    def internal_id(self) -> int:
        """The server's id, unsigned 64 bit; grows within a partition. From an upstream nsqd, the whole id."""
        return int(self.id, 16) if is_upstream_id(self.id) else int.from_bytes(self.id[:8], "big")

    @property
    def trace_id(self) -> int:
        """The publisher's trace id, unsigned 64 bit; 0 if there is none. Upstream nsqds have no trace ids."""
        return 0 if is_upstream_id(self.id) else int.from_bytes(self.id[8:], "big")

    @property
    def headers(self) -> dict[str, object]:
        """The extension header without keys that begin with ``##``; empty if there is none.

        Raises:
            RemoteProtocolError: The header, which another program wrote, is not a JSON
                object. The message itself is valid: finish or requeue it.
        """
        return {key: value for key, value in self._header().items() if not key.startswith("##")}

    @property
    def tag(self) -> str | None:
        """The dispatch tag. None if the message has none.

        Raises:
            RemoteProtocolError: As for ``headers``.
        """
        tag = self._header().get(TAG_KEY)
        return tag if isinstance(tag, str) else None

    @overload
    def json(self) -> Any: ...  # noqa: ANN401 - any JSON value

    @overload
    def json(self, type: type[_T]) -> _T: ...

    @overload
    def json(self, type: Any) -> Any: ...  # noqa: ANN401 - a union or another type without a class

    def json(self, type: Any = Any) -> Any:  # noqa: A002
        """Decode the body as JSON.

        Args:
            type: The type to decode to, as in ``msgspec.json.decode``: a ``msgspec.Struct``, dataclass, TypedDict,
                ``list[int]`` and so on. Without it, the result consists of dicts, lists, str, int, float, bool and
                None.

        Returns:
            The decoded value, checked against ``type``. Nothing is converted: the text ``"5"`` is no int.

        Raises:
            BodyError: The body is not JSON, or does not match ``type``; the error names the wrong field.
            ConfigError: msgspec does not support ``type``, or it is the name of a type: change the program.
        """
        if isinstance(type, str):
            raise ConfigError(f"json(type={type!r}): give the type itself, not its name: write json({type})")
        what = "is not JSON"
        try:
            made = decoder(type)
        except TypeError as error:
            raise ConfigError(f"json(type=...): {error}") from error
        try:
            return made.decode(self.body)
        except (msgspec.ValidationError, TypeError) as error:  # the second for a list in a set
            what, reason = f"does not match {_name_of(type)}", str(error)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            reason = str(error)
        except RecursionError:
            reason = "it is nested too deep"
        found = re.search(_FIELD, reason)
        raise BodyError(
            what,
            reason,
            topic=self.topic,
            partition=self.partition,
            message_id=self.internal_id,
            field=found[1] if found else None,
            name=self._place(),
        )

    def _place(self) -> str:
        """Return the topic and the partition, as ``orders-3``; from an upstream nsqd only the topic."""
        return self.topic if is_upstream_id(self.id) else f"{self.topic}-{self.partition}"

    def _header(self) -> dict[str, object]:
        if not self.ext:
            return {}
        try:
            header = json.loads(self.ext)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"extension header of {self!r} is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise RemoteProtocolError(f"extension header of {self!r} is a {type(header).__name__}, not a JSON object")
        return header

    def finish(self) -> None:
        """Finish the message: the server deletes it from the channel (FIN).

        This returns at once, since FIN has no answer. All answers of one turn of the
        event loop are written together.

        After the consumer has closed this has no effect and logs a warning: the server delivers the message again. The
        same holds for :meth:`requeue` and :meth:`touch`.

        Raises:
            LocalProtocolError: It was already finished or requeued.
        """
        if self.answered:
            self._answered_before("finish")
            return
        self.answered = True
        self.source.finish(self)

    def requeue(self, delay: float | None = None) -> None:
        """Requeue the message, so that the server delivers it again (REQ).

        Args:
            delay: Seconds until the redelivery; 0 requeues at once. None uses the consumer's
                ``requeue_backoff``. On an ordered topic the client waits itself, since
                the server ignores the delay there. On other partitioned topics nsqd looks for
                messages whose delay has passed only twice a second, and less often if it has
                many channels: 0.2 s may take 0.5 to 4 s. A plain nsqd looks ten times a second.

        Raises:
            LocalProtocolError: It was already finished or requeued.
            ConfigError: ``delay`` is not a number, is negative or too large for the server. The message stays
                unanswered.
        """
        given: object = delay
        if given is not None and (not is_number(given) or not 0 <= given <= MAX_SECONDS):
            raise ConfigError(f"delay must be 0..{MAX_SECONDS} seconds, not {shown(given)}")
        if self.answered:
            self._answered_before("requeue")
            return
        self.answered = True
        self.source.requeue(self, delay)

    def touch(self) -> None:
        """Restart the server's message timeout (TOUCH), but not beyond its ``max_msg_timeout``.

        Raises:
            LocalProtocolError: It was already finished or requeued.
        """
        if self.answered:
            self._answered_before("touch")
            return
        self.source.touch(self)

    def _answered_before(self, answer: str) -> None:
        """Raise, or let the source warn if the library requeued the message."""
        if self.returned is None:
            raise LocalProtocolError(
                f"{answer}() of {self!r}, which was finished or requeued before: answer a message once"
                f" (run() does that when the handler returns or raises)"
            )
        warn: Callable[[Message, str], None] = getattr(self.source, "warn_of_no_effect")  # noqa: B009 - a consumer's
        warn(self, answer)

    def __enter__(self) -> Self:
        """Return the message; for threads, see :mod:`nsq_ha.sync`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Finish it, or requeue it after an exception; do nothing if it was answered in the block.

        After what is no ``Exception``, such as KeyboardInterrupt, it stays unanswered: it goes back when the consumer
        stops, without a failed attempt.
        """
        if not self.answered:
            if kind is None:
                self.finish()
            elif issubclass(kind, Exception):
                self.requeue()
        elif kind is None and self.returned is not None:
            self._answered_before("finish")

    async def __aenter__(self) -> Self:
        """Return the message; at the end of the block it is finished, or requeued after an exception."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Finish it, or requeue it after an exception; do nothing if it was answered in the block.

        If the task is cancelled in the block and the consumer closes within a quarter of a second, the message goes
        back to nsqd without a failed attempt. If the consumer stays open, a cancellation counts as an exception.

        If the consumer was closed inside the block and requeued the message, this logs a warning.
        """
        if self.answered or kind is None or issubclass(kind, Exception):
            self.__exit__(kind, error, trace)
        elif not self._is_left_open():
            self.requeue()

    def _is_left_open(self) -> bool:
        """Return whether the consumer takes over a message whose block was cancelled, since closing is no failure."""
        interrupted: Callable[[Message], bool] | None = getattr(self.source, "interrupted", None)
        return interrupted is not None and interrupted(self)

    def __repr__(self) -> str:
        """Show ids and size, but not the body."""
        return (
            f"<Message {self._place()} id={self.internal_id:#x} trace_id={self.trace_id}"
            f" attempts={self.attempts} {len(self.body)} bytes>"
        )


def as_stored(message: Message) -> Message:
    """Return the message with body and header as they are stored, if its body was decompressed here."""
    if message.compressed is None:
        return message
    found = copy.copy(message)
    (found.body, found.ext), found.compressed = message.compressed, None
    return found


class Receipt(msgspec.Struct, frozen=True):
    """The acknowledgement of a published message.

    Attributes:
        topic: The topic.
        partition: The partition that holds it.
        nsqd: ``host:port`` of the node that acknowledged it.
        attempts: How often it was written; if more than once, it may be stored
            more than once.
        internal_id: The server's id. None unless traced. None in a batch with
            headers (``MPUB_EXT``), for which the server returns no ids.
        trace_id: The trace id that was sent. None unless traced.
        offset: Byte position in the partition's queue. None like ``internal_id``.
        raw_size: Size in the queue. None like ``internal_id``.
    """

    topic: str
    partition: int
    nsqd: str
    attempts: int = 1
    internal_id: int | None = None
    trace_id: int | None = None
    offset: int | None = None
    raw_size: int | None = None


class OutgoingMessage(msgspec.Struct, frozen=True):
    """One message of ``publish_many``, with its own key, partition and trace.

    Attributes:
        body: The payload, 1 byte to ``max_message_bytes`` (1 MiB by default).
        key: Sharding key. None for no key.
        partition: The partition, not together with a key. None chooses it by key or strategy.
        trace_id: Unsigned 64 bit. None for no trace, or for a random id if the
            producer traces the topic.
        headers: Extension header, only for extended topics. None for no header.
        tag: Dispatch tag, only for extended topics. None for no tag.
    """

    body: bytes
    key: str | bytes | int | None = None
    partition: int | None = None
    trace_id: int | None = None
    headers: Mapping[str, object] | None = None
    tag: str | None = None
