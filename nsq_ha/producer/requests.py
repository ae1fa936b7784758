"""The commands that publish, as data: a PUB of one message, or an MPUB of many.

Each encodes itself and creates the receipts for an answer. A request is also the
``policy.lane.Entry`` of its partition's lane: one object for both, since each
publish creates one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.policy.lane import Entry
from nsq_ha.protocol import decode_traced
from nsq_ha.protocol.encoding import (
    GATHERED_BYTES,
    encode_dpub,
    encode_mpub_ext,
    encode_mpub_trace,
    encode_pub,
    encode_pub_ext,
    encode_pub_trace,
    gather_bodies,
    gather_mpub_of,
    gather_pubs,
)
from nsq_ha.protocol.messages import check_traced, traced_size
from nsq_ha.redaction import excerpt

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from nsq_ha.errors import PublishError
    from nsq_ha.policy.sharding import Key
    from nsq_ha.producer.validate import CheckedMessage


class Place(Protocol):
    """The partition that holds a request."""

    held_bytes: int

    def give_up(self, request: Request) -> None:
        """Record that the caller of ``request`` has stopped waiting."""

    def expire(self, request: Request) -> None:
        """Fail ``request``, whose time limit has passed."""


class Request(Entry, eq=False, kw_only=True):
    """The common part of a PUB and an MPUB.

    Attributes:
        topic: The topic.
        future: Gets one Receipt for each message, or the PublishError.
        size: Bytes of the bodies, for back-pressure.
        body: The body of a PUB. Empty for an MPUB.
        key: The caller's key. None for no key.
        partition: The caller's partition. None if the key or the producer chooses.
        trace_id: The trace id of a PUB. None for no trace.
        ext: The extension header of a PUB, as JSON. None for no header.
        ext_if_extended: The extension header of a PUB if the topic is extended, which is not known before it is
            admitted. None if that makes no difference.
        defer_ms: Of a PUB, the milliseconds until its delivery. None for no delay.
        count: Number of messages.
        is_plain: Whether it has neither trace ids nor headers; the answer then is ``OK``.
        closes_when_refused: Whether the connection is unusable after a refusal.
        place: The partition that holds it; it may move while it waits. None before.
        timeout: Its time limit in seconds. None for the producer's default.
        waits_for_room: Whether it waits for space, or ended while waiting; its bytes do not count.
        deadline: When its time limit ends, in the loop's time.
        began_ns: When the call began, in nanoseconds since the epoch; 0 if it is not traced.
    """

    topic: str
    future: asyncio.Future[list[Receipt]]
    size: int
    body: bytes = b""
    key: Key | None = None
    partition: int | None = None
    trace_id: int | None = None
    ext: bytes | None = None
    ext_if_extended: bytes | None = None
    defer_ms: int | None = None
    count: int = 1
    is_plain: bool = True
    closes_when_refused: bool = False
    place: Place | None = None
    timeout: float | None = None
    waits_for_room: bool = False
    deadline: float = 0.0
    began_ns: int = 0

    def encode(self, partition: int | None) -> bytes:
        """Return the command for ``partition``; None omits the number, for servers without partitions."""
        raise NotImplementedError

    def gather(self, partition: int | None) -> list[bytes]:
        """Return the command as parts to send one after another."""
        return [self.encode(partition)]

    def choose_ext(self, *, is_extended: bool) -> None:
        """Use the header for an extended topic there, and the own one elsewhere."""
        if is_extended:
            self.ext = self.ext_if_extended
        self.is_plain = self.ext is None and self.trace_id is None and self.defer_ms is None
        self.ext_if_extended = None

    def receipts(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return the receipts for the server's answer.

        Raises:
            RemoteProtocolError: The answer does not fit: answers and publishes are misaligned.
        """
        raise NotImplementedError

    def fail(self, error: PublishError) -> None:
        """Raise ``error`` in the caller if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Record that the caller has stopped waiting."""
        if self.place is not None:
            self.place.give_up(self)
        self.future.cancel()


