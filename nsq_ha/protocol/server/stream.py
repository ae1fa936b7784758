"""Split a stream of bytes into command lines and bodies, one event at a time.

The base of the decoders for both kinds of server. Each reads its commands in a
generator, which pauses where more bytes are needed, and yields events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from nsq_ha.protocol import commands
from nsq_ha.protocol.encoding import MAGIC, MAX_BODY_BYTES, MAX_MESSAGE_BYTES
from nsq_ha.protocol.server.command_lines import Announced, Malformed, refusal

MAX_LINE_BYTES: Final = 65536
"""Longest command line of the partitioned server; it resets the connection of a longer one without an answer."""

BodyEvent = commands.Identify | commands.Auth | Announced | Malformed
"""An event of IDENTIFY or AUTH."""

AnyEvent = TypeVar("AnyEvent", bound=object)
Waiting = Generator[None, None, bytes]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the server; the defaults are those of the partitioned one.

    Attributes:
        max_message_bytes: Largest message, including trace id and header (``-max-msg-size``).
        max_body_bytes: Largest body of IDENTIFY, AUTH and a batch (``-max-body-size``).
        max_ready_count: Largest RDY (``-max-rdy-count``).
        max_line_bytes: Longest command line, with its newline.
        max_msg_timeout: Milliseconds for which a message can stay in flight (``-max-msg-timeout``).
        max_heartbeat: Milliseconds of the longest heartbeat interval (``-max-heartbeat-interval``).
        max_delay: Milliseconds of the longest delay of REQ and DPUB (``-max-req-timeout``).
        max_gather: Milliseconds for which a client may let the server gather messages
            (``-max-output-buffer-timeout``).
        max_gather_bytes: Bytes of messages that a client may let it gather (``-max-output-buffer-size``).
    """

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_body_bytes: int = MAX_BODY_BYTES
    max_ready_count: int = 2500
    max_line_bytes: int = MAX_LINE_BYTES
    max_msg_timeout: int = 900_000
    max_heartbeat: int = 60_000
    max_delay: int = 3 * 24 * 3_600_000
    max_gather: int = 1_000
    max_gather_bytes: int = 65_536


class StreamDecoder(ABC, Generic[AnyEvent]):
    """Read the commands of one connection, one at a time.

    Args:
        limits: The limits of the server.
        magic: Whether the stream begins with the magic.

    Attributes:
        magic: What the stream begins with.
        after_close: The client sent CLS. The server then ignores RDY, malformed ones included, and reads on.
    """

    magic = MAGIC

    def __init__(self, limits: Limits, *, magic: bool = True) -> None:
        self.after_close: bool = False
        self._limits = limits
        self._buffer = bytearray()
        self._position = 0
        self._ended = False
        self._events = self._read(magic)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes. Take all events before feeding more, or the buffer grows."""
        if not self._ended:
            self._buffer += data

    def next_event(self) -> AnyEvent | Malformed | None:
        """Return the next event, or None if more data is needed.

        After a fatal :class:`~nsq_ha.protocol.server.command_lines.Malformed`, ignore everything that follows.
        """
        event = next(self._events, None)
        if event is None:
            del self._buffer[: self._position]
            self._position = 0
        elif isinstance(event, Malformed) and event.fatal and not (self.after_close and event.word == b"RDY"):
            self._ended = True
            self._events.close()
            self._buffer.clear()
        return event

    def take_buffered(self) -> bytes:
        """Return and drop the unread bytes: they belong to the next layer."""
        rest = bytes(self._buffer[self._position :])
        self._buffer.clear()
        self._position = 0
        return rest

    # ------------------------------------------------------------ reading

    @abstractmethod
    def _run(self) -> Generator[AnyEvent | Malformed | None, None, None]:
        """Read all commands; end after a line that is too long."""

    def _read(self, magic: bool) -> Generator[AnyEvent | Malformed | None, None, None]:
        if magic and (yield from self._take(4)) != self.magic:
            yield Malformed(b"", b"E_BAD_PROTOCOL")
        yield from self._run()
        yield Malformed(b"", b"")

    def _take(self, count: int) -> Waiting:
        while len(self._buffer) - self._position < count:
            yield
        start = self._position
        self._position += count
        return bytes(self._buffer[start : self._position])

    def _take_size(self) -> Generator[None, None, int]:
        return int.from_bytes((yield from self._take(4)), "big", signed=True)

    def _find_end(self, searched: int) -> Generator[None, None, int | None]:
        """Return the length up to the next newline, searching from ``searched``; None if the line is too long."""
        longest = self._limits.max_line_bytes
        while (found := self._buffer.find(b"\n", self._position + searched)) < 0:
            searched = max(searched, len(self._buffer) - self._position)
            if searched >= longest:
                return None
            yield
        length = found - self._position + 1
        return length if length <= longest else None

    def _read_body(self, words: list[bytes]) -> Generator[BodyEvent | None, None, None]:
        """Read the rest of IDENTIFY or AUTH."""
        word = words[0]
        name = word.decode("ascii")
        yield Announced(word)
        if word == b"AUTH" and len(words) != 1:
            yield refusal(word, "E_INVALID", "AUTH invalid number of parameters")
        size = yield from self._take_size()
        largest = self._limits.max_body_bytes
        if size > largest:
            yield refusal(word, "E_BAD_BODY", f"{name} body too big {size} > {largest}")
        if size <= 0:
            yield refusal(word, "E_BAD_BODY", f"{name} invalid body size {size}")
        body = yield from self._take(size)
        yield commands.Auth(body) if word == b"AUTH" else commands.Identify(body)

    def _take_batch(
        self, word: bytes, fault_of: Callable[[bytes], Malformed | None] = lambda _: None
    ) -> Generator[BodyEvent | None, None, list[bytes] | None]:
        """Read the messages of a batch.

        Args:
            word: The command.
            fault_of: Returns the complaint about a message that was read, or None.

        Returns:
            The messages. None after a complaint with which the connection stays open: the rest is read as commands.
        """
        count = yield from self._take_size()
        if not 0 < count <= (self._limits.max_body_bytes - 4) // 5:
            yield refusal(word, "E_BAD_BODY", f"MPUB invalid message count {count}")
        bodies: list[bytes] = []
        kept = 0
        for number in range(count):
            size = yield from self._take_size()
            kept += size
            complaint = self._complaint_of_size(word, number, size, kept)
            if complaint is not None:
                yield complaint
            body = yield from self._take(size)
            fault = fault_of(body)
            if fault is not None:
                yield fault
                return None
            bodies.append(body)
        return bodies

    def _complaint_of_size(self, word: bytes, number: int, size: int, kept: int) -> Malformed | None:
        """Return the complaint about the size of a message of a batch, of which ``kept`` bytes are announced."""
        largest, largest_batch = self._limits.max_message_bytes, self._limits.max_body_bytes
        if size <= 0:
            return refusal(word, "E_BAD_MESSAGE", f"MPUB invalid message({number}) body size {size}")
        if size > largest:
            return refusal(word, "E_BAD_MESSAGE", f"MPUB message too big {size} > {largest}")
        if kept > largest_batch:
            # nsqd ignores the outer size and continues reading; here memory is limited.
            return refusal(word, "E_BAD_BODY", f"MPUB body too big {kept} > {largest_batch}")
        return None
