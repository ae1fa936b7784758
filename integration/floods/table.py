"""The table of the docs: the worst of each group of cases, for each kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from integration.floods.running import Result

COLUMNS: Final = (
    "bad input",
    "client",
    "cases",
    "beyond a limit",
    "longest iteration, ms of CPU",
    "peak memory, MiB",
    "reconnects a second",
    "s until it works again",
    "s to close",
)


def rows(results: Iterable[Result]) -> list[str]:
    """Return the lines of the table, in Markdown."""
    found: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        found.setdefault((result.case.group, result.client), []).append(result)
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|" + "--:|" * (len(COLUMNS) - 2)]
    for (group, client), each in found.items():
        cells = (
            group,
            client,
            str(len(each)),
            str(sum(bool(result.broken) for result in each)),
            f"{1000 * max(result.turn for result in each):.0f}",
            f"{max(result.memory for result in each) / 2**20:.0f}",
            f"{max(result.reconnects for result in each):.1f}",
            f"{max(result.recovery for result in each):.1f}",
            f"{max(result.stop for result in each):.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
