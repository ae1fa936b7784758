"""The commands of a client, as values.

Owns the command lines and the set of commands. Commands sent for each message
also have functions (``protocol.encoding``). ``protocol.state`` decides *when* a
command may be sent; ``protocol.server.decoder`` reads it on the server.

The invariant: the result of ``encode`` is exactly one command; no value can add
another.

Source: server protocol 1, 3-7; youzan/nsq ``nsqdserver/protocol_v2.go``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import check_channel, check_partition, check_topic
from nsq_ha.options.start_from import StartFrom
from nsq_ha.protocol.encoding import (
    MAX_BODY_BYTES,
    as_bytes,
    encode_fin,
    encode_mpub,
    encode_mpub_ext,
    encode_mpub_trace,
    encode_pub,
    encode_pub_ext,
    encode_pub_trace,
    encode_ready,
    encode_req,
    encode_touch,
    refuse_size,
)


def _with_body(word: bytes, kind: str, body: bytes) -> bytes:
    body = as_bytes(kind, body)
    if not 0 < len(body) <= MAX_BODY_BYTES:
        raise refuse_size(kind, len(body), MAX_BODY_BYTES)
    return word + b"\n" + len(body).to_bytes(4, "big") + body


class Command(msgspec.Struct, frozen=True):
    """The base of all commands.

    Values are not checked when a command is created, since the server's side also
    holds commands that it refuses; :meth:`encode` checks them.

    Attributes:
        word: First word of the command line.
    """

    word: ClassVar[bytes] = b""
    _encoder: ClassVar[Any] = None  # a function of the fields

    def encode(self) -> bytes:
        """Return the bytes to write.

        Raises:
            ConfigError: A value is not valid. Nothing was sent.
        """
        if self._encoder is None:
            return self.word + b"\n"
        encoded: bytes = self._encoder(*msgspec.structs.astuple(self))
        return encoded


class Identify(Command, frozen=True):
    """``IDENTIFY``: describes the client and its offer; answered by JSON.

    Attributes:
        body: The JSON object, see :class:`nsq_ha.protocol.identify.Offer`.

    Source: server protocol 3.
    """

    word: ClassVar[bytes] = b"IDENTIFY"
    body: bytes

    def encode(self) -> bytes:
        """Return the line, a 4-byte size and the JSON."""
        return _with_body(self.word, "IDENTIFY body", self.body)


class Auth(Command, frozen=True):
    """``AUTH``, sent only if the answer to IDENTIFY requires it; answered by JSON.

    Attributes:
        secret: Never shown, not even by ``repr``.

    Source: server protocol 4.
    """

    word: ClassVar[bytes] = b"AUTH"
    secret: bytes

    def encode(self) -> bytes:
        """Return the line, a 4-byte size and the secret."""
        return _with_body(self.word, "AUTH secret", self.secret)

    def __repr__(self) -> str:
        return "Auth(secret=...)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show nothing."""
        return []


class Sub(Command, frozen=True):
    """``SUB``: subscribe; answered by ``OK``. Every refusal closes the connection.

    Attributes:
        topic: Name of the topic.
        channel: Name of the channel, created by this command.
        partition: The partition. None omits it: nsqd then chooses a partition that it leads.

    Source: server protocol 5.
    """

    word: ClassVar[bytes] = b"SUB"
    topic: str
    channel: str
    partition: int | None

    def encode(self) -> bytes:
        """Return the command line."""
        partition = "" if self.partition is None else f" {check_partition(self.partition)}"
        names = f" {check_topic(self.topic)} {check_channel(self.channel)}{partition}\n"
        return self.word + names.encode("ascii")


class SubOrdered(Sub, frozen=True):
    """``SUB_ORDERED``: one message in flight for each partition, with offset and raw size.

    On an unordered topic it switches the *channel* to ordered, for all its consumers.
    """

    word: ClassVar[bytes] = b"SUB_ORDERED"


