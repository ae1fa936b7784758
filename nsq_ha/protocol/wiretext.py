"""Describe what a client sends and receives, one line for each command and frame, for a log.

This module has the texts and the rules for what they may show:

- The body of AUTH and its answer are not shown, and neither are fields of IDENTIFY with names like secrets.
- Known secrets are replaced, see :mod:`nsq_ha.redaction`.
- Bytes from outside are shown as literals, so no line contains a control character.
- Bodies are cut.

The invariant: unreadable bytes are described as such, and nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import msgspec

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol import commands
from nsq_ha.protocol.frames import HEARTBEAT, OK, Frame, FrameDecoder, FrameType
from nsq_ha.protocol.messages import decode_message, decode_traced, layout_for
from nsq_ha.protocol.server.command_lines import Malformed, text_of
from nsq_ha.protocol.server.decoder import CommandDecoder, Event, PublishHeader
from nsq_ha.protocol.server.stream import Limits
from nsq_ha.redaction import REDACTED, excerpt, redact

if TYPE_CHECKING:
    from nsq_ha.message import MessageSource

BODY_BYTES: Final = 64
"""Maximum number of bytes of a message that a line shows."""

JSON_BYTES: Final = 1024
"""Maximum number of bytes of IDENTIFY or of an answer that a line shows."""

_Publish = commands.Pub | commands.PubTrace | commands.PubExt | commands.Mpub | commands.MpubTrace | commands.MpubExt

_TRACED_BYTES: Final = 30
_NO_LIMITS: Final = Limits(2**31 - 1, 2**31 - 1, 2**63 - 1)
_SECRET_WORDS: Final = ("auth", "secret", "token", "password")
_NO_SOURCE: Final = cast("MessageSource", None)  # only the application asks a message for its source


class _DeferredPub(commands.Command, frozen=True):
    """``DPUB``, which only plain nsqds know."""

    word: ClassVar[bytes] = b"DPUB"
    topic: str
    delay: str
    body: bytes


class _Decoder(CommandDecoder):
    """Reads what a client sends to either kind of nsqd."""

    def _read_command(self, words: list[bytes]) -> Generator[Event | None, None, None]:
        if words[0] != _DeferredPub.word or len(words) != 3:
            yield from super()._read_command(words)
        elif (size := (yield from self._take_size())) > 0:
            yield _DeferredPub(text_of(words[1]), text_of(words[2]), (yield from self._take(size)))


class WireText:
    """Describes one connection.

    Args:
        max_frame_bytes: Maximum size of a frame.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._commands = _Decoder(_NO_LIMITS)
        self._frames: FrameDecoder | None = FrameDecoder(max_frame_bytes)
        self._hides_answer = False
        self._is_extended = False
        self._has_detail = False

    def sent(self, data: bytes) -> list[str]:
        """Return a line for each command that ``data`` completes."""
        lines = []
        self._commands.feed(data)
        while (event := self._commands.next_event()) is not None:
            if isinstance(event, PublishHeader):
                self._commands.accept(extended=True)
            elif isinstance(event, Malformed):
                lines.append(f"no command: {excerpt(event.word)}")
            elif isinstance(event, commands.Command):
                lines.append(one_line(self._command(event)))
        return lines

    def received(self, data: bytes) -> list[str]:
        """Return a line for each frame that ``data`` completes."""
        if self._frames is None:
            return []
        try:
            return [self._frame(frame) for frame in self._frames.feed(data)]
        except RemoteProtocolError:
            self._frames = None
            # Do not show the bytes: they may contain part of a secret, which cannot be recognised.
            return [f"{len(data)} bytes that are no frame"]

    def _command(self, command: commands.Command) -> str:
        if isinstance(command, commands.Identify):
            self._is_extended = b'"extend_support":true' in command.body
        elif isinstance(command, commands.Auth):
            self._hides_answer = True
        elif isinstance(command, commands.Sub):
            self._has_detail = type(command) is not commands.Sub
        details = _DETAILS.get(type(command))
        return command.word.decode() + (details(command) if details is not None else "")

    def _frame(self, frame: Frame) -> str:
        kind, data = frame
        if kind is FrameType.MESSAGE:
            return self._message(data)
        if data == HEARTBEAT:
            return "heartbeat"
        word = kind.name.lower()
        if self._hides_answer:
            self._hides_answer = False
            return f"{word} to AUTH, {len(data)} bytes that are not shown"
        if len(data) == _TRACED_BYTES and data.startswith(OK):
            traced = decode_traced(data)
            where = f"offset {traced.offset}, {traced.raw_size} bytes on disk"
            return f"{word} OK, id {traced.internal_id}, trace id {traced.trace_id}, {where}"
        return f"{word} {excerpt(data, JSON_BYTES)}"

    def _message(self, data: bytes) -> str:
        layout = layout_for(detail=self._has_detail, ext=self._is_extended)
        try:
            message = decode_message(data, layout, _NO_SOURCE)
        except RemoteProtocolError:
            return f"message that cannot be decoded, {len(data)} bytes"
        header = "" if message.ext is None else f"header {excerpt(message.ext, BODY_BYTES)}, "
        return f"message {message.id.hex()}, attempt {message.attempts}: {header}{_body(message.body)}"


