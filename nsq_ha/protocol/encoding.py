"""Encode the commands that a client sends for each message, as plain functions.

Owns the layout of publishes and of answers to messages. ``protocol.commands`` has
all commands as values; a function costs a third of a dataclass.

The invariant: each result is exactly one command. ``nsq_ha.options.checks`` checks
names, ids have 16 bytes, and bodies are bytes that a size word can describe, so
it always matches the data that follows it.

Source: server protocol 1, 3-7; youzan/nsq ``nsqdserver/protocol_v2.go``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import check_partition, check_topic, shown

MAGIC: Final = b"  V2"
"""First bytes of a connection; they have no answer."""

NOP: Final = b"NOP\n"
"""The answer to a heartbeat; has no answer itself."""

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Largest message, including trace id and extension header, by the default of nsqd's ``-max-msg-size``."""

MAX_BODY_BYTES: Final = 5 * 1024 * 1024
"""Largest body of IDENTIFY, AUTH and the MPUB family by the default of nsqd's ``-max-body-size``."""

MAX_SIZE: Final = 2**31 - 1
"""Largest size that a size word can hold. What a server accepts depends on its flags, so callers check that."""

MAX_EXT_BYTES: Final = 0xFFFF
"""Maximum size of an extension header, whose length has 16 bits."""

MAX_TRACE_ID: Final = 2**64 - 1
"""Maximum trace id, since ids are unsigned and have 64 bits."""

MAX_DELAY_MS: Final = (2**63 - 1) // 1_000_000
"""Milliseconds above which the server's arithmetic overflows. Its ``-max-req-timeout`` is far below this: it shortens
a longer delay of a requeue to it, and refuses a longer one of a deferred message."""

MESSAGE_ID_BYTES: Final = 16
"""Size of a message id, which is an internal id and a trace id of 8 bytes each."""

GATHERED_BYTES: Final = 4096
"""Average size of bodies from which copying them into one buffer costs more than passing each to the system."""

_ID_LENGTH: Final = frozenset((MESSAGE_ID_BYTES,))
_SIZE: Final = struct.Struct(">i")
_SIZE_TRACE: Final = struct.Struct(">iQ")
_SIZE_EXT: Final = struct.Struct(">iH")
_SIZE_COUNT: Final = struct.Struct(">ii")


@lru_cache(maxsize=4096)
def _head(word: str, topic: str, partition: int | None) -> bytes:
    """Return the checked command line; the cache checks names once, not for every message."""
    check_topic(topic)
    if partition is None:
        return f"{word} {topic}\n".encode("ascii")
    return f"{word} {topic} {check_partition(partition)}\n".encode("ascii")


