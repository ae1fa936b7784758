"""The timeline: leader changes and problems of the last minutes, as a picture and as a list."""

from __future__ import annotations

from itertools import islice
from typing import Final

from nsq_ha.base.markup import join, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.charts import legend
from nsq_ha.dashboard.charts import timeline as lanes
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page

MAX_SHOWN: Final = 200


def timeline(board: Board) -> Page:
    """Return the timeline."""
    history = board.history
    needle = board.arguments.get("q", "")
    is_plain = board.reading.is_plain
    times = history.times
    begin, end = (times[0], times[-1]) if times else (board.now, board.now)
    moves = (each for each in history.events if each.kind == "leader" and each.level == "warning")
    marks = [each for each in moves if each.at >= begin and ui.found(f"{each.subject} {each.text}", needle)]
    periods = (p for p in history.periods if (p.ended or end) >= begin and ui.found(f"{p.subject} {p.why}", needle))
    # What the loss of an nsqd explains has no row of its own, unless it is looked for.
    rows = [period for period in periods if needle or not period.cause]
    events = (e for e in reversed(history.events) if ui.found(f"{e.kind} {e.subject} {e.text}", needle))
    length = figures.span(end - begin)
    content = join(
        ui.filter_form(("timeline",), board, "Event contains"),
        ui.section(
            f"The last {length}",
            lanes("lanes", begin, end, rows, marks),
            tag(
                "p",
                None if is_plain else legend("mark", "leader moved"),
                legend("silent", "no answer, not served, or not consumed"),
                legend("unstable", "falling behind" if is_plain else "unstable, or falling behind"),
                class_="legends",
            ),
        ),
        ui.section(
            "Events, the newest first",
            ui.events_list(islice(events, MAX_SHOWN), empty="No event matches." if needle else "Nothing has happened."),
        ),
    )
    return Page("Timeline", content)
