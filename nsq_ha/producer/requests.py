"""What nsqd gets of a publish, and what its answer means: a PUB of one message, or an MPUB of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.producer.messages import CheckedMessage, check_accepted, in_context
from nsq_ha.producer.state import PublishRequest
from nsq_ha.protocol import decode_traced
from nsq_ha.protocol.encoding import (
    GATHERED_BYTES,
    encode_dpub,
    encode_mpub_ext,
    encode_mpub_trace,
    encode_pub_ext,
    encode_pub_trace,
    gather_bodies,
    gather_mpub_of,
    gather_pubs,
)
from nsq_ha.protocol.messages import check_traced, traced_size

if TYPE_CHECKING:
    from nsq_ha.policy.topology import TopicView

_NO_CONTEXT: Final[Mapping[str, str]] = MappingProxyType({})


class PubRequest(PublishRequest, eq=False, kw_only=True):
    """One message.

    Attributes:
        trace_id: The trace id. None for no trace.
        ext: The extension header, as JSON. None for no header.
        defer_ms: The milliseconds until its delivery. None for no delay.
        compresses: Whether bodies of the topic are compressed.
        context: Headers to add if the topic is extended, which may not be known yet.
    """

    trace_id: int | None = None
    ext: bytes | None = None
    defer_ms: int | None = None
    compresses: bool = False
    context: Mapping[str, str] = _NO_CONTEXT

    def suit(self, view: TopicView, largest: int) -> None:
        """Take the headers for extended topics on such a topic; check that the topic accepts what it has."""
        message = CheckedMessage(self.body, self.trace_id, self.ext)
        if self.context and view.meta is not None and view.meta.extend_support:
            message = in_context(message, self.context, largest)
            self.ext = message.ext
            self.is_plain: bool = self.is_plain and message.ext is None
        check_accepted(view, message, largest, defer_ms=self.defer_ms, compresses=self.compresses)

    def encode(self, partition: int | None) -> list[bytes]:
        """Return a PUB, PUB_TRACE, PUB_EXT or DPUB."""
        if self.defer_ms is not None:
            return [encode_dpub(self.topic, self.defer_ms, self.body)]
        if self.ext is not None:
            return [encode_pub_ext(self.topic, partition, self.ext, self.body)]
        if self.trace_id is not None:
            return [encode_pub_trace(self.topic, partition, self.trace_id, self.body)]
        return gather_pubs(self.topic, partition, [self.body])

    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return the one receipt."""
        if self.trace_id is None:
            _check_ok(answer, "PUB" if self.ext is None else "PUB_EXT without a trace id")
            return [Receipt(self.topic, partition, nsqd, self.attempts)]
        traced = decode_traced(answer)
        sizes = traced_size(len(self.body), len(self.ext) if self.ext is not None else None)
        check_traced(traced, trace_id=self.trace_id, partition=partition, sizes=sizes)
        stored = (traced.internal_id, traced.trace_id, traced.offset, traced.raw_size)
        return [Receipt(self.topic, partition, nsqd, self.attempts, *stored)]


class MpubRequest(PublishRequest, eq=False, kw_only=True):
    """Many messages of one kind: all plain, all traced, or all with headers.

    Attributes:
        encoded: All bodies, encoded, if they are plain: parts to send one after another.
        messages: The messages if they are not plain.
    """

    encoded: Sequence[bytes] = ()
    messages: Sequence[CheckedMessage] = ()

    def encode(self, partition: int | None) -> list[bytes]:
        """Return an MPUB without copying large bodies, an MPUB_TRACE or an MPUB_EXT."""
        if self.is_plain:
            return gather_mpub_of(self.topic, partition, self.count, self.encoded)
        if self.closes_when_refused:
            with_headers = [(message.ext or b"", message.body) for message in self.messages]
            return [encode_mpub_ext(self.topic, partition, with_headers)]
        traced = [(message.trace_id or 0, message.body) for message in self.messages]
        return [encode_mpub_trace(self.topic, partition, traced)]

    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
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


def plain_mpub(topic: str, bodies: Sequence[bytes], limit: float, largest: int) -> MpubRequest:
    """Check and encode plain bodies, each of ``largest`` bytes at most; return the request.

    Raises:
        ConfigError: A body is not valid.
    """
    count, encoded = len(bodies), gather_bodies(bodies, largest)
    size = sum(map(len, encoded)) - 4 * count
    return MpubRequest(topic=topic, limit=limit, size=size, count=count, encoded=encoded)


def rich_mpub(topic: str, messages: Sequence[CheckedMessage], limit: float, began_ns: int) -> MpubRequest:
    """Return a request for one or more messages that are all traced or all have headers."""
    return MpubRequest(
        topic=topic,
        limit=limit,
        size=sum(len(message.body) for message in messages),
        count=len(messages),
        is_plain=False,
        # nsqd reads the rest of a refused MPUB_EXT as commands.
        closes_when_refused=messages[0].ext is not None,
        began_ns=began_ns,
        messages=messages,
    )


def single_pub(
    topic: str, message: CheckedMessage, limit: float, began_ns: int, defer_ms: int | None = None
) -> PubRequest:
    """Return a request for one checked message."""
    return PubRequest(
        topic=topic,
        limit=limit,
        size=len(message.body),
        body=message.body,
        trace_id=message.trace_id,
        ext=message.ext,
        defer_ms=defer_ms,
        is_plain=message.kind == "plain" and defer_ms is None,
        began_ns=0 if message.trace_id is None else began_ns,
    )


def _check_ok(answer: bytes, command: str) -> None:
    if answer != b"OK":
        raise RemoteProtocolError(f"the answer to {command} must be OK, not {excerpt(answer)}")


def encode_run(topic: str, partition: int | None, requests: Sequence[PublishRequest]) -> bytes | list[bytes]:
    """Return the bytes of one or more requests; if bodies are large, as parts to send one after another.

    A run of plain PUBs takes a third of the time of others.
    """
    bodies = [request.body for request in requests if request.is_plain and request.body]
    if len(bodies) == len(requests):
        parts = gather_pubs(topic, partition, bodies)
    else:
        parts = [part for request in requests for part in request.encode(partition)]
        if len(requests) > 1 and sum(map(len, parts)) < GATHERED_BYTES * len(requests):
            return b"".join(parts)
    return parts[0] if len(parts) == 1 else parts
