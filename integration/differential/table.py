"""The tables of ``docs/reference/devcluster.md``: what was compared, and the differences that were found and closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from integration.differential.known import why

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from integration.differential.closed import Closed
    from integration.differential.running import Tally, Verdict


class Compared(NamedTuple):
    """What was compared with topics of one kind.

    Attributes:
        server: Name and version of the real nsqd.
        kind: Name of the kind.
        tally: The counts.
        closed: The closed differences that were tried again, and whether they are there.
    """

    server: str
    kind: str
    tally: Tally
    closed: Sequence[tuple[Closed, Verdict]]


def rows(compared: Iterable[Compared]) -> list[str]:
    """Return the lines of both tables, in Markdown."""
    compared = list(compared)
    lines = [
        "| real nsqd | topic | cases | commands to each side | differed once | lasting differences | on this page |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for server, kind, tally, _ in compared:
        listed = sum(why(found) is not None for found in tally.found)
        counts = tally.cases, tally.commands, tally.unsteady, len(tally.found), listed
        lines.append(f"| {server} | {kind} | {' | '.join(map(str, counts))} |")
    lines += ["", "| closed difference: the real nsqd does this | topic | closed by | now |", "|---|---|---|---|"]
    for _, kind, _, tried in compared:
        lines += [f"| {closed.what} | {kind} | `{closed.commit}` | {verdict} |" for closed, verdict in tried]
    return lines
