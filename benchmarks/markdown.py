"""Tables for the docs."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; a row may leave out its last cells."""
    lines = [heads, ["---"] * len(heads), *([*cells, *[""] * (len(heads) - len(cells))] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
