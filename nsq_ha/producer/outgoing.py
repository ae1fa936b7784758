"""One publish call's message or batch, on its way to a partition."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.errors import ConfigError, RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.names import check_partition
from nsq_ha.policy.lane import Entry
from nsq_ha.protocol import (
    check_traced,
    decode_traced,
    encode_bodies,
    encode_mpub_ext,
    encode_mpub_of,
    encode_mpub_trace,
    encode_pub,
    encode_pub_ext,
    encode_pub_trace,
    encode_pubs,
    traced_size,
)
from nsq_ha.redaction import excerpt

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Sequence

    from nsq_ha.errors import PublishError
    from nsq_ha.message import OutgoingMessage
    from nsq_ha.policy.sharding import Key
    from nsq_ha.producer.sender import Sender

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_TRACE_ID: Final = 2**64 - 1
MAX_HEADER_BYTES: Final = 65535
TRACE_KEY: Final = "##trace_id"
TAG_KEY: Final = "##client_dispatch_tag"
_HEADER_ROOM: Final = 2


class Prepared(msgspec.Struct, frozen=True):
    """One checked message in the form the wire wants.

    Attributes:
        body: The payload.
        trace_id: None when it is sent without trace.
        ext: The extension header as JSON. None when the message has none.
    """

    body: bytes
    trace_id: int | None
    ext: bytes | None

    @property
    def wire_bytes(self) -> int:
        """Bytes it takes in a batch, its size word and the larger of the possible heads included."""
        return 4 + len(self.body) + (8 if self.trace_id is not None else 0) + (len(self.ext) + 2 if self.ext else 2)


def check_trace_id(trace_id: object) -> int | None:
    """Return ``trace_id`` unchanged when it is legal.

    Raises:
        ConfigError: It is neither None nor an unsigned 64-bit int.
    """
    if trace_id is None:
        return None
    if isinstance(trace_id, bool) or not isinstance(trace_id, int) or not 0 <= trace_id <= MAX_TRACE_ID:
        raise ConfigError(f"trace_id must be an unsigned 64-bit int, not {trace_id!r}")
    return trace_id


def lane_key(key: Key) -> Hashable:
    """Return what publishes that must keep their order have in common: equal for all forms of one key."""
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    return str(int(key)).encode() if isinstance(key, int) else key


def prepare(message: OutgoingMessage, trace_id: int | None) -> Prepared:
    """Check a message and bring headers, tag and trace id into the wire's form.

    Args:
        message: As the caller gave it.
        trace_id: What it is traced with. None for no trace.

    Raises:
        ConfigError: Body, key, partition, trace id, headers or tag are not legal; nothing was sent.
    """
    body: object = message.body
    key: object = message.key
    if not isinstance(body, bytes):
        raise ConfigError(f"a body must be bytes, not {type(body).__name__}: encode it first")
    if not body:
        raise ConfigError("a body must not be empty: the server refuses it")
    if key is not None and (isinstance(key, bool) or not isinstance(key, str | bytes | int)):
        raise ConfigError(f"a key must be str, bytes or int, not {type(key).__name__}")
    if message.partition is not None:
        check_partition(message.partition)
    trace_id = check_trace_id(trace_id)
    ext = None
    if message.headers is not None or message.tag is not None:
        ext = _header({} if message.headers is None else message.headers, message.tag, trace_id)
    size = len(body) + (8 if trace_id is not None else 0) + (len(ext) + _HEADER_ROOM if ext else 0)
    if size > MAX_MESSAGE_BYTES:
        raise ConfigError(
            f"message of {size} bytes, trace id and headers included, is over the server's {MAX_MESSAGE_BYTES}"
        )
    return Prepared(body, trace_id, ext)


def _header(headers: object, tag: object, trace_id: int | None) -> bytes:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers must be a mapping, not {type(headers).__name__}")
    for key in headers:
        if not isinstance(key, str):
            raise ConfigError(f"a header's name must be a str, not {key!r}")
        if key.startswith("##"):
            raise ConfigError(f"header {key!r}: keys beginning ## are the server's own; use tag= and trace_id=")
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
        raise ConfigError(f"headers cannot be written as JSON: {error}") from error
    if len(ext) > MAX_HEADER_BYTES:
        raise ConfigError(f"headers take {len(ext)} bytes of JSON, the limit is {MAX_HEADER_BYTES}")
    return ext


class Outgoing(Entry["Outgoing"]):
    """One command on its way: what it publishes, who waits for it, and how it stands in its partition's queue.

    One object is all of this, since one is made for each publish.

    Attributes:
        topic: The topic.
        future: Gets one Receipt for each message, or the PublishError.
        size: Bytes of the bodies, for back-pressure.
        close_on_error: After a refusal the connection cannot be trusted.
        sender: Where it is queued; it may move while it waits. None before.
        timeout: Seconds that it has. None for those that most have.
        is_in_line: It waits for space, or did until its end, so its bytes do not count.
        deadline: When they are over, in the loop's time.
        began_ns: When the publish was called, nanoseconds since the epoch; 0 when it is not traced.
    """

    # Class attributes stand for the values of a new one, as in Entry.
    close_on_error = False
    sender: Sender | None = None
    timeout: float | None = None
    is_in_line = False
    deadline = 0.0
    began_ns = 0

    def __init__(self, topic: str, future: asyncio.Future[list[Receipt]], size: int) -> None:
        self.topic = topic
        self.future = future
        self.size = size

    @property
    def item(self) -> Outgoing:
        """Itself."""
        return self

    def encode(self, partition: int | None) -> bytes:
        """Return the command's bytes for ``partition``; None leaves the word out, for servers without partitions."""
        raise NotImplementedError

    def receipts(self, answer: bytes, partition: int, nsqd: str, attempts: int) -> list[Receipt]:
        """Make receipts from the server's answer.

        Raises:
            RemoteProtocolError: The answer does not fit, so answers and publishes are misaligned.
        """
        raise NotImplementedError

    def fail(self, error: PublishError) -> None:
        """Give the error to whoever waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def submit(self, sender: Sender, keys: Sequence[Hashable]) -> None:
        """Queue it at ``sender``, in line if there is no space; it stays in order with others of ``keys``."""
        self.sender = sender
        if keys:
            self.keys = tuple(dict.fromkeys(keys))
        sender.line.admit(self)

    def give_up(self) -> None:
        """Note that nobody waits any more."""
        if self.sender is not None:
            self.sender.give_up(self)
        self.future.cancel()


class Single(Outgoing):
    """One message."""

    def __init__(self, topic: str, message: Prepared, future: asyncio.Future[list[Receipt]]) -> None:
        """Keep the parts."""
        self.topic = topic
        self.future = future
        self.size = len(message.body)
        self.message = message
        if message.trace_id is not None:
            self.began_ns = time.time_ns()

    def encode(self, partition: int | None) -> bytes:
        """Return a PUB, PUB_TRACE or PUB_EXT."""
        message = self.message
        if message.ext is not None:
            return encode_pub_ext(self.topic, partition, message.ext, message.body)
        if message.trace_id is not None:
            return encode_pub_trace(self.topic, partition, message.trace_id, message.body)
        return encode_pub(self.topic, partition, message.body)

    def receipts(self, answer: bytes, partition: int, nsqd: str, attempts: int) -> list[Receipt]:
        """Make the one receipt."""
        message = self.message
        if message.trace_id is None:
            _check_plain(answer, "PUB_EXT without a trace id")
            return [Receipt(self.topic, partition, nsqd, attempts)]
        told = decode_traced(answer)
        sizes = traced_size(len(message.body), len(message.ext) if message.ext is not None else None)
        check_traced(told, trace_id=message.trace_id, partition=partition, sizes=sizes)
        where = (told.internal_id, told.trace_id, told.offset, told.raw_size)
        return [Receipt(self.topic, partition, nsqd, attempts, *where)]


class Plain(Outgoing):
    """One message without trace id or header: most are."""

    count = 1

    def __init__(
        self, topic: str, body: bytes, size: int, future: asyncio.Future[list[Receipt]], sender: Sender
    ) -> None:
        """Keep the parts; ``sender`` is where it is queued next."""
        self.topic = topic
        self.body = body
        self.size = size
        self.future = future
        self.sender = sender

    def encode(self, partition: int | None) -> bytes:
        """Return a PUB."""
        return encode_pub(self.topic, partition, self.body)

    def receipts(self, answer: bytes, partition: int, nsqd: str, attempts: int) -> list[Receipt]:
        """Make the one receipt."""
        _check_plain(answer, "PUB")
        return [Receipt(self.topic, partition, nsqd, attempts)]


class PlainBatch(Outgoing):
    """Bodies without trace ids or headers."""

    def __init__(
        self, topic: str, count: int, encoded: bytes, size: int, future: asyncio.Future[list[Receipt]]
    ) -> None:
        """Keep the parts: ``count`` bodies of ``size`` bytes, at least one, encoded by ``encode_bodies``."""
        self.topic = topic
        self.future = future
        self.size = size
        self.count = count
        self._encoded = encoded

    def encode(self, partition: int | None) -> bytes:
        """Return an MPUB."""
        return encode_mpub_of(self.topic, partition, self.count, self._encoded)

    def receipts(self, answer: bytes, partition: int, nsqd: str, attempts: int) -> list[Receipt]:
        """Make the receipts: nothing tells one message from another, so one serves for all."""
        _check_plain(answer, "MPUB")
        return [Receipt(self.topic, partition, nsqd, attempts)] * self.count


def plain_batch(
    topic: str, bodies: Sequence[bytes], new_future: Callable[[], asyncio.Future[list[Receipt]]]
) -> PlainBatch:
    """Make a batch of bodies that are checked, or nearly: to encode them is the last check.

    Raises:
        ConfigError: One of them is not legal.
    """
    count, encoded = len(bodies), encode_bodies(bodies)
    return PlainBatch(topic, count, encoded, len(encoded) - 4 * count, new_future())


class RichBatch(Outgoing):
    """Messages of which each has a trace id, or each an extension header (:func:`kind_of`)."""

    def __init__(self, topic: str, messages: Sequence[Prepared], future: asyncio.Future[list[Receipt]]) -> None:
        """Keep the parts; there is at least one message."""
        super().__init__(topic, future, sum(len(message.body) for message in messages))
        self.messages = messages
        self.close_on_error = messages[0].ext is not None
        self.began_ns = time.time_ns()

    def encode(self, partition: int | None) -> bytes:
        """Return an MPUB_EXT or MPUB_TRACE."""
        if self.close_on_error:
            with_headers = [(message.ext or b"", message.body) for message in self.messages]
            return encode_mpub_ext(self.topic, partition, with_headers)
        traced = [(message.trace_id or 0, message.body) for message in self.messages]
        return encode_mpub_trace(self.topic, partition, traced)

    def receipts(self, answer: bytes, partition: int, nsqd: str, attempts: int) -> list[Receipt]:
        """Make the receipts."""
        topic, messages = self.topic, self.messages
        if self.close_on_error:
            # The server returns no ids, even if the headers hold trace ids.
            _check_plain(answer, "MPUB_EXT")
            return [Receipt(topic, partition, nsqd, attempts, None, message.trace_id) for message in messages]
        # The server tells the id and offset of the first message only. MPUB is one append under the partition's
        # lock: the other ids follow one by one (the commit log keeps just the first and a count), the offsets by size.
        told = decode_traced(answer)
        alternatives = list(zip(*(traced_size(len(message.body)) for message in messages), strict=True))
        totals = [sum(sizes) for sizes in alternatives]
        check_traced(told, trace_id=0, partition=partition, sizes=totals)
        sizes = alternatives[totals.index(told.raw_size)]
        offset = told.offset
        receipts = []
        for number, (message, raw_size) in enumerate(zip(messages, sizes, strict=True), told.internal_id):
            receipts.append(Receipt(topic, partition, nsqd, attempts, number, message.trace_id, offset, raw_size))
            offset += raw_size
        return receipts


def _check_plain(answer: bytes, command: str) -> None:
    if answer != b"OK":
        raise RemoteProtocolError(f"answer to {command} is not OK but {excerpt(answer)}")


def kind_of(message: Prepared) -> str:
    """Name the kind of batch a message can be part of: ``ext``, ``trace`` or ``plain``."""
    if message.ext is not None:
        return "ext"
    return "plain" if message.trace_id is None else "trace"


def encode_run(topic: str, partition: int | None, entries: Sequence[Entry[Outgoing]]) -> bytes:
    """Return the bytes of all of them, one at least; a run of plain messages takes a third of the time."""
    first = entries[0]
    if len(entries) == 1:
        return encode_pub(topic, partition, first.body) if type(first) is Plain else first.item.encode(partition)
    bodies = [entry.body for entry in entries if type(entry) is Plain]
    if len(bodies) == len(entries):
        return encode_pubs(topic, partition, bodies)
    return b"".join([entry.item.encode(partition) for entry in entries])
