"""The forms in which a dead letter is published."""

from __future__ import annotations

import base64
import functools
import json
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.dead_letters.provenance import Provenance, fields_of
from nsq_ha.message import TAG_KEY, TRACE_KEY, Message
from nsq_ha.options.checks import MAX_TAG_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


PREFIX: Final = "dead_letter_"
"""Begins the names of all headers that a dead letter adds."""

VERSION: Final = "1"
"""Version of both forms."""

MAGIC: Final = b"nsq-dead-letter/"
"""Begins an envelope; the version follows."""

_MAX_PREVIOUS: Final = 10
"""Earlier provenances that headers keep, so that a message that goes round and round does not grow without end."""


_ROOM: Final = 50
"""Levels of nesting that Python's JSON must allow around a header, here and where the letter is read."""


class LetterForm(NamedTuple):
    """A dead letter in one of its forms.

    Attributes:
        body: The body to publish.
        headers: The headers. None for none.
        tag: The tag. None for none.
        lacks: What of the provenance is missing; empty if nothing is.
    """

    body: bytes
    headers: Mapping[str, object] | None
    tag: str | None
    lacks: str = ""


def forms(message: Message, origin: Provenance, *, takes_headers: bool | None) -> Iterator[LetterForm]:
    """Return the forms in which a message may be published, the best one first.

    The caller publishes the first one that the topic accepts. It may refuse one for its size, or for its headers.

    Args:
        message: The message.
        origin: Its provenance.
        takes_headers: Whether the topic accepts headers. None if that is not known.
    """
    own = _Own.of(message)
    fields = fields_of(origin)
    short = {name: value for name, value in fields.items() if name != "error"}
    cut = [(fields, "")] + ([(short, "the text of the error")] if len(short) < len(fields) else [])
    if takes_headers is not False:
        for chosen, lacks in cut:
            yield LetterForm(message.body, _with_headers(own, chosen), own.tag, lacks)
    for chosen, lacks in cut:  # also if the headers would be too large
        yield LetterForm(_envelope(message.body, own, chosen), None, own.tag if takes_headers else None, lacks)
    if own.raw is None and (takes_headers is not False or not (own.headers or own.tag)):
        yield LetterForm(message.body, own.headers or None, own.tag, "its origin and the reason")


class _Own(NamedTuple):
    """What a message has besides its body."""

    headers: dict[str, object]
    tag: str | None
    raw: bytes | None
    """The whole header, if it is not JSON that can be published again."""

    @classmethod
    def of(cls, message: Message) -> _Own:
        if not message.ext:
            return cls({}, None, None)
        try:
            found = json.loads(message.ext, parse_constant=_refuse)
            # 1e999 is JSON, but becomes infinity.
            json.dumps(functools.reduce(lambda inner, _: [inner], range(_ROOM), found), allow_nan=False)
        except (ValueError, RecursionError):
            return cls({}, None, message.ext)
        if not isinstance(found, dict):
            return cls({}, None, message.ext)
        tag = found.pop(TAG_KEY, None)
        found.pop(TRACE_KEY, None)  # the id of the message has it, too
        is_usable = tag is None or (
            isinstance(tag, str) and 1 <= len(tag.encode("utf-8", "surrogatepass")) <= MAX_TAG_BYTES
        )
        if not is_usable or any(name.startswith("##") for name in found):
            return cls({}, None, message.ext)
        return cls(found, tag, None)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _with_headers(own: _Own, fields: Mapping[str, str]) -> dict[str, object]:
    """Return the message's headers with those of the dead letter; earlier ones of the same names move to one header."""
    kept: dict[str, object] = {}
    mine: dict[str, object] = {}
    for name, value in own.headers.items():
        if name.startswith(PREFIX):
            mine[name.removeprefix(PREFIX)] = value
        else:
            kept[name] = value
    added = {"version": VERSION, **fields}
    if mine:
        earlier = earlier_of(mine.get("previous"))
        if earlier:
            del mine["previous"]
        added["previous"] = json.dumps([mine, *earlier][:_MAX_PREVIOUS], separators=(",", ":"))
    if own.raw is not None:
        added["ext"] = base64.b64encode(own.raw).decode()
    return kept | {PREFIX + name: value for name, value in added.items()}


def earlier_of(text: object) -> list[dict[str, object]]:
    """Return the earlier provenances in a header, those before the last one."""
    if not isinstance(text, str):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _envelope(body: bytes, own: _Own, fields: Mapping[str, str]) -> bytes:
    line: dict[str, object] = {**fields}
    if own.headers:
        line["headers"] = own.headers
    if own.tag is not None:
        line["tag"] = own.tag
    if own.raw is not None:
        line["ext"] = base64.b64encode(own.raw).decode()
    line["size"] = str(len(body))
    text = json.dumps(line, separators=(",", ":"))
    return b"%s%s %s\n%s" % (MAGIC, VERSION.encode(), text.encode("ascii"), body)