class PubRequest(Request, eq=False, kw_only=True):
    """One message."""

    def encode(self, partition: int | None) -> bytes:
        """Return a PUB, PUB_TRACE, PUB_EXT or DPUB."""
        if self.defer_ms is not None:
            return encode_dpub(self.topic, self.defer_ms, self.body)
        if self.ext is not None:
            return encode_pub_ext(self.topic, partition, self.ext, self.body)
        if self.trace_id is not None:
            return encode_pub_trace(self.topic, partition, self.trace_id, self.body)
        return encode_pub(self.topic, partition, self.body)

    def receipts(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return the one receipt."""
        if self.trace_id is None:
            _check_ok(answer, "PUB" if self.ext is None else "PUB_EXT without a trace id")
            return [Receipt(self.topic, partition, nsqd, self.attempts)]
        traced = decode_traced(answer)
        sizes = traced_size(len(self.body), len(self.ext) if self.ext is not None else None)
        check_traced(traced, trace_id=self.trace_id, partition=partition, sizes=sizes)
        stored = (traced.internal_id, traced.trace_id, traced.offset, traced.raw_size)
        return [Receipt(self.topic, partition, nsqd, self.attempts, *stored)]


class MpubRequest(Request, eq=False, kw_only=True):
    """Many messages of one kind: all plain, all traced, or all with headers (:func:`kind_of`).

    Attributes:
        encoded: All bodies, encoded, if they are plain: parts to send one after another. Else None.
        messages: The messages if they are not plain.
    """

    encoded: list[bytes] | None = None
    messages: Sequence[CheckedMessage] = ()

    def encode(self, partition: int | None) -> bytes:
        """Return an MPUB, MPUB_TRACE or MPUB_EXT."""
        if self.encoded is not None:
            return b"".join(gather_mpub_of(self.topic, partition, self.count, self.encoded))
        if self.closes_when_refused:
            with_headers = [(message.ext or b"", message.body) for message in self.messages]
            return encode_mpub_ext(self.topic, partition, with_headers)
        traced = [(message.trace_id or 0, message.body) for message in self.messages]
        return encode_mpub_trace(self.topic, partition, traced)

    def gather(self, partition: int | None) -> list[bytes]:
        """Return the command without copying large bodies."""
        if self.encoded is None:
            return super().gather(partition)
        return gather_mpub_of(self.topic, partition, self.count, self.encoded)

    def receipts(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return a receipt for each message."""
        topic, messages, attempts = self.topic, self.messages, self.attempts
        if self.is_plain:
            _check_ok(answer, "MPUB")
            return [Receipt(topic, partition, nsqd, attempts)] * self.count
        if self.closes_when_refused:
            # The answer has no ids, even if the headers have trace ids.
            _check_ok(answer, "MPUB_EXT")
            return [Receipt(topic, partition, nsqd, attempts, None, message.trace_id) for message in messages]
        # The server returns the id and offset of the first message only. MPUB is one append under the partition's
        # lock: the other ids follow one by one (the commit log keeps just the first and a count), the offsets by size.
        traced = decode_traced(answer)
        alternatives = list(zip(*(traced_size(len(message.body)) for message in messages), strict=True))
        totals = [sum(sizes) for sizes in alternatives]
        check_traced(traced, trace_id=0, partition=partition, sizes=totals)
        sizes = alternatives[totals.index(traced.raw_size)]
        offset = traced.offset
        receipts = []
        for number, (message, raw_size) in enumerate(zip(messages, sizes, strict=True), traced.internal_id):
            receipts.append(Receipt(topic, partition, nsqd, attempts, number, message.trace_id, offset, raw_size))
            offset += raw_size
        return receipts


def plain_mpub(
    topic: str, bodies: Sequence[bytes], new_future: Callable[[], asyncio.Future[list[Receipt]]], largest: int
) -> MpubRequest:
    """Check and encode plain bodies, each of ``largest`` bytes at most; return the request.

    Raises:
        ConfigError: A body is not valid.
    """
    count, encoded = len(bodies), gather_bodies(bodies, largest)
    size = sum(map(len, encoded)) - 4 * count
    return MpubRequest(topic=topic, future=new_future(), size=size, count=count, encoded=encoded)


def rich_mpub(
    topic: str, messages: Sequence[CheckedMessage], future: asyncio.Future[list[Receipt]], began_ns: int
) -> MpubRequest:
    """Return a request for one or more messages that are all traced or all have headers."""
    return MpubRequest(
        topic=topic,
        future=future,
        size=sum(len(message.body) for message in messages),
        count=len(messages),
        is_plain=False,
        # nsqd reads the rest of a refused MPUB_EXT as commands.
        closes_when_refused=messages[0].ext is not None,
        began_ns=began_ns,
        messages=messages,
    )


def checked_pub(
    topic: str, message: CheckedMessage, future: asyncio.Future[list[Receipt]], began_ns: int = 0
) -> PubRequest:
    """Return a request for one checked message."""
    return PubRequest(
        topic=topic,
        future=future,
        size=len(message.body),
        body=message.body,
        trace_id=message.trace_id,
        ext=message.ext,
        is_plain=message.trace_id is None and message.ext is None,
        began_ns=0 if message.trace_id is None else began_ns,
    )


def _check_ok(answer: bytes, command: str) -> None:
    if answer != b"OK":
        raise RemoteProtocolError(f"the answer to {command} must be OK, not {excerpt(answer)}")


def kind_of(message: CheckedMessage) -> str:
    """Return the kind of batch that a message can be part of: ``ext``, ``trace`` or ``plain``."""
    if message.ext is not None:
        return "ext"
    return "plain" if message.trace_id is None else "trace"


def encode_run(topic: str, partition: int | None, requests: Sequence[Request]) -> bytes | list[bytes]:
    """Return the bytes of one or more requests; if bodies are large, as parts to send one after another.

    A run of plain PUBs takes a third of the time of others.
    """
    if len(requests) == 1:
        first = requests[0]
        if first.body and first.is_plain and first.size < GATHERED_BYTES:
            return encode_pub(topic, partition, first.body)
        if not first.body:  # a batch
            parts = first.gather(partition)
            return parts[0] if len(parts) == 1 else parts
    bodies = [request.body for request in requests if request.is_plain and request.body]
    if len(bodies) == len(requests):
        parts = gather_pubs(topic, partition, bodies)
    else:
        parts = [part for request in requests for part in request.gather(partition)]
        if sum(map(len, parts)) < GATHERED_BYTES * len(requests):
            return b"".join(parts)
    return parts[0] if len(parts) == 1 else parts
