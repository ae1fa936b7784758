"""What a publish is: what its caller may give, and the bytes that nsqd gets; a PUB of one message, or an MPUB of many.

Owns the checks of messages before anything is sent. Each request encodes itself and creates the receipts for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import ConfigError, RemoteProtocolError
from nsq_ha.message import TAG_KEY, TRACE_KEY, OutgoingMessage, Receipt
from nsq_ha.options.checks import check_partition, shown
from nsq_ha.policy.sharding import Key, lane_key, printable
from nsq_ha.producer.state import Request
from nsq_ha.protocol import decode_traced
from nsq_ha.protocol.body_codec import CODEC_HEADER, compress_body
from nsq_ha.protocol.encoding import (
    GATHERED_BYTES,
    MAX_DELAY_MS,
    MAX_EXT_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_TRACE_ID,
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

if TYPE_CHECKING:
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView

KEY_TYPES: Final = frozenset((str, bytes, int))
"""Types of valid keys, including subclasses, but not bool."""


_HEADER_SIZE_WORD: Final = 2


class CheckedMessage(msgspec.Struct, frozen=True):
    """One valid message in its wire form.

    Attributes:
        body: The payload.
        trace_id: The trace id. None if it is sent without one.
        ext: The extension header as JSON. None if the message has none.
    """

    body: bytes
    trace_id: int | None
    ext: bytes | None

    @property
    def kind(self) -> str:
        """The kind of batch that it can be part of: ``ext``, ``trace`` or ``plain``."""
        if self.ext is not None:
            return "ext"
        return "plain" if self.trace_id is None else "trace"

    @property
    def wire_bytes(self) -> int:
        """Maximum number of bytes that it takes in a batch, including its size word."""
        return 4 + len(self.body) + (8 if self.trace_id is not None else 0) + (len(self.ext) + 2 if self.ext else 2)


COMPRESS_FROM: Final = 20 * 1024
"""Size of the smallest body that is compressed, as in Go programs."""


def compressing(config: ProducerConfig, topic: str) -> str | None:
    """Return the codec with which ``config`` compresses the bodies of ``topic``. None for not at all."""
    codec = config.compress_body
    if isinstance(codec, Mapping):
        codec = codec.get(topic)
    return codec


def check_message(
    message: OutgoingMessage,
    trace_id: int | None,
    largest: int = MAX_MESSAGE_BYTES,
    codec: str | None = None,
) -> CheckedMessage:
    """Check a message and encode its headers, tag and trace id.

    Args:
        message: The caller's message.
        trace_id: The id to trace it with. None for no trace.
        largest: The option ``max_message_bytes``.
        codec: How to compress its body. None for not at all.

    Raises:
        ConfigError: Body, key, partition, trace id, headers or tag are not valid; nothing was sent.
    """
    body: object = message.body
    key: object = message.key
    if not isinstance(body, bytes):
        advice = "convert it with bytes()" if isinstance(body, bytearray | memoryview) else "encode it first"
        raise ConfigError(f"a body must be bytes, not {type(body).__name__}: {advice}")
    if not body:
        raise ConfigError("a body must not be empty: nsqd refuses empty messages")
    if key is not None and (isinstance(key, bool) or not isinstance(key, str | bytes | int)):
        raise ConfigError(f"a key must be str, bytes or int, not {type(key).__name__}")
    if isinstance(key, int):
        printable(key)
    if message.partition is not None:
        check_partition(message.partition)
        if key is not None:
            raise ConfigError(
                "key= and partition= both choose the partition: give only one of them (see also sharding=)"
            )
    _check_trace_id(trace_id)
    ext, headers = None, message.headers
    if codec is not None and len(body) >= COMPRESS_FROM and not _is_compressed(headers):
        body, marks = compress_body(body, codec)
        headers = {**(headers or {}), **marks} if marks else headers
    if headers is not None or message.tag is not None:
        ext = _encode_header({} if headers is None else headers, message.tag, trace_id)
    # A message with headers has its trace id among them.
    size = len(body) + (len(ext) + _HEADER_SIZE_WORD if ext else 8 if trace_id is not None else 0)
    if size > largest:
        raise _too_large(size, largest)
    return CheckedMessage(body, trace_id, ext)


def in_context(checked: CheckedMessage, context: Mapping[str, str], largest: int) -> CheckedMessage:
    """Return a message of an extended topic with the headers of a span, unless it has such headers of its own.

    Args:
        checked: The message.
        context: The headers, with which the receiver continues the trace.
        largest: The option ``max_message_bytes``; a message that would exceed it stays as it is.
    """
    own: dict[str, object] = {} if checked.ext is None else json.loads(checked.ext)
    if not own.keys().isdisjoint(context):
        return checked
    if checked.trace_id is not None:
        own[TRACE_KEY] = str(checked.trace_id)
    ext = json.dumps({**context, **own}, separators=(",", ":")).encode()
    if len(ext) > MAX_EXT_BYTES or len(checked.body) + len(ext) + 1 + _HEADER_SIZE_WORD > largest:
        return checked
    return CheckedMessage(checked.body, checked.trace_id, ext)


def _is_compressed(headers: object) -> bool:
    """Return whether the caller has compressed the body. Wrong headers are refused later."""
    return headers is not None and (not isinstance(headers, Mapping) or CODEC_HEADER in headers)


def _check_trace_id(trace_id: object) -> None:
    if trace_id is not None and (
        isinstance(trace_id, bool) or not isinstance(trace_id, int) or not 0 <= trace_id <= MAX_TRACE_ID
    ):
        raise ConfigError(f"trace_id must be an unsigned 64-bit int, not {shown(trace_id)}")


def _encode_header(headers: object, tag: object, trace_id: int | None) -> bytes:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping, not {type(headers).__name__}")
    for key in headers:
        if not isinstance(key, str):
            raise ConfigError(f"the name of a header must be a str, not {shown(key)}")
        if key.startswith("##"):
            raise ConfigError(f"header {key!r}: the server reserves names that begin with ##; use tag= and trace_id=")
    full = dict(headers)
    if tag is not None:
        if not isinstance(tag, str) or not 1 <= len(tag.encode("utf-8", "surrogatepass")) <= 100:
            raise ConfigError("tag must be a str of 1..100 bytes")
        full[TAG_KEY] = tag
    if trace_id is not None:
        full[TRACE_KEY] = str(trace_id)
    try:
        ext = json.dumps(full, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"headers cannot be encoded as JSON: {error}") from error
    if len(ext) > MAX_EXT_BYTES:
        raise ConfigError(f"headers take {len(ext)} bytes as JSON, but the limit is {MAX_EXT_BYTES}")
    return ext


def check_compression(view: TopicView) -> None:
    """Check that bodies of the topic can be compressed.

    Raises:
        ConfigError: They cannot.
    """
    if view.meta is None or view.meta.extend_support:
        return
    cure = "plain nsqd has none"
    if view.meta.is_partitioned:
        cure = "create it extended (nsq-ha topic create --extended)"
    raise ConfigError(
        f"compress_body: messages of topic {view.topic!r} have no headers, which say how a body is compressed: {cure};"
        f" or name other topics in compress_body"
    )


def check_size(view: TopicView, body_bytes: int, ext: bytes | None, largest: int) -> None:
    """Check that an extended topic can store a message; beside body and header, nsqd writes the form of the header.

    nsqd finds out when it writes: it refuses with the code of a failure that may pass, and takes no other publish of
    the partition for a moment.

    Source: server protocol 2; youzan/nsq ``nsqd/diskqueue_writer.go``, ``invalid message write size``.

    Raises:
        ConfigError: It cannot.
    """
    if view.meta is None or not view.meta.extend_support:
        return
    size = body_bytes + (1 if ext is None else 1 + _HEADER_SIZE_WORD + len(ext))
    if size > largest:
        raise _too_large(size, largest)


def _too_large(size: int, largest: int) -> ConfigError:
    return ConfigError(
        f"a message of {size} bytes, trace id and headers included, exceeds max_message_bytes={largest}: split it;"
        f" or raise max_message_bytes if nsqd accepts more, as its --max-msg-size says"
    )


def check_kind(view: TopicView, trace_id: int | None, ext: bytes | None, defer_ms: int | None = None) -> None:
    """Check that the topic accepts a message with this trace id, extension header and delay.

    Raises:
        ConfigError: It does not.
    """
    meta = view.meta
    if meta is None:
        return
    if ext is not None and not meta.is_partitioned:
        raise ConfigError("headers= and tag= need the partitioned server: messages of plain nsqd have neither")
    if ext is not None and not meta.extend_support:
        raise ConfigError(
            f"topic {view.topic!r} accepts no headers or tags: create it extended (nsq-ha topic create --extended)"
        )
    if trace_id is not None and not meta.is_partitioned:
        raise ConfigError("trace_id= and trace= need the partitioned server: publish without them")
    if defer_ms is not None and meta.is_partitioned:
        raise ConfigError(
            "defer= needs plain nsqd: the partitioned server cannot delay a message. Publish it later, or let the"
            " consumer requeue it with a delay"
        )


def check_defer(defer: object, checked: CheckedMessage) -> int | None:
    """Return a delay in milliseconds.

    Raises:
        ConfigError: It is not a number of 0 or more, or the message has what no plain nsqd knows.
    """
    if defer is None:
        return None
    if isinstance(defer, bool) or not isinstance(defer, int | float) or not 0 <= defer <= MAX_DELAY_MS / 1000:
        raise ConfigError(f"defer must be a number of seconds, 0..{MAX_DELAY_MS // 1000}, not {shown(defer)}")
    if checked.trace_id is not None or checked.ext is not None:
        raise ConfigError("defer= cannot be combined with a trace, headers or a tag: plain nsqd knows none of them")
    return round(defer * 1000)


# ---------------------------------------------------------------- commands


class Command(Request, eq=False, kw_only=True):
    """A request that can be encoded.

    Attributes:
        compresses: Whether bodies of the topic are compressed.
    """

    compresses: bool = False

    def suit(self, view: TopicView, largest: int) -> None:
        """Check that the topic accepts it; what it has of sizes, a batch has checked."""
        if self.compresses:
            check_compression(view)

    def encode(self, partition: int | None) -> bytes:
        """Return the command for ``partition``; None omits the number, for servers without partitions."""
        raise NotImplementedError

    def gather(self, partition: int | None) -> list[bytes]:
        """Return the command as parts to send one after another."""
        return [self.encode(partition)]


class PubRequest(Command, eq=False, kw_only=True):
    """One message.

    Attributes:
        trace_id: The trace id. None for no trace.
        ext: The extension header, as JSON. None for no header.
        ext_if_extended: The extension header if the topic is extended, which may not be known yet. None if that makes
            no difference.
        defer_ms: The milliseconds until its delivery. None for no delay.
    """

    trace_id: int | None = None
    ext: bytes | None = None
    ext_if_extended: bytes | None = None
    defer_ms: int | None = None

    def suit(self, view: TopicView, largest: int) -> None:
        """Take the header for extended topics on such a topic; check that the topic accepts what it has."""
        super().suit(view, largest)
        if self.ext_if_extended is not None:
            if view.meta is not None and view.meta.extend_support:
                self.ext = self.ext_if_extended
            self.is_plain: bool = self.ext is None and self.trace_id is None and self.defer_ms is None
            self.ext_if_extended = None
        check_kind(view, self.trace_id, self.ext, self.defer_ms)
        check_size(view, len(self.body), self.ext, largest)

    def encode(self, partition: int | None) -> bytes:
        """Return a PUB, PUB_TRACE, PUB_EXT or DPUB."""
        if self.defer_ms is not None:
            return encode_dpub(self.topic, self.defer_ms, self.body)
        if self.ext is not None:
            return encode_pub_ext(self.topic, partition, self.ext, self.body)
        if self.trace_id is not None:
            return encode_pub_trace(self.topic, partition, self.trace_id, self.body)
        return encode_pub(self.topic, partition, self.body)

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


class MpubRequest(Command, eq=False, kw_only=True):
    """Many messages of one kind: all plain, all traced, or all with headers.

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
    topic: str,
    message: CheckedMessage,
    limit: float,
    *,
    began_ns: int = 0,
    key: Key | None = None,
    partition: int | None = None,
    defer: object = None,
) -> PubRequest:
    """Return a request for one checked message.

    Raises:
        ConfigError: ``defer`` is not valid, or does not go together with the message.
    """
    trace_id, ext, defer_ms = message.trace_id, message.ext, check_defer(defer, message)
    return PubRequest(
        topic=topic,
        limit=limit,
        size=len(message.body),
        body=message.body,
        key=key,
        partition=partition,
        keys=() if key is None and partition is None else (lane_key(key),),
        trace_id=trace_id,
        ext=ext,
        defer_ms=defer_ms,
        is_plain=trace_id is None and ext is None and defer_ms is None,
        began_ns=0 if trace_id is None else began_ns,
    )


def _check_ok(answer: bytes, command: str) -> None:
    if answer != b"OK":
        raise RemoteProtocolError(f"the answer to {command} must be OK, not {excerpt(answer)}")


def encode_run(topic: str, partition: int | None, requests: Sequence[Command]) -> bytes | list[bytes]:
    """Return the bytes of one or more requests; if bodies are large, as parts to send one after another.

    A run of plain PUBs takes a third of the time of others.
    """
    if len(requests) == 1 and not requests[0].body:  # a batch
        parts = requests[0].gather(partition)
        return parts[0] if len(parts) == 1 else parts
    bodies = [request.body for request in requests if request.is_plain and request.body]
    if len(bodies) == len(requests):
        parts = gather_pubs(topic, partition, bodies)
    else:
        parts = [part for request in requests for part in request.gather(partition)]
        if sum(map(len, parts)) < GATHERED_BYTES * len(requests):
            return b"".join(parts)
    return parts[0] if len(parts) == 1 else parts