def _optional(value: object) -> str:
    return "" if value is None else f" {value}"


def _body(body: bytes) -> str:
    return f"{len(body)} bytes {excerpt(body, BODY_BYTES)}"


def _bodies(bodies: Sequence[bytes]) -> str:
    return f"{len(bodies)} messages, {sum(map(len, bodies))} bytes, the first: {excerpt(bodies[0], BODY_BYTES)}"


def _target(command: _Publish) -> str:
    return f" {command.topic}{_optional(command.partition)}: "


def _subscription(command: commands.Sub) -> str:
    start = command.start if isinstance(command, commands.SubAdvanced) else None
    return f" {command.topic} {command.channel}{_optional(command.partition)}{_optional(start)}"


def _without_secrets(body: bytes) -> str:
    """Return the JSON of IDENTIFY, without the values of fields with names like secrets."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return f"{len(body)} bytes that are no JSON object"
    shown = {name: REDACTED if _is_secret(name) else value for name, value in fields.items()}
    return excerpt(msgspec.json.encode(shown), JSON_BYTES)


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET_WORDS)


def one_line(text: str) -> str:
    """Return ``text`` on one line and without known secrets."""
    text = redact(text)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


_DETAILS: Final[dict[type[commands.Command], Callable[[Any], str]]] = {
    commands.Identify: lambda command: f" {_without_secrets(command.body)}",
    commands.Auth: lambda _: ", the secret is not shown",
    commands.Sub: _subscription,
    commands.SubOrdered: _subscription,
    commands.SubAdvanced: _subscription,
    commands.Ready: lambda command: f" {command.count}",
    commands.Finish: lambda command: f" {command.message_id.hex()}",
    commands.Touch: lambda command: f" {command.message_id.hex()}",
    commands.Requeue: lambda command: f" {command.message_id.hex()}, delay {command.delay_ms} ms",
    commands.Pub: lambda command: _target(command) + _body(command.body),
    _DeferredPub: lambda command: f" {command.topic}, delay {command.delay} ms: {_body(command.body)}",
    commands.PubTrace: lambda command: f"{_target(command)}trace id {command.trace_id}, {_body(command.body)}",
    commands.PubExt: lambda command: (
        f"{_target(command)}header {excerpt(command.ext, BODY_BYTES)}, {_body(command.body)}"
    ),
    commands.Mpub: lambda command: _target(command) + _bodies(command.bodies),
    commands.MpubTrace: lambda command: _target(command) + _bodies([body for _, body in command.messages]),
    commands.MpubExt: lambda command: _target(command) + _bodies([body for _, body in command.messages]),
}
"""The text after the command's word."""
