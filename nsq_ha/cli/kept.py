"""Messages in a temporary file, while a command reads more of them than memory should hold."""

from __future__ import annotations

from typing import NamedTuple, Self, cast

import msgspec

from nsq_ha.message import Message, MessageSource


class KeptMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as it stands in the file; the fields are those of :class:`nsq_ha.Message` and its source."""

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    topic: str
    partition: int
    nsqd: str
    offset: int | None = None
    raw_size: int | None = None
    ext: bytes | None = None

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the entry for a message."""
        return cls(*(getattr(message, name) for name in cls.__struct_fields__))

    def message(self) -> Message:
        """Return the message, which cannot be answered."""
        origin = cast("MessageSource", _Origin(self.topic, self.partition, self.nsqd))
        own = (self.id, self.body, self.attempts, self.timestamp_ns)
        return Message(*own, origin, self.offset, self.raw_size, self.ext, answered=True)


class _Origin(NamedTuple):
    """The source of a message that was read from a file; nothing answers it."""

    topic: str
    partition: int
    nsqd: str
    channel: str = ""
