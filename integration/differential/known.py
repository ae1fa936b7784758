"""Intended differences; ``docs/reference/devcluster.md`` lists each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from integration.differential.running import Found


class Known(NamedTuple):
    """An intended difference.

    Attributes:
        reason: Words from the docs.
        command: Name of the command's class.
        kind: Of the difference.
        real: Pattern of what the real side does.
        embedded: Pattern of what the embedded one does.
        after: Name of the class of a command before it. Empty for any.
    """

    reason: str
    command: str
    kind: str
    real: str
    embedded: str
    after: str = ""


KNOWN: Final = (
    Known(
        "a channel that is deleted and made again is replicated late",
        command="Operate",
        kind="answer",
        real="^404 .*CHANNEL_NOT_FOUND",
        embedded="^200",
        after="Move",
    ),
)


def why(found: Found) -> str | None:
    """Return the reason of an intended difference, or None."""
    *before, command = (type(one).__name__ for one in found.commands[: found.difference.step])
    for known in KNOWN:
        if (
            (known.command, known.kind) == (command, found.difference.kind)
            and (not known.after or known.after in before)
            and re.search(known.real, found.difference.real)
            and re.search(known.embedded, found.difference.embedded)
        ):
            return known.reason
    return None
