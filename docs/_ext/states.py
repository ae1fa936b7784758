"""The states of a lane, a sender and a subscription: tables and diagrams, made from the tables of the code.

Directives for reStructuredText blocks::

    .. lane-diagram::            .. subscription-diagram::
    .. lane-table::              .. subscription-table::
    .. lane-standings::          .. subscription-states::
    .. lane-events::             .. subscription-events::
                                 .. subscription-acts::
    .. sender-table::            .. sender-events::
    .. sender-states::           .. sender-acts::
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from docs._ext.diagram import Bend, Edge, Frame, Layout, draw
from docs._ext.reference import Made, attribute_docs, table
from nsq_ha.policy import lane_table, sender_life, subscription

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Iterable, Mapping

    from sphinx.application import Sphinx

LANE: Final = Layout(
    size=(760, 345),
    places={
        "OUTSIDE": (95, 95),
        "READY": (380, 95),
        "SENT": (665, 95),
        "BLOCKED": (95, 290),
        "DONE": (380, 290),
        "ORPHANED": (665, 290),
    },
    first=frozenset({"OUTSIDE"}),
    last=frozenset({"DONE"}),
    bends={
        ("OUTSIDE", "READY"): Bend(12, shift=(0, -2)),
        ("READY", "OUTSIDE"): Bend(12, shift=(0, 2)),
        ("READY", "SENT"): Bend(12, shift=(0, -2)),
        ("SENT", "READY"): Bend(12, shift=(0, 24)),
        ("SENT", "OUTSIDE"): Bend(-62, shift=(0, 0)),
        ("BLOCKED", "READY"): Bend(0, words_at=0.45),
        ("SENT", "DONE"): Bend(0, words_at=0.62),
        ("ORPHANED", "DONE"): Bend(0, shift=(0, 21)),
    },
)

SUBSCRIPTION: Final = Layout(
    size=(815, 420),
    places={
        "PAUSED": (98, 120),
        "CONNECTING": (318, 120),
        "SUBSCRIBING": (538, 120),
        "MOVE_PAUSED": (98, 315),
        "MOVING": (318, 315),
        "SUBSCRIBED": (538, 315),
        "ENDED": (742, 120),
        "DRAINING": (742, 315),
    },
    first=frozenset({"PAUSED"}),
    last=frozenset({"ENDED"}),
    frames={
        "unread": Frame((12, 20, 605, 135), "nothing is subscribed", (24, 40)),
        "reading": Frame((12, 280, 605, 128), "one connection is subscribed", (24, 398)),
    },
    bends={
        ("PAUSED", "CONNECTING"): Bend(11, shift=(0, -3)),
        ("CONNECTING", "PAUSED"): Bend(11, shift=(0, 3)),
        ("CONNECTING", "SUBSCRIBING"): Bend(11, shift=(0, -3)),
        ("SUBSCRIBING", "CONNECTING"): Bend(11, shift=(0, 3)),
        ("SUBSCRIBING", "PAUSED"): Bend(-60),
        ("MOVE_PAUSED", "MOVING"): Bend(11, shift=(0, -3)),
        ("MOVING", "MOVE_PAUSED"): Bend(11, shift=(0, 3)),
        ("MOVE_PAUSED", "SUBSCRIBED"): Bend(-55),
        ("SUBSCRIBED", "PAUSED"): Bend(0, words_at=0.76),
        ("MOVING", "SUBSCRIBING"): Bend(0, words_at=0.62),
        ("MOVING", "CONNECTING"): Bend(0, words_at=0.28),
    },
)

NOT_DRAWN: Final = frozenset({subscription.Event.CLOSE, subscription.Event.FORBIDDEN})
"""Events that lead from nearly everywhere to ENDED; the page says so."""


_LONG: Final = 18
"""Letters of a line of words."""

_MARKS: Final = {
    lane_table.Doubt.NONE: "",
    lane_table.Doubt.IF_LATE: " (late: ?)",
    lane_table.Doubt.ALWAYS: " ?",
}


def lane_edges() -> list[Edge]:
    """Return the arrows of a publish's way through its lane; those that leave doubt are marked."""
    words: dict[tuple[str, str], list[str]] = {}
    for (here, event), (there, doubt) in lane_table.STEPS.items():
        if here is not there:
            words.setdefault((here.name, there.name), []).append(event.name + _MARKS[doubt])
    return [
        Edge(start, end, _lines(told), is_doubtful=any(not word.isidentifier() for word in told))
        for (start, end), told in words.items()
    ]


