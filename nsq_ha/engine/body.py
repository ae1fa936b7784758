"""The body of an HTTP answer, as untrusted input: its envelope, and JSON of a known shape.

Servers answer with bare JSON or in the old envelope. ``answers`` and ``nsqd_http``
interpret the content.

Source: server protocol 11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Annotated, Final, TypeVar

import msgspec

from nsq_ha.base.redaction import beginning, harmless
from nsq_ha.base.shapes import decoder
from nsq_ha.base.threads import in_thread
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.options.checks import MAX_INT64
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES

MAX_TEXT: Final = 400
"""Characters that are kept of a text in an answer: a version, the name of a node or of a client."""

_SHOWN: Final = 120
_NULL: Final = msgspec.Raw(b"null")

T = TypeVar("T")

Int64 = Annotated[int, msgspec.Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
"""A number of an answer, as servers send it; larger ones fit in no float and in no array."""


class _Envelope(msgspec.Struct):
    status_code: int
    status_txt: str
    data: msgspec.Raw = _NULL


class _Refusal(msgspec.Struct):
    message: str
    https_port: int | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """An answer without its envelope.

    Attributes:
        status: The true status; a wrapped 404 arrives as 500.
        data: The content as JSON; empty for a refusal.
        message: The text of a refusal, shortened; empty for a success.
        https_port: The port that a plain nsqd names in its refusal of plain HTTP. None in other answers.
        date: The header of this name; empty without one.
    """

    status: int
    data: bytes
    message: str = ""
    https_port: int | None = None
    date: str = ""

    @property
    def clock(self) -> float | None:
        """The time of the server's clock, in whole seconds since 1970. None if ``date`` is not readable."""
        try:
            return parsedate_to_datetime(self.date).timestamp()
        except (ValueError, OverflowError):
            return None


def unwrap(status: int, body: bytes) -> Body:
    """Remove the envelope if there is one.

    Args:
        status: HTTP status.
        body: The bytes as received.

    Returns:
        Status and content; ``message`` is set for every status but 200.
    """
    wrapped = try_json(body, _Envelope)
    if wrapped is not None:
        # Without the version header every refusal is wrapped in a 500, and only the text says what it was.
        status = wrapped.status_code if status == 200 else status
        if status != 200:
            return Body(status, b"", _shown(wrapped.status_txt))
        return Body(status, bytes(wrapped.data))
    if status == 200:
        return Body(status, body)
    refusal = try_json(body, _Refusal)
    if refusal is None:
        return Body(status, b"", _shown(body))
    return Body(status, b"", _shown(refusal.message), refusal.https_port)


async def decoded(body: Body, decode: Callable[[Body], T]) -> T:
    """Decode an answer, a large one in a thread: nothing else would run meanwhile."""
    return decode(body) if len(body.data) <= AT_ONCE_BYTES else await in_thread(partial(decode, body))


def decode_json(data: bytes, shape: type[T]) -> T:
    """Decode JSON of a known shape.

    Raises:
        RemoteProtocolError: The data is not JSON, has another shape, is nested too deep or is not UTF-8.
    """
    try:
        found: T = decoder(shape).decode(data)
        return found
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # Leave the body out: it can be megabytes of anything.
        raise RemoteProtocolError(f"unexpected answer: {_shown(str(error))}") from harmless(error)


def try_json(data: bytes, shape: type[T]) -> T | None:
    """Return None if the data is not JSON of this shape."""
    try:
        return decode_json(data, shape)
    except RemoteProtocolError:
        return None


def _shown(text: str | bytes) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in beginning(text, _SHOWN + 1))
    return printable if len(printable) <= _SHOWN else printable[:_SHOWN] + "..."
