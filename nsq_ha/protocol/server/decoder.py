"""Decode a stream of bytes into commands, and check them as nsqd does.

The decoder splits command lines and bodies and finds malformed ones, with the
server's own answer. It does not know the server's state (topics, leadership, the
state of the connection): it pauses where nsqd checks that.

It reads one command at a time, since the meaning of a byte depends on the
server's reaction to the previous command. Usage::

    decoder.feed(data)
    while (event := decoder.next_event()) is not None:
        ...

The events, in the order in which nsqd checks:

* :class:`~nsq_ha.protocol.server.command_lines.Announced`: the line of IDENTIFY or AUTH; the size word is not read
  yet. Refuse the command here if the connection's state forbids it.
* :class:`PublishHeader`: line and size word of a PUB or MPUB are valid; the body is
  not read yet. Refuse it here for a missing topic or authorisation, or call
  :meth:`CommandDecoder.accept`.
* :class:`~nsq_ha.protocol.server.command_lines.Malformed`: the answer to send, and whether the connection ends.
* a command of ``protocol.commands``.

The invariant: memory never exceeds the largest body, whatever sizes a client announces.

Source: youzan/nsq ``nsqdserver/protocol_v2.go`` ``IOLoop``, ``Exec``,
``preparePub``, ``internalPubExtAndTrace``, ``readMPUBEXT``, ``internalSUB``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

from nsq_ha.errors import LocalProtocolError, MessageRefusedError
from nsq_ha.protocol import commands
from nsq_ha.protocol.server.command_lines import Announced, Malformed, parse_line, parse_partition, refusal, text_of
from nsq_ha.protocol.server.headers import trace_id_of
from nsq_ha.protocol.server.stream import Limits, StreamDecoder

_AnyMpub = commands.Mpub | commands.MpubTrace | commands.MpubExt


@dataclass(frozen=True, slots=True)
class PublishHeader:
    """Line and size word of a publish are valid; its body follows.

    Attributes:
        word: ``PUB``, ``PUB_TRACE``, ``PUB_EXT`` or the same with ``M``.
        topic: Not checked: nsqd answers "topic does not exist" to a bad name.
        partition: None if absent, ``-1``, or ignored because of a fourth word.
        size: The size word.
    """

    word: bytes
    topic: str
    partition: int | None
    size: int


Event = commands.Command | Announced | PublishHeader | Malformed
"""An event of :meth:`CommandDecoder.next_event`."""

_Reading = Generator[Event | None, None, None]


class CommandDecoder(StreamDecoder[Event]):
    """Reads the commands of one connection, one at a time.

    Args:
        limits: The limits of the server.
        magic: Whether the stream begins with the magic.
    """

    def __init__(self, limits: Limits | None = None, *, magic: bool = True) -> None:
        super().__init__(limits or Limits(), magic=magic)
        self._extended = False
        self._waits_for_accept = False

    def next_event(self) -> Event | None:
        """Return the next event. None if more data is needed.

        After a fatal :class:`~nsq_ha.protocol.server.command_lines.Malformed`, all further data is ignored.

        Raises:
            LocalProtocolError: The last event was a :class:`PublishHeader` that was
                not accepted.
        """
        if self._waits_for_accept:
            raise LocalProtocolError("a publish must be accepted before its body is read")
        return super().next_event()

    def accept(self, *, extended: bool) -> None:
        """Continue with the body of the last :class:`PublishHeader`.

        Args:
            extended: Whether the topic accepts extension headers. If not, refuse
                messages with one; after ``MPUB_EXT``, read the rest of the batch
                as commands, like the real server.
        """
        self._extended = extended
        self._waits_for_accept = False

    # ------------------------------------------------------------ reading

    def _take_words(self) -> Generator[None, None, list[bytes] | None]:
        """Read one line; return None if it is too long.

        Ids are raw and may contain newlines, so FIN, REQ and TOUCH are split by
        length. A line that is too short swallows the bytes that follow it.
        """
        length = yield from self._find_end(0)
        if length is None:
            return None
        head = bytes(self._buffer[self._position : self._position + min(length, 5)])
        if head[:3] in (b"FIN", b"REQ"):
            if length < 21:
                length = yield from self._find_end(20)
                if length is None:
                    return None
            line = yield from self._take(length)
            words = [line[:3], line[4:20]]
            if head[:3] == b"REQ" and length >= 22:
                words.append(line[21:-1])
            return words
        if head == b"TOUCH":
            line = yield from self._take(max(length, 23))
            return [line[:5], line[6:22]]
        line = yield from self._take(length)
        return line[:-1].removesuffix(b"\r").split(b" ")

    def _run(self) -> _Reading:
        while (words := (yield from self._take_words())) is not None:
            yield from self._read_command(words)

    def _read_command(self, words: list[bytes]) -> _Reading:
        event = parse_line(words, self._limits.max_ready_count)
        if event is not None:
            yield event
        elif words[0] in (b"IDENTIFY", b"AUTH"):
            yield from self._read_body(words)
        else:
            yield from self._read_publish(words)

    # ------------------------------------------------------------ publishing

    def _read_publish(self, words: list[bytes]) -> _Reading:
        word = words[0]
        if len(words) < 2:
            yield refusal(word, "E_INVALID", "insufficient number of parameters")
        partition = parse_partition(words, 2)
        if isinstance(partition, Malformed):
            yield partition
        else:
            yield from self._read_sized(word, text_of(words[1]), partition)

    def _read_sized(self, word: bytes, topic: str, partition: int | None) -> _Reading:
        size = yield from self._take_size()
        if size <= 0:
            yield refusal(word, "E_BAD_BODY", f"invalid body size {size}")
        batch = word.startswith(b"M")
        largest = self._limits.max_body_bytes if batch else self._limits.max_message_bytes
        if size > largest:
            code, what = ("E_BAD_BODY", "body") if batch else ("E_BAD_MESSAGE", "message")
            yield refusal(word, code, f"{what} too big {size} > {largest}")
        header = PublishHeader(word, topic, partition, size)
        self._waits_for_accept = True
        yield header
        yield from self._read_batch(header) if batch else self._read_one(header)

    def _read_one(self, header: PublishHeader) -> _Reading:
        word, size = header.word, header.size
        if word == b"PUB_TRACE" and size <= 8:
            yield refusal(word, "E_BAD_BODY", f"invalid body size {size} with trace id enabled")
        if word == b"PUB_EXT" and size <= 2:
            yield refusal(word, "E_BAD_BODY", f"invalid body size {size} with ext json header enabled")
        body = yield from self._take(size)
        if word == b"PUB":
            yield commands.Pub(header.topic, header.partition, body)
        elif word == b"PUB_TRACE":
            trace_id = int.from_bytes(body[:8], "big")
            yield commands.PubTrace(header.topic, header.partition, trace_id, body[8:])
        else:
            ext, content = _split_ext(body)
            if not content:
                yield _no_content(word, body)
            fault = _fault_of(word, ext) or self._unsupported(header)
            yield fault or commands.PubExt(header.topic, header.partition, ext, content)

    def _read_batch(self, header: PublishHeader) -> _Reading:
        bodies = yield from self._take_batch(header.word, partial(self._fault_of_body, header))
        if bodies is not None:
            yield _batch_of(header, bodies)

    def _fault_of_body(self, header: PublishHeader, body: bytes) -> Malformed | None:
        if header.word != b"MPUB_EXT":
            return None
        ext, content = _split_ext(body)
        if not content:
            return _no_content(header.word, body)
        return (self._unsupported(header) or _fault_of(header.word, ext)) if ext else None

    def _complaint_of_size(self, word: bytes, number: int, size: int, kept: int) -> Malformed | None:
        complaint = super()._complaint_of_size(word, number, size, kept)
        if complaint is None and word == b"MPUB_TRACE" and size <= 8:
            return refusal(word, "E_BAD_MESSAGE", f"MPUB invalid message({number}) body size {size} for tracing")
        return complaint

    def _unsupported(self, header: PublishHeader) -> Malformed | None:
        if self._extended:
            return None
        text = f"E_EXT_NOT_SUPPORT ext content not supported in topic {header.topic}"
        return Malformed(header.word, text.encode("utf-8", "surrogateescape"), fatal=False)


def _split_ext(body: bytes) -> tuple[bytes, bytes]:
    """Split header and content; the content is empty if the header's length leaves none."""
    content = 2 + int.from_bytes(body[:2], "big")
    return body[2:content], body[content:]


