"""Decode a stream of bytes into commands, and judge them as upstream's nsqd does.

The counterpart of ``decoder`` for plain servers: lines are split at blanks only,
names are checked before bodies are read, and there are no partitions, traces or
headers. Extra words are ignored, as upstream ignores them.

Source: nsqio/nsq ``nsqd/protocol_v2.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from nsq_ha.options.checks import is_valid_name
from nsq_ha.protocol import commands
from nsq_ha.protocol.encoding import MESSAGE_ID_BYTES
from nsq_ha.protocol.server.command_lines import Announced, Malformed, complaint_of_names, read_ready, refusal, text_of
from nsq_ha.protocol.server.gotext import int64, parse_digits, quote
from nsq_ha.protocol.server.identify import PLAIN_LIMITS
from nsq_ha.protocol.server.stream import Limits, StreamDecoder

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TopicNamed:
    """The line of an MPUB names a legal topic. nsqd creates it now, before it reads the body."""

    word: bytes
    topic: str


@dataclass(frozen=True, slots=True)
class DeferredPub:
    """``DPUB``: publish a message that channels deliver after a delay.

    Attributes:
        word: ``DPUB``.
        topic: Name of the topic.
        delay_ms: Milliseconds.
        body: The payload.
    """

    word: bytes
    topic: str
    delay_ms: int
    body: bytes


PlainEvent = commands.Command | Announced | TopicNamed | DeferredPub | Malformed
"""An event of :meth:`PlainDecoder.next_event`."""

_Reading = Generator[PlainEvent | None, None, None]
_Parsed = commands.Command | Malformed


class PlainDecoder(StreamDecoder[PlainEvent]):
    """Read the commands of one connection, one at a time.

    Args:
        limits: The limits of the server.
        magic: Whether the stream begins with the magic.
    """

    def __init__(self, limits: Limits = PLAIN_LIMITS, *, magic: bool = True) -> None:
        super().__init__(limits, magic=magic)

    def _run(self) -> _Reading:
        while (length := (yield from self._find_end(0))) is not None:
            line = yield from self._take(length)
            words = line[:-1].removesuffix(b"\r").split(b" ")
            parse = _PARSERS.get(words[0])
            if parse is not None:
                yield parse(words)
            elif words[0] == b"RDY":
                yield read_ready(words, self._limits.max_ready_count)
            elif words[0] == b"REQ":
                yield _requeue(words, self._limits.max_delay)
            elif words[0] in (b"IDENTIFY", b"AUTH"):
                yield from self._read_body(words)
            elif words[0] in (b"PUB", b"MPUB", b"DPUB"):
                yield from self._read_publish(words)
            else:
                yield refusal(words[0], "E_INVALID", b"invalid command " + words[0], early=True)

    # ------------------------------------------------------------ publishing

    def _read_publish(self, words: list[bytes]) -> _Reading:
        word = words[0]
        name = word.decode("ascii")
        if len(words) < (3 if word == b"DPUB" else 2):
            yield refusal(word, "E_INVALID", f"{name} insufficient number of parameters")
        topic = text_of(words[1])
        if not is_valid_name(topic):
            twice = "E_BAD_TOPIC " if word == b"MPUB" else ""  # upstream writes the code twice
            yield refusal(word, "E_BAD_TOPIC", f"{twice}{name} topic name {quote(words[1])} is not valid")
        if word == b"MPUB":
            yield TopicNamed(word, topic)
            yield from self._read_batch(topic)
            return
        delay = _delay_of(words, self._limits.max_delay) if word == b"DPUB" else 0
        if isinstance(delay, Malformed):
            yield delay
        else:
            yield from self._read_one(word, topic, delay)

    def _read_one(self, word: bytes, topic: str, delay: int) -> _Reading:
        name = word.decode("ascii")
        size = yield from self._take_size()
        largest = self._limits.max_message_bytes
        if size <= 0:
            yield refusal(word, "E_BAD_MESSAGE", f"{name} invalid message body size {size}")
        if size > largest:
            yield refusal(word, "E_BAD_MESSAGE", f"{name} message too big {size} > {largest}")
        body = yield from self._take(size)
        yield DeferredPub(word, topic, delay, body) if word == b"DPUB" else commands.Pub(topic, None, body)

    def _read_batch(self, topic: str) -> _Reading:
        size, largest = (yield from self._take_size()), self._limits.max_body_bytes
        if size <= 0:
            yield refusal(b"MPUB", "E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > largest:
            yield refusal(b"MPUB", "E_BAD_BODY", f"MPUB body too big {size} > {largest}")
        bodies = yield from self._take_batch(b"MPUB")
        yield commands.Mpub(topic, None, tuple(bodies or ()))


def _milliseconds(text: bytes) -> tuple[int, int] | None:
    """Parse a delay: the number as written, and milliseconds as nanoseconds in 64 bits wrap them."""
    number = parse_digits(text)
    return None if number is None else (number, int64(number * _NS_PER_MS & 0xFFFF_FFFF_FFFF_FFFF) // _NS_PER_MS)


def _delay_of(words: list[bytes], longest: int) -> int | Malformed:
    delay = _milliseconds(words[2])
    if delay is None:
        return refusal(b"DPUB", "E_INVALID", b"DPUB could not parse timeout " + words[2])
    written, milliseconds = delay
    if not 0 <= milliseconds <= longest:
        return refusal(b"DPUB", "E_INVALID", f"DPUB timeout {written} out of range 0-{longest}")
    return milliseconds


def _subscribe(words: list[bytes]) -> _Parsed:
    return complaint_of_names(words) or commands.Sub(text_of(words[1]), text_of(words[2]), None)


def _with_id(words: list[bytes], least: int) -> bytes | Malformed:
    """Return the message id, or the complaint about the words."""
    word = words[0]
    if len(words) < least:
        return refusal(word, "E_INVALID", word + b" insufficient number of params")
    if len(words[1]) != MESSAGE_ID_BYTES:
        return refusal(word, "E_INVALID", "invalid message ID")
    return words[1]


def _answered(words: list[bytes]) -> _Parsed:
    message_id = _with_id(words, 2)
    if isinstance(message_id, Malformed):
        return message_id
    return commands.Finish(message_id) if words[0] == b"FIN" else commands.Touch(message_id)


def _requeue(words: list[bytes], longest: int) -> _Parsed:
    message_id = _with_id(words, 3)
    if isinstance(message_id, Malformed):
        return message_id
    delay = _milliseconds(words[2])
    if delay is None:
        return refusal(b"REQ", "E_INVALID", b"REQ could not parse timeout " + words[2])
    return commands.Requeue(message_id, min(max(0, delay[1]), longest))


_PARSERS: Final[dict[bytes, Callable[[list[bytes]], _Parsed]]] = {
    b"SUB": _subscribe,
    b"FIN": _answered,
    b"TOUCH": _answered,
    b"CLS": lambda _: commands.Close(),
    b"NOP": lambda _: commands.Nop(),
}
