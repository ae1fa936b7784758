"""Messages that were finished here, perhaps without the server's knowledge.

A FIN has no answer. One that is sent after the message timeout, or over a
connection that turns out to be lost, may come too late: the server delivers the
message again, although it was handled. The copy is recognised by its id and its
publish time, since ids are reused after a topic is deleted.

The invariant: a message is claimed at most once, and only within
``REMEMBERED``; a channel that is reset later on purpose delivers as usual.
"""

from __future__ import annotations

from typing import Final

REMEMBERED: Final = 600.0
"""Seconds for which a finished message is remembered; its copy may wait at the server for so long."""

MOST: Final = 10_000
"""Maximum number of remembered messages; the oldest are forgotten first."""


class Finished:
    """Messages whose FIN may have come too late."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._known)

    def remember(self, message_id: bytes, timestamp_ns: int, now: float) -> None:
        """Remember a message whose FIN may have come too late."""
        known = self._known
        known.pop(message_id, None)
        known[message_id] = (timestamp_ns, now + REMEMBERED)
        while len(known) > MOST or next(iter(known.values()))[1] <= now:
            del known[next(iter(known))]

    def claim(self, message_id: bytes, timestamp_ns: int, now: float) -> bool:
        """Return whether this message was finished before, and forget it."""
        found = self._known.get(message_id)
        if found is None or found[0] != timestamp_ns:
            return False
        del self._known[message_id]
        return now < found[1]