def as_bytes(kind: str, data: object) -> bytes:
    """Return ``data`` as bytes.

    Buffers are copied: the length of a memoryview of integers is not its number
    of bytes, and a bytearray may change before it is written.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ConfigError(f"{kind} must be bytes, not {type(data).__name__}")


def refuse_size(kind: str, size: int, largest: int) -> ConfigError:
    """Return the error for a size out of range."""
    return ConfigError(f"{kind} must have 1..{largest} bytes, not {size}")


def encode_pub(topic: str, partition: int | None, body: bytes) -> bytes:
    r"""Encode ``PUB``; answered by ``OK``.

    Bytes::

        PUB <topic> [<partition>]\n
        0   4 bytes  size of the body, signed, 1 or more
        4   ...      the body

    Args:
        topic: Name of the topic.
        partition: The partition. None omits it: the server then chooses a
            partition that it leads, and refuses ordered topics.
        body: 1 byte or more.

    Raises:
        ConfigError: A name, the partition or the body is not valid. Nothing
            was sent; correct the call.

    Source: server protocol 6; ``protocol_v2.go`` ``internalPubExtAndTrace``.
    """
    if type(body) is not bytes:
        body = as_bytes("message body", body)
    size = len(body)
    if not 0 < size <= MAX_SIZE:
        raise refuse_size("message body", size, MAX_SIZE)
    return _head("PUB", topic, partition) + _SIZE.pack(size) + body


def encode_dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    r"""Encode ``DPUB``, which plain nsqd delivers after a delay; answered by ``OK``.

    Bytes::

        DPUB <topic> <milliseconds>\n
        0   4 bytes  size of the body, signed, 1 or more
        4   ...      the body

    Args:
        topic: Name of the topic.
        defer_ms: Milliseconds until the first delivery.
        body: 1 byte or more.

    Raises:
        ConfigError: As for :func:`encode_pub`, or ``defer_ms`` is not an int from 0 to :data:`MAX_DELAY_MS`.

    Source: upstream ``protocol_v2.go`` ``DPUB``.
    """
    if type(defer_ms) is not int or not 0 <= defer_ms <= MAX_DELAY_MS:
        raise ConfigError(
            f"the delay of a deferred message must be an int of 0..{MAX_DELAY_MS} ms, not {shown(defer_ms)}"
        )
    body = as_bytes("message body", body)
    if not 0 < len(body) <= MAX_SIZE:
        raise refuse_size("message body", len(body), MAX_SIZE)
    return b"DPUB %b %d\n" % (check_topic(topic).encode(), defer_ms) + _SIZE.pack(len(body)) + body


def gather_pubs(topic: str, partition: int | None, bodies: Sequence[bytes]) -> list[bytes]:
    """Encode a ``PUB`` for each body, at a third of the cost of encoding them one by one; do not copy large bodies.

    Returns:
        Parts to send one after another; a single one if the bodies are small.

    Raises:
        ConfigError: As for :func:`encode_pub`.

    Source: as for :func:`encode_pub`.
    """
    return _gathered(_head("PUB", topic, partition), body_sizes(bodies, MAX_SIZE), bodies)


def encode_pub_trace(topic: str, partition: int | None, trace_id: int, body: bytes) -> bytes:
    r"""Encode ``PUB_TRACE``; answered by 30 bytes, see ``decode_traced``.

    Bytes::

        PUB_TRACE <topic> [<partition>]\n
        0   4 bytes  size of all that follows, signed, 9 or more
        4   8 bytes  trace id, unsigned
        12  ...      the body

    Raises:
        ConfigError: As for :func:`encode_pub`, or the trace id is not an unsigned
            64 bit number.

    Source: server protocol 6; ``protocol_v2.go`` ``internalPubExtAndTrace``.
    """
    return _head("PUB_TRACE", topic, partition) + _traced_message(trace_id, body)


def encode_pub_ext(topic: str, partition: int | None, ext: bytes, body: bytes) -> bytes:
    r"""Encode ``PUB_EXT``; answered by ``OK``, or by 30 bytes if the header has ``##trace_id``.

    Bytes::

        PUB_EXT <topic> [<partition>]\n
        0   4 bytes  size of all that follows, signed, 3 or more
        4   2 bytes  length n of the header, unsigned
        6   n bytes  the header, JSON
        ..  ...      the body

    Raises:
        ConfigError: As for :func:`encode_pub`, or the header is empty or longer
            than 65535 bytes.

    Source: server protocol 6, 10; ``protocol_v2.go`` ``internalPubExtAndTrace``.
    """
    ext, body = as_bytes("extension header", ext), as_bytes("message body", body)
    if not ext:
        raise ConfigError("PUB_EXT needs an extension header; {} is the smallest")
    return _head("PUB_EXT", topic, partition) + _ext_message(ext, body)


def encode_mpub(topic: str, partition: int | None, bodies: Iterable[bytes]) -> bytes:
    r"""Encode ``MPUB``: all messages in one append to one partition; answered by one ``OK``.

    Bytes::

        MPUB <topic> [<partition>]\n
        0   4 bytes  size of all that follows, signed
        4   4 bytes  number of messages, signed, at least 1
        then for each message
        0   4 bytes  size of the message, signed, 1 or more
        4   ...      the message

    Raises:
        ConfigError: As for :func:`encode_pub`, or there is no message, or all
            messages together exceed 2 GiB.

    Source: server protocol 6; ``protocol_v2.go`` ``readMPUBEXT``.
    """
    given = [body if type(body) is bytes else as_bytes("message body", body) for body in bodies]
    return _batch(_head("MPUB", topic, partition), len(given), (_joined(b"", body_sizes(given, MAX_SIZE), given),))


def gather_bodies(bodies: Sequence[bytes], largest: int) -> list[bytes]:
    """Encode the messages of an ``MPUB`` without its head, for :func:`gather_mpub_of`; do not copy large bodies.

    No messages give no bytes.

    Raises:
        ConfigError: A body is not bytes, or its size is not valid.

    Source: as for :func:`encode_mpub`.
    """
    return _gathered(b"", body_sizes(bodies, largest), bodies)


def body_sizes(bodies: Sequence[bytes], largest: int) -> list[int]:
    """Check all bodies and return their sizes.

    Args:
        bodies: The messages.
        largest: Maximum size of one.

    Raises:
        ConfigError: A body is not bytes, or its size is not valid.
    """
    # All in C: a Python loop would cost as much as the rest of a publish.
    if list(map(type, bodies)).count(bytes) != len(bodies):
        raise ConfigError("message bodies must all be bytes")
    sizes = list(map(len, bodies))
    if not sizes:
        return sizes
    for size in sizes[:1] if sizes.count(sizes[0]) == len(sizes) else set(sizes):
        if not 0 < size <= largest:
            raise refuse_size("message body", size, largest)
    return sizes


def gather_mpub_of(topic: str, partition: int | None, count: int, parts: Sequence[bytes]) -> list[bytes]:
    """Encode ``MPUB`` of ``count`` messages that :func:`gather_bodies` encoded.

    Returns:
        Parts to send one after another; a single one if the bodies are small.

    Raises:
        ConfigError: As for :func:`encode_mpub`.

    Source: as for :func:`encode_mpub`.
    """
    head = _head("MPUB", topic, partition)
    return [_batch(head, count, parts)] if len(parts) == 1 else [_batch_head(head, count, parts), *parts]


def _gathered(head: bytes, sizes: Sequence[int], bodies: Sequence[bytes]) -> list[bytes]:
    """Return what :func:`_joined` returns, as one part, or as two for each body if copying them would cost more."""
    if sum(sizes) < GATHERED_BYTES * len(sizes):
        return [_joined(head, sizes, bodies)]
    words = {size: head + _SIZE.pack(size) for size in set(sizes)}
    return [part for size, body in zip(sizes, bodies, strict=True) for part in (words[size], body)]


def _joined(head: bytes, sizes: Sequence[int], bodies: Sequence[bytes]) -> bytes:
    """Return all bodies joined, each preceded by the head and its size."""
    if sizes and sizes.count(sizes[0]) == len(sizes):
        word = head + _SIZE.pack(sizes[0])
        return word + word.join(bodies)
    words = {size: head + _SIZE.pack(size) for size in set(sizes)}
    parts = [b""] * (2 * len(bodies))
    parts[::2] = map(words.__getitem__, sizes)
    parts[1::2] = bodies
    return b"".join(parts)


def encode_mpub_trace(topic: str, partition: int | None, messages: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode ``MPUB_TRACE``: each message is its trace id (8 bytes) and its body.

    Answered by 30 bytes with id and offset of the *first* message, trace id 0,
    and the size of the whole batch.

    Raises:
        ConfigError: As for :func:`encode_mpub` and :func:`encode_pub_trace`.

    Source: server protocol 6; ``protocol_v2.go`` ``readMPUBEXT``.
    """
    parts = [_traced_message(trace_id, body) for trace_id, body in messages]
    return _batch(_head("MPUB_TRACE", topic, partition), len(parts), parts)