def _no_content(word: bytes, body: bytes) -> Malformed:
    return refusal(word, "E_BAD_BODY", f"invalid body size {len(body)} in ext json header content length")


def _fault_of(word: bytes, ext: bytes) -> Malformed | None:
    try:
        trace_id_of(ext)
    except MessageRefusedError as error:
        return Malformed(word, f"{error.code} {error.detail}".encode(), fatal=False)
    return None


def _batch_of(header: PublishHeader, bodies: list[bytes]) -> _AnyMpub:
    topic, partition = header.topic, header.partition
    if header.word == b"MPUB":
        return commands.Mpub(topic, partition, tuple(bodies))
    if header.word == b"MPUB_TRACE":
        traced = tuple((int.from_bytes(body[:8], "big"), body[8:]) for body in bodies)
        return commands.MpubTrace(topic, partition, traced)
    return commands.MpubExt(topic, partition, tuple(map(_split_ext, bodies)))


def decode_commands(data: bytes, *, magic: bool = False) -> list[commands.Command | Malformed]:
    """Decode all commands in ``data``, as if every topic were extended; for tools and tests.

    Stop at the first fatal :class:`~nsq_ha.protocol.server.command_lines.Malformed`; ignore an unfinished command.
    """
    decoder = CommandDecoder(magic=magic)
    decoder.feed(data)
    read: list[commands.Command | Malformed] = []
    while (event := decoder.next_event()) is not None:
        if isinstance(event, PublishHeader):
            decoder.accept(extended=True)
        elif not isinstance(event, Announced):
            read.append(event)
    return read