def subscription_edges() -> list[Edge]:
    """Return the arrows of a subscription's life; what all states of a frame do alike starts at the frame."""
    words: dict[tuple[str, str], list[str]] = {}
    frames = {
        "unread": [state for state in subscription.State if _is_in("unread", state)],
        "reading": [state for state in subscription.State if _is_in("reading", state)],
    }
    for (here, event), (there, _) in subscription.TRANSITIONS.items():
        if here is there or event in NOT_DRAWN:
            continue
        start = here.name
        for name, members in frames.items():
            alike = {subscription.TRANSITIONS.get((member, event)) for member in members}
            if here in members and len(alike) == 1:
                start = name
        told = words.setdefault((start, there.name), [])
        if event.name not in told:
            told.append(event.name)
    return [Edge(start, end, _lines(told)) for (start, end), told in words.items()]


def _is_in(frame: str, state: subscription.State) -> bool:
    left, top, width, height = SUBSCRIPTION.frames[frame].box
    x, y = SUBSCRIPTION.places[state.name]
    return left <= x <= left + width and top <= y <= top + height


def _lines(words: list[str]) -> tuple[str, ...]:
    """Put short words together on a line."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < _LONG:
            lines[-1] += f", {word}"
        else:
            lines[-1] += ","
            lines.append(word)
    return tuple(lines)


def lane_diagram() -> str:
    """Return the diagram of a publish in its lane."""
    names = [standing.name for standing in lane_table.Standing]
    return draw("The way of a publish through its lane", LANE, names, lane_edges())


def subscription_diagram() -> str:
    """Return the diagram of a subscription's life."""
    names = [state.name for state in subscription.State]
    return draw("The life of a subscription", SUBSCRIPTION, names, subscription_edges())


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


def _rows(states: Iterable[enum.Enum], steps: Mapping[Any, tuple[enum.Enum, enum.Enum]]) -> Callable[[], str]:
    """Return a function that returns a life's table."""

    def make() -> str:
        rows = [
            (here.name, event.name, there.name, act.name)
            for here in states
            for (at, event), (there, act) in steps.items()
            if at is here
        ]
        return table(("State", "Event", "Then", "What is done"), _without_repeats(rows))

    return make


def _without_repeats(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Name each state once."""
    shown, before = [], ""
    for state, *rest in rows:
        shown.append(("" if state == before else f"**{state}**", *rest))
        before = state
    return shown


def _meanings(kind: type[enum.Enum], head: str) -> Callable[[], str]:
    def make() -> str:
        told = attribute_docs(kind)
        return table((head, "Meaning"), [(member.name, told[member.name]) for member in kind], widths="24 76")

    return make


class _Diagram(SphinxDirective):
    make: Callable[[], str]

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", f'<div class="states-diagram">{type(self).make()}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    tables: dict[str, Callable[[], str]] = {
        "lane-table": lane_rows,
        "lane-standings": _meanings(lane_table.Standing, "Standing"),
        "lane-events": _meanings(lane_table.Event, "Event"),
        "sender-table": _rows(sender_life.State, sender_life.TRANSITIONS),
        "sender-states": _meanings(sender_life.State, "State"),
        "sender-events": _meanings(sender_life.Event, "Event"),
        "sender-acts": _meanings(sender_life.Act, "What is done"),
        "subscription-table": _rows(subscription.State, subscription.TRANSITIONS),
        "subscription-states": _meanings(subscription.State, "State"),
        "subscription-events": _meanings(subscription.Event, "Event"),
        "subscription-acts": _meanings(subscription.Act, "What is done"),
    }
    for name, make in tables.items():
        app.add_directive(name, type(name, (Made,), {"make": staticmethod(make)}))
    for name, make in {"lane-diagram": lane_diagram, "subscription-diagram": subscription_diagram}.items():
        app.add_directive(name, type(name, (_Diagram,), {"make": staticmethod(make)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
