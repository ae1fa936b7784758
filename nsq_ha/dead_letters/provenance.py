"""Where a dead letter comes from and why the consumer gave up on it, as a value and as texts.

Both forms of a dead letter have the same fields, and each one is text, as headers of all NSQ clients are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from nsq_ha.base.identity import is_upstream_id
from nsq_ha.base.redaction import redact
from nsq_ha.errors import DeadLetterError
from nsq_ha.message import Message

Reason = Literal["failed", "requeued", "redelivered"]
"""Why a consumer gave up on a message.

``failed``: the handler raised. ``requeued``: the application requeued it, or left its block by an exception.
``redelivered``: it was delivered more often than a message is handled, and the consumer that gave it up saw none of the
failures.
"""

MAX_ERROR: Final = 1000
"""Characters of an error's text that are kept."""

_MAX_TYPE: Final = 200


class Failure(NamedTuple):
    """Why a consumer gives up on a message.

    Attributes:
        reason: The reason.
        error_type: The name of the exception's class, with its module unless it is built in. None if none is known.
        error: The exception's text, shortened and without secrets. None if none is known.
    """

    reason: Reason
    error_type: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, reason: Reason, error: BaseException | None) -> Failure:
        """Describe an exception of the application."""
        if error is None:
            return cls(reason)
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception of the application may raise anything
            text = "(its text cannot be shown)"
        return cls(reason, _bounded(name, _MAX_TYPE), _bounded(text, MAX_ERROR))

    def __str__(self) -> str:
        """Return the exception, or the reason if none is known."""
        if self.error_type is None:
            return self.reason
        return f"{self.error_type}: {self.error}" if self.error else self.error_type


def _bounded(text: str, most: int) -> str:
    """Return ``text`` without secrets and surrogates, shortened."""
    # Secrets first: a cut could leave a part of one that is not recognised.
    text = redact(text).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a dead letter comes from, and why the consumer gave up on it.

    Attributes:
        topic: The topic that it was read from.
        partition: Its partition there. None if a plain nsqd delivered it.
        channel: The channel.
        nsqd: ``host:port`` of the nsqd that delivered it.
        id: Its 16 raw bytes of id there.
        trace_id: Its trace id; 0 if there was none.
        attempts: Number of its deliveries there.
        timestamp_ns: When it was published there, in nanoseconds since the epoch.
        given_up_at: When the consumer gave it up.
        reason: Why the consumer gave it up.
        error_type: Class of the last exception, such as ``ValueError`` or ``shop.errors.NoStock``. None if none is
            known.
        error: Text of the last exception, 1000 characters at most, without secrets of nsq_ha's options. None if none is
            known.
    """

    topic: str
    partition: int | None = None
    channel: str
    nsqd: str
    id: bytes
    trace_id: int
    attempts: int
    timestamp_ns: int
    given_up_at: Annotated[datetime, msgspec.Meta(tz=True)]
    reason: Reason
    error_type: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, message: Message, why: Failure, now: float) -> Provenance:
        """Describe a message that the consumer gives up on.

        Args:
            message: The message.
            why: Why the consumer gives up.
            now: The time, in seconds since the epoch.
        """
        return cls(
            topic=message.topic,
            partition=None if is_upstream_id(message.id) else message.partition,
            channel=message.source.channel,
            nsqd=message.nsqd,
            id=message.id,
            trace_id=message.trace_id,
            attempts=message.attempts,
            timestamp_ns=message.timestamp_ns,
            given_up_at=datetime.fromtimestamp(now, UTC),
            reason=why.reason,
            error_type=why.error_type,
            error=why.error,
        )


def fields_of(origin: Provenance) -> dict[str, str]:
    """Return the fields of a provenance as text; those that are not known are missing."""
    found = {each.name: getattr(origin, each.name) for each in fields(Provenance)}
    return {name: _WRITTEN.get(name, str)(value) for name, value in found.items() if value is not None}


def provenance_of(texts: Mapping[str, object], name: str) -> Provenance:
    """Return the provenance of fields that :func:`fields_of` returned; ignore others, which a later version may add.

    Args:
        texts: The fields.
        name: Names the message in errors.

    Raises:
        DeadLetterError: A field is missing or not legal.
    """
    try:
        found = msgspec.convert({**texts, "id": _id_of(texts)}, Provenance, strict=False)
        found.given_up_at.astimezone()  # raises if the local time is before the year 1, or after 9999
    except (ValueError, msgspec.ValidationError) as error:
        raise DeadLetterError(f"{name} is a damaged dead letter: {error}") from None
    except OverflowError:
        raise DeadLetterError(f"{name} is a damaged dead letter: its given_up_at is no local time") from None
    return found


def _id_of(texts: Mapping[str, object]) -> bytes:
    text = str(texts.get("id"))
    with contextlib.suppress(ValueError):
        found = text.encode() if len(text) == 16 else bytes.fromhex(text)
        if len(found) == 16:
            return found
    raise ValueError("its field id is missing, or is no id")


_fields_are_known: Final = msgspec.json.Decoder(Provenance)
"""Made before any thread needs it, see ``shapes``."""

_WRITTEN: Final[Mapping[str, Callable[[Any], str]]] = {
    "id": lambda found: found.decode() if is_upstream_id(found) else found.hex(),
    "given_up_at": lambda at: at.astimezone(UTC).isoformat(),
}
"""How the fields that are no texts become texts."""
