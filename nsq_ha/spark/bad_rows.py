"""Count rows that cannot be published, and write their dead letters.

``outgoing`` decides which rows are bad, the option ``onBadRow`` what happens to
them.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

log: Final = logging.getLogger("nsq_ha.spark")

FAIL: Final = "fail"
DROP: Final = "drop"
DEAD_LETTER: Final = "deadLetter"
WAYS: Final = (FAIL, DROP, DEAD_LETTER)
"""Values of the option ``onBadRow``."""

_MAX_VALUE: Final = 256 * 1024  # bytes of a bad value that a dead letter keeps
_MAX_TEXT: Final = 10_000  # characters of anything else


@dataclass(slots=True)
class BadRows:
    """What one task did with rows that it could not publish.

    Attributes:
        dropped: Rows that were left out.
        dead_letters: Rows that were published to ``deadLetterTopic`` instead.
        first: Why the first of them was bad. None if there was none.
    """

    dropped: int = 0
    dead_letters: int = 0
    first: str | None = None

    def count(self, reason: str, *, dropped: bool) -> None:
        """Count a row, and log the first one."""
        if self.first is None:
            self.first = reason
            done = "dropped" if dropped else "sent to the dead letters"
            log.warning("a row was %s: %s; further ones in this task are only counted", done, reason)
        if dropped:
            self.dropped += 1
        else:
            self.dead_letters += 1

    def add(self, other: BadRows) -> None:
        """Add the counts of another task."""
        self.dropped += other.dropped
        self.dead_letters += other.dead_letters
        self.first = self.first or other.first

    def __str__(self) -> str:
        """Return the end of a log line; empty if there was no bad row."""
        if self.first is None:
            return ""
        return f"; {self.dropped} rows dropped, {self.dead_letters} sent to the dead letters, the first: {self.first}"


def dead_letter(columns: Mapping[str, Any], topic: str | None, reason: str) -> bytes:
    """Return the body of a dead letter: a JSON object, at most about 400 KiB.

    Args:
        columns: The row, as lists of one value by column name.
        topic: The topic of the row.
        reason: Why it cannot be published.
    """
    told = {name: values[0] for name, values in columns.items()}
    value = told.pop("value", None)
    raw = value.encode() if isinstance(value, str) else value
    told.pop("topic", None)
    letter: dict[str, Any] = {"reason": _text(reason), "topic": topic}
    letter |= {name: each if each is None or isinstance(each, int) else _text(each) for name, each in told.items()}
    letter["size"] = None if raw is None else len(raw)
    letter["value"] = None if raw is None else base64.b64encode(raw[:_MAX_VALUE]).decode()
    letter["truncated"] = raw is not None and len(raw) > _MAX_VALUE
    return json.dumps(letter).encode()


def _text(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text[:_MAX_TEXT]
