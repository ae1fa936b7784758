"""What a caller may publish: the checks of a message before anything is sent, and what its topic must offer for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.errors import ConfigError
from nsq_ha.message import TAG_KEY, TRACE_KEY, OutgoingMessage
from nsq_ha.options.checks import check_partition, shown
from nsq_ha.policy.sharding import printable
from nsq_ha.protocol.body_codec import CODEC_HEADER, compress_body
from nsq_ha.protocol.encoding import MAX_DELAY_MS, MAX_EXT_BYTES, MAX_MESSAGE_BYTES, MAX_TRACE_ID

if TYPE_CHECKING:
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView

KEY_TYPES: Final = frozenset((str, bytes, int))
"""Types of valid keys, including subclasses, but not bool."""

COMPRESS_FROM: Final = 20 * 1024
"""Size of the smallest body that is compressed, as in Go programs."""


class CheckedMessage(msgspec.Struct, frozen=True, gc=False):
    """One valid message in its wire form.

    Attributes:
        body: The payload.
        trace_id: The trace id. None if it is sent without one.
        ext: The extension header as JSON. None if the message has none.
    """

    body: bytes
    trace_id: int | None = None
    ext: bytes | None = None

    @property
    def kind(self) -> str:
        """The kind of batch that it can be part of: ``ext``, ``trace`` or ``plain``."""
        if self.ext is not None:
            return "ext"
        return "plain" if self.trace_id is None else "trace"

    @property
    def wire_bytes(self) -> int:
        """Maximum number of bytes that it takes in a batch, including its size word."""
        return 4 + len(self.body) + (8 if self.trace_id is not None else 0) + 2 + len(self.ext or b"")


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
    # A message with headers has its trace id among them, and a word of two bytes before them.
    size = len(body) + (len(ext) + 2 if ext else 8 if trace_id is not None else 0)
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
    if len(ext) > MAX_EXT_BYTES or len(checked.body) + len(ext) + 3 > largest:
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


def _too_large(size: int, largest: int) -> ConfigError:
    return ConfigError(
        f"a message of {size} bytes, trace id and headers included, exceeds max_message_bytes={largest}: split it;"
        f" or raise max_message_bytes if nsqd accepts more, as its --max-msg-size says"
    )


def check_accepted(
    view: TopicView, checked: CheckedMessage, largest: int, *, defer_ms: int | None = None, compresses: bool = False
) -> None:
    """Check that the topic accepts a message with this trace id, extension header and delay.

    Args:
        view: The topic's.
        checked: The message.
        largest: The option ``max_message_bytes``.
        defer_ms: The delay. None for none.
        compresses: Whether the bodies of the topic are compressed.

    Raises:
        ConfigError: It does not.

    Source: server protocol 2; youzan/nsq ``nsqd/diskqueue_writer.go``, ``invalid message write size``.
    """
    meta = view.meta
    if meta is None:
        return
    if compresses and not meta.extend_support:
        cure = "create it extended (nsq-ha topic create --extended)" if meta.is_partitioned else "plain nsqd has none"
        raise ConfigError(
            f"compress_body: messages of topic {view.topic!r} have no headers, which say how a body is compressed:"
            f" {cure}; or name other topics in compress_body"
        )
    if checked.ext is not None and not meta.is_partitioned:
        raise ConfigError("headers= and tag= need the partitioned server: messages of plain nsqd have neither")
    if checked.ext is not None and not meta.extend_support:
        raise ConfigError(
            f"topic {view.topic!r} accepts no headers or tags: create it extended (nsq-ha topic create --extended)"
        )
    if checked.trace_id is not None and not meta.is_partitioned:
        raise ConfigError("trace_id= and trace= need the partitioned server: publish without them")
    if defer_ms is not None and meta.is_partitioned:
        raise ConfigError(
            "defer= needs plain nsqd: the partitioned server cannot delay a message. Publish it later, or let the"
            " consumer requeue it with a delay"
        )
    if meta.extend_support:
        # Beside body and header, nsqd writes the form of the header. It finds out when it writes: it refuses with the
        # code of a failure that may pass, and takes no other publish of the partition for a moment.
        size = len(checked.body) + (1 if checked.ext is None else 3 + len(checked.ext))
        if size > largest:
            raise _too_large(size, largest)


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
