"""Parse command lines as nsqd does: words become a command, or the answer that refuses them.

This module checks the words alone, in nsqd's order and wording. ``decoder`` reads
the bodies; neither knows the server's state.

Source: youzan/nsq ``nsqdserver/protocol_v2.go`` ``Exec`` and the function of
each command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsq_ha.options.checks import is_valid_name
from nsq_ha.protocol import commands
from nsq_ha.protocol.server.gotext import byte_lists, int64, parse_digits, parse_int, quote

_INT64_MAX: Final = 2**63 - 1
_NS_PER_MS: Final = 1_000_000
_START_TYPES: Final = frozenset((b"timestamp", b"special", b"virtual_queue", b"msgcount"))
_SUBS: Final[dict[bytes, type[commands.Sub]]] = {
    sub.word: sub for sub in (commands.Sub, commands.SubOrdered, commands.SubAdvanced)
}


@dataclass(frozen=True, slots=True)
class Announced:
    """The command line of IDENTIFY or AUTH; size word and body follow.

    Attributes:
        word: ``IDENTIFY`` or ``AUTH``.
    """

    word: bytes


@dataclass(frozen=True, slots=True)
class Malformed:
    """A malformed command, with nsqd's answer.

    Attributes:
        word: First word of the line, empty if there is none. If the connection's
            state forbids this word, that answer has priority.
        data: Data of the error frame to send. If empty, close without one.
        fatal: Close after it. If false, continue with the next event.
        early: This answer has priority even over the one of the connection's state.
    """

    word: bytes
    data: bytes
    fatal: bool = True
    early: bool = False


def refusal(word: bytes, code: str, text: str | bytes, *, early: bool = False) -> Malformed:
    """Return the fatal answer ``code text``, with the blank even if the text is empty."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogateescape")
    return Malformed(word, code.encode("ascii") + b" " + text, early=early)


def forbidden_now(word: bytes) -> Malformed:
    """Return the answer to a command that the connection's state forbids."""
    name = "SUB" if word in _SUBS else word.decode("ascii", "replace")
    return refusal(word, "E_INVALID", f"cannot {name} in current state")


def parse_line(words: list[bytes], max_ready_count: int) -> commands.Command | Malformed | None:
    """Parse the line of a command without body; return None for a command with a body.

    Args:
        words: The words of the line; ids of FIN, REQ and TOUCH are split by length.
        max_ready_count: Largest RDY.
    """
    word = words[0]
    if word == b"RDY":
        return read_ready(words, max_ready_count)
    if word in _SUBS:
        return _subscribe(words)
    parse = _PARSERS.get(word)
    if parse is not None:
        return parse(words)
    if word in _WITH_BODY:
        return None
    return refusal(word, "E_INVALID", f"invalid command {byte_lists(words)}", early=True)


def parse_partition(words: list[bytes], at: int) -> int | Malformed | None:
    """Parse the partition word, which counts only as the last word of the line.

    Return None if it is absent, ``-1``, or followed by another word: the server
    then chooses a partition.
    """
    if len(words) != at + 1:
        return None
    try:
        partition = parse_int(words[at], "Atoi")
    except ValueError as error:
        return refusal(words[0], "E_BAD_PARTITION", f"topic partition is not valid: {error}")
    return None if partition == -1 else partition


def text_of(name: bytes) -> str:
    """Return a name as text; invalid UTF-8 is kept and makes the name illegal."""
    return name.decode("utf-8", "surrogateescape")


def read_ready(words: list[bytes], max_ready_count: int) -> commands.Command | Malformed:
    """Read a line with RDY, whose count is 1 if it is left out."""
    count = 1 if len(words) == 1 else parse_digits(words[1])
    if count is None:
        return refusal(b"RDY", "E_INVALID", b"RDY could not parse count " + words[1])
    count = int64(count)
    if not 0 <= count <= max_ready_count:
        return refusal(b"RDY", "E_INVALID", f"RDY count {count} out of range 0-{max_ready_count}")
    return commands.Ready(count)


def _finish(words: list[bytes]) -> commands.Command | Malformed:
    message_id = words[1]
    if not 0 < int.from_bytes(message_id[:8], "big") <= _INT64_MAX:
        return refusal(b"FIN", "E_INVALID", "Invalid Message ID")
    return commands.Finish(message_id)


def _requeue(words: list[bytes]) -> commands.Command | Malformed:
    if len(words) < 3:
        return refusal(b"REQ", "E_INVALID", "REQ insufficient number of params")
    delay = parse_digits(words[2])
    if delay is None:
        return refusal(b"REQ", "E_INVALID", b"REQ could not parse timeout " + words[1] + b", " + words[2])
    # Milliseconds become nanoseconds in 64 bits; a value that wraps below zero counts as 0.
    return commands.Requeue(words[1], max(0, int64(delay * _NS_PER_MS)) // _NS_PER_MS)


def _subscribe(words: list[bytes]) -> commands.Command | Malformed:
    word = words[0]
    advanced = word == commands.SubAdvanced.word
    start = words[4] if advanced and len(words) > 4 and words[4] else None
    fault = _complaint_of_start(start)
    if fault is not None:
        return refusal(word, "E_INVALID", fault, early=True)
    complaint = complaint_of_names(words)
    if complaint is not None:
        return complaint
    topic, channel = text_of(words[1]), text_of(words[2])
    partition = parse_partition(words, 3)
    if isinstance(partition, Malformed):
        return partition
    if advanced:
        return commands.SubAdvanced(topic, channel, partition, None if start is None else start.decode("ascii"))
    return _SUBS[word](topic, channel, partition)


def complaint_of_names(words: list[bytes]) -> Malformed | None:
    """Return the complaint about topic and channel of a SUB, or None."""
    word = words[0]
    if len(words) < 3:
        return refusal(word, "E_INVALID", "SUB insufficient number of parameters")
    for kind, code, name in (("topic", "E_BAD_TOPIC", words[1]), ("channel", "E_BAD_CHANNEL", words[2])):
        if not is_valid_name(text_of(name)):
            return refusal(word, code, f"SUB {kind} name {quote(name)} is not valid")
    return None


def _complaint_of_start(text: bytes | None) -> str | bytes | None:
    if text is None:
        return None
    parts = text.split(b":")
    if len(parts) != 2 or parts[0] not in _START_TYPES:
        return b"invalid consume offset:" + text
    try:
        parse_int(parts[1], "ParseInt")
    except ValueError as error:
        return str(error)
    return None


_PARSERS: Final[dict[bytes, Callable[[list[bytes]], commands.Command | Malformed]]] = {
    b"FIN": _finish,
    b"REQ": _requeue,
    b"TOUCH": lambda words: commands.Touch(words[1]),
    b"CLS": lambda _: commands.Close(),
    b"NOP": lambda _: commands.Nop(),
}

_WITH_BODY: Final = frozenset(kind.word for kind in (commands.Identify, commands.Auth, *commands.PUBLISHES))