def encode_mpub_ext(topic: str, partition: int | None, messages: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode ``MPUB_EXT``: each message is a header with its 16-bit length, and a body; answered by ``OK``.

    Unlike in ``PUB_EXT``, an empty header means a message without one. If this
    command gets an error frame, close the connection: the server stops reading
    inside the batch and reads the rest as commands.

    Raises:
        ConfigError: As for :func:`encode_mpub` and :func:`encode_pub_ext`.

    Source: server protocol 6; ``protocol_v2.go`` ``readMPUBEXT``.
    """
    parts = [_ext_message(as_bytes("extension header", e), as_bytes("message body", b)) for e, b in messages]
    return _batch(_head("MPUB_EXT", topic, partition), len(parts), parts)


def _ext_message(ext: bytes, body: bytes) -> bytes:
    if len(ext) > MAX_EXT_BYTES:
        raise ConfigError(f"extension header must have at most {MAX_EXT_BYTES} bytes, not {len(ext)}")
    size = 2 + len(ext) + len(body)
    if not body or size > MAX_SIZE:
        raise refuse_size("message body", len(body), MAX_SIZE - 2 - len(ext))
    return _SIZE_EXT.pack(size, len(ext)) + ext + body


def _batch(head: bytes, count: int, parts: Sequence[bytes]) -> bytes:
    return b"".join((_batch_head(head, count, parts), *parts))


def _batch_head(head: bytes, count: int, parts: Sequence[bytes]) -> bytes:
    size = 4 + sum(map(len, parts))
    if not count:
        raise ConfigError("a batch must have at least one message")
    if size > MAX_SIZE:
        raise ConfigError(f"a batch must have at most {MAX_SIZE} bytes with its size words, not {size}")
    return head + _SIZE_COUNT.pack(size, count)


def _traced_message(trace_id: int, body: bytes) -> bytes:
    body = as_bytes("message body", body)
    if not 0 < len(body) <= MAX_SIZE - 8:
        raise refuse_size("traced message body", len(body), MAX_SIZE - 8)
    if type(trace_id) is not int or not 0 <= trace_id <= MAX_TRACE_ID:
        raise ConfigError(f"trace id must be an unsigned 64 bit int, not {shown(trace_id)}")
    return _SIZE_TRACE.pack(8 + len(body), trace_id) + body


FIN: Final = b"FIN %b\n"
"""The command FIN, for ids that have come from nsqd: ``FIN % message_id``."""


def encode_fin(message_id: bytes) -> bytes:
    r"""Encode ``FIN <16 id bytes>\n``, exactly 21 bytes; has no success answer.

    The id is raw bytes and the server reads it by length, so a newline or blank is
    part of it.

    Raises:
        ConfigError: The id does not have 16 bytes.

    Source: server protocol 7; ``protocol_v2.go`` ``IOLoop``, ``FIN``.
    """
    if len(message_id) != MESSAGE_ID_BYTES:
        raise _refuse_id(message_id)
    return FIN % message_id


def encode_fins(message_ids: Sequence[bytes]) -> bytes:
    """Encode many ``FIN`` as one run of bytes, at a third of the cost of encoding them one by one.

    Raises:
        ConfigError: An id does not have 16 bytes.

    Source: as for :func:`encode_fin`.
    """
    if not message_ids:
        return b""
    if not _ID_LENGTH.issuperset(map(len, message_ids)):
        raise _refuse_id(next(given for given in message_ids if len(given) != MESSAGE_ID_BYTES))
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def encode_req(message_id: bytes, delay_ms: int) -> bytes:
    r"""Encode ``REQ <16 id bytes> <milliseconds>\n``; has no success answer.

    Raises:
        ConfigError: The id does not have 16 bytes, or the delay is not an int
            from 0 to :data:`MAX_DELAY_MS`.

    Source: server protocol 7; ``protocol_v2.go`` ``REQ``.
    """
    if len(message_id) != MESSAGE_ID_BYTES:
        raise _refuse_id(message_id)
    if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ConfigError(f"delay of a requeue must be an int of 0..{MAX_DELAY_MS} ms, not {shown(delay_ms)}")
    return b"REQ %b %d\n" % (message_id, delay_ms)


def encode_touch(message_id: bytes) -> bytes:
    r"""Encode ``TOUCH <16 id bytes>\n``; has no success answer.

    Raises:
        ConfigError: The id does not have 16 bytes.

    Source: server protocol 7; ``protocol_v2.go`` ``TOUCH``.
    """
    if len(message_id) != MESSAGE_ID_BYTES:
        raise _refuse_id(message_id)
    return b"TOUCH " + message_id + b"\n"


def encode_ready(count: int) -> bytes:
    r"""Encode ``RDY <count>\n``, the limit of messages in flight; has no answer.

    The server refuses more than its ``max_rdy_count`` (2500) and closes, so the
    caller must respect the limit in the answer to IDENTIFY.

    Raises:
        ConfigError: ``count`` is not an int of 0 or more.

    Source: server protocol 7; ``protocol_v2.go`` ``RDY``.
    """
    if type(count) is not int or not 0 <= count <= MAX_SIZE:
        raise ConfigError(f"ready count must be an int of 0 or more, not {shown(count)}")
    return b"RDY %d\n" % count


def _refuse_id(message_id: bytes) -> ConfigError:
    return ConfigError(f"message id must have {MESSAGE_ID_BYTES} bytes, not {len(message_id)}")
