"""The states of a lane and of a consumer's connection, as tables that are made from the code.

Directives for reStructuredText blocks::

    .. lane-matrix::      .. connection-stages::
    .. lane-standings::
    .. lane-events::
    .. lane-table::
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from docs._ext import lane_table
from docs._ext.reference import Made, attribute_docs, table
from nsq_ha.consumer.inflight import Stage

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterable, Mapping

    from sphinx.application import Sphinx

_MARKS: Final[Mapping[enum.Enum, str]] = {
    lane_table.Doubt.NONE: "",
    lane_table.Doubt.IF_LATE: " (late: ?)",
    lane_table.Doubt.ALWAYS: " ?",
}


def matrix(steps: Mapping[Any, tuple[enum.Enum, enum.Enum]]) -> str:
    """Return a table of the states: from each row to each column, the events that lead there."""
    states = list(dict.fromkeys([*(here for here, _ in steps), *(there for there, _ in steps.values())]))
    cells: dict[tuple[Any, Any], list[str]] = {}
    for (here, event), (there, mark) in steps.items():
        cells.setdefault((here, there), []).append(event.name + _MARKS.get(mark, ""))
    names = [f"**{state.name}**" for state in states]
    rows = [
        (name, *(", ".join(cells.get((here, there), [])) for there in states))
        for name, here in zip(names, states, strict=True)
    ]
    return table(("From \N{RIGHTWARDS ARROW}", *names), rows)


def lane_rows() -> str:
    """Return the lane's table."""
    words = {
        lane_table.Doubt.NONE: "–",
        lane_table.Doubt.IF_LATE: "in doubt, if it came later than a second after the write",
        lane_table.Doubt.ALWAYS: "in doubt",
    }
    rows = [
        (here.name, event.name, there.name, words[doubt])
        for here in lane_table.Standing
        for (at, event), (there, doubt) in lane_table.STEPS.items()
        if at is here
    ]
    return table(("Standing", "Event", "Then", "Is it stored?"), _without_repeats(rows))


def _without_repeats(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Name each state once."""
    shown, before = [], ""
    for state, *rest in rows:
        shown.append(("" if state == before else f"**{state}**", *rest))
        before = state
    return shown


def _meanings(kind: type[enum.Enum], head: str) -> Callable[[], str]:
    def make() -> str:
        meanings = attribute_docs(kind)
        return table((head, "Meaning"), [(member.name, meanings[member.name]) for member in kind], widths="24 76")

    return make


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    tables: dict[str, Callable[[], str]] = {
        "lane-matrix": partial(matrix, lane_table.STEPS),
        "lane-table": lane_rows,
        "lane-standings": _meanings(lane_table.Standing, "Standing"),
        "lane-events": _meanings(lane_table.LaneEvent, "Event"),
        "connection-stages": _meanings(Stage, "Stage"),
    }
    for name, make in tables.items():
        app.add_directive(name, type(name, (Made,), {"make": staticmethod(make)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