class SubAdvanced(Sub, frozen=True):
    """``SUB_ADVANCED``: messages have offset and raw size; may set the channel's position.

    With a start position the server ignores the partition and chooses any that it
    leads. So use one only on a node that leads exactly one partition, and check
    the partition in the message ids.

    Attributes:
        start: ``type:value``, the text of a :class:`nsq_ha.StartFrom`. None
            continues at the channel's position.
    """

    word: ClassVar[bytes] = b"SUB_ADVANCED"
    start: str | None = None

    def encode(self) -> bytes:
        """Return the command line."""
        if self.start is None:
            return Sub.encode(self)
        kind, _, value = self.start.partition(":")
        if not (value.removeprefix("-").isascii() and value.removeprefix("-").isdecimal()):
            raise ConfigError(f"start position {self.start!r} is not of the form type:number")
        start = StartFrom(kind, int(value))  # type: ignore[arg-type]  # it checks the kind itself
        partition = -1 if self.partition is None else check_partition(self.partition)
        return (f"SUB_ADVANCED {check_topic(self.topic)} {check_channel(self.channel)} {partition} {start}\n").encode(
            "ascii"
        )


class Ready(Command, frozen=True):
    """``RDY``, see :func:`encode_ready`."""

    word: ClassVar[bytes] = b"RDY"
    _encoder: ClassVar[Any] = staticmethod(encode_ready)
    count: int


class Finish(Command, frozen=True):
    """``FIN``, see :func:`encode_fin`."""

    word: ClassVar[bytes] = b"FIN"
    _encoder: ClassVar[Any] = staticmethod(encode_fin)
    message_id: bytes


class Requeue(Command, frozen=True):
    """``REQ``, see :func:`encode_req`."""

    word: ClassVar[bytes] = b"REQ"
    _encoder: ClassVar[Any] = staticmethod(encode_req)
    message_id: bytes
    delay_ms: int


class Touch(Command, frozen=True):
    """``TOUCH``, see :func:`encode_touch`."""

    word: ClassVar[bytes] = b"TOUCH"
    _encoder: ClassVar[Any] = staticmethod(encode_touch)
    message_id: bytes


class Close(Command, frozen=True):
    """``CLS``: no new messages; FIN, REQ and TOUCH still work; answered by ``CLOSE_WAIT``."""

    word: ClassVar[bytes] = b"CLS"


class Nop(Command, frozen=True):
    """``NOP``: shows that the client is alive; has no answer."""

    word: ClassVar[bytes] = b"NOP"


class Publish(Command, frozen=True):
    """The base of the publishes.

    Attributes:
        topic: Name of the topic.
        partition: The partition. None omits it: nsqd then chooses a partition that it leads.
    """

    topic: str
    partition: int | None


class Pub(Publish, frozen=True):
    """``PUB``, see :func:`encode_pub`."""

    word: ClassVar[bytes] = b"PUB"
    _encoder: ClassVar[Any] = staticmethod(encode_pub)
    body: bytes


class PubTrace(Publish, frozen=True):
    """``PUB_TRACE``, see :func:`encode_pub_trace`."""

    word: ClassVar[bytes] = b"PUB_TRACE"
    _encoder: ClassVar[Any] = staticmethod(encode_pub_trace)
    trace_id: int
    body: bytes


class PubExt(Publish, frozen=True):
    """``PUB_EXT``, see :func:`encode_pub_ext`."""

    word: ClassVar[bytes] = b"PUB_EXT"
    _encoder: ClassVar[Any] = staticmethod(encode_pub_ext)
    ext: bytes
    body: bytes


class Mpub(Publish, frozen=True):
    """``MPUB``, see :func:`encode_mpub`."""

    word: ClassVar[bytes] = b"MPUB"
    _encoder: ClassVar[Any] = staticmethod(encode_mpub)
    bodies: tuple[bytes, ...]


class MpubTrace(Publish, frozen=True):
    """``MPUB_TRACE``, see :func:`encode_mpub_trace`; ``messages`` are trace id and body."""

    word: ClassVar[bytes] = b"MPUB_TRACE"
    _encoder: ClassVar[Any] = staticmethod(encode_mpub_trace)
    messages: tuple[tuple[int, bytes], ...]


class MpubExt(Publish, frozen=True):
    """``MPUB_EXT``, see :func:`encode_mpub_ext`; ``messages`` are header and body."""

    word: ClassVar[bytes] = b"MPUB_EXT"
    _encoder: ClassVar[Any] = staticmethod(encode_mpub_ext)
    messages: tuple[tuple[bytes, bytes], ...]


PUBLISHES: Final = (Pub, PubTrace, PubExt, Mpub, MpubTrace, MpubExt)
"""All kinds of publishes."""
