"""Draw charts as inline SVG: lines over time, with problems as bands and leader changes as marks.

The picture has no text, so that it can be stretched; labels are HTML around it. The browser's script reads the values
from ``data-chart`` and shows them at the pointer, or at the arrow keys.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.admin.incident import OF_CHANNELS
from nsq_ha.admin.words import some
from nsq_ha.base.markup import Child, Html, join, tag, visible
from nsq_ha.dashboard import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsq_ha.dashboard.history import ClusterEvent, Period

WIDTH: Final = 600
HEIGHT: Final = 120
MAX_POINTS: Final = 180
_ROW: Final = 18
_MAX_ROWS: Final = 40

UNITS: Final[Mapping[str, Callable[[float | None], str]]] = {
    "count": figures.short,
    "rate": figures.rate,
    "seconds": figures.span,
}
"""How values are written, by the name that the script knows, too."""


class ChartLine(NamedTuple):
    """One line of a chart.

    Attributes:
        label: What it shows.
        values: One for each time; NaN where there is none.
    """

    label: str
    values: Sequence[float]


def chart(
    name: str,
    title: str,
    times: Sequence[float],
    lines: Sequence[ChartLine],
    *,
    unit: str = "count",
    periods: Sequence[Period] = (),
    marks: Sequence[ClusterEvent] = (),
    above: Html | None = None,
) -> Html:
    """Return a figure with a chart.

    Args:
        name: Its id; the same in each refresh.
        title: What it shows.
        times: When the values were measured, in Unix seconds, the oldest first.
        lines: One line or several, on one scale.
        unit: A key of :data:`UNITS`.
        periods: Shown as bands.
        marks: Shown as vertical marks.
        above: Stands above the picture.
    """
    write = UNITS[unit]
    groups = _groups(len(times))
    at = [times[group[-1]] for group in groups]
    thin = [ChartLine(line.label, [_peak(line.values, group) for group in groups]) for line in lines]
    values = [value for line in thin for value in line.values if not math.isnan(value)]
    top = _nice(max(values, default=0.0))
    # In a gap nobody knows a value, and an old one would look like the present.
    newest = [None if not line.values or math.isnan(line.values[-1]) else line.values[-1] for line in lines]
    legends = [
        legend(f"line-{number}", f"{line.label} ", tag("b", write(last)))
        for number, (line, last) in enumerate(zip(thin, newest, strict=True))
    ]
    spoken = "; ".join(f"{line.label}: {write(last)} now" for line, last in zip(thin, newest, strict=True))
    if len(at) < 2 or not values:
        body = tag("p", "No figures yet." if len(at) < 2 else "Not reported.", class_="empty")
    else:
        label = f"{title}. {spoken}. Highest: {write(top)}."
        body = _picture(label, at, thin, unit, top=top, behind=_behind((at[0], at[-1]), periods, marks))
        body = join(tag("div", above, class_="above") if above else None, body)
    return tag(
        "figure",
        tag("figcaption", tag("span", title, class_="title"), tag("span", *legends, class_="legends")),
        body,
        id=f"chart-{name}",
        class_="chart",
    )


def timeline(name: str, begin: float, end: float, periods: Sequence[Period], marks: Sequence[ClusterEvent]) -> Html:
    """Return rows with problems as bars and leader changes as marks, one for each thing that had any.

    Args:
        name: Its id.
        begin: Where it begins, in Unix seconds.
        end: Where it ends.
        periods: The problems.
        marks: The leader changes.
    """
    first: dict[str, float] = {}
    for subject, when in [(p.subject, p.began) for p in periods] + [(m.subject, m.at) for m in marks]:
        first[subject] = min(when, first.get(subject, math.inf))
    now = {period.subject for period in periods if period.ended is None}  # there is always room for these
    channels = {period.subject for period in periods if period.trouble in OF_CHANNELS}  # after the servers
    subjects = sorted(first, key=lambda each: (each not in now, each in channels, each != "cluster", first[each], each))
    rows = []
    for subject in subjects[:_MAX_ROWS]:
        shapes = [
            bar(
                (each.began, each.ended or end), (begin, end), (3, _ROW - 6), f"{each.why}: {_lasted(each, end)}",
                f"band {each.trouble}", least=2.0,
            )
            for each in periods
            if each.subject == subject and (each.ended or end) >= begin
        ]  # fmt: skip
        shapes += [
            _mark(mark.at, (begin, end), _ROW, f"{figures.clock(mark.at)} {mark.text}")
            for mark in marks
            if mark.subject == subject and mark.at >= begin
        ]
        if shapes:
            rows.append(lane(subject, shapes, _ROW))
    left = len(subjects) - _MAX_ROWS
    return tag(
        "figure",
        rows or tag("p", "Nothing happened in this time.", class_="empty"),
        tag("p", f"{left:,} more are in the list below.", class_="soft") if left > 0 else None,
        _axis(begin, end) if rows else None,
        id=f"chart-{name}",
        class_="lanes",
    )


def _behind(window: tuple[float, float], periods: Iterable[Period], marks: Iterable[ClusterEvent]) -> list[Html]:
    """Return what stands behind the lines of a chart: outages, a grid, and the leader changes."""
    shapes = [bar(times, window, (0, HEIGHT), title, "band outage") for times, title in merged(periods, *window)]
    shapes += [tag("path", d=f"M0 {y}H{WIDTH}", class_="grid") for y in (0, HEIGHT // 2, HEIGHT)]
    shapes += [
        _mark(mark.at, window, HEIGHT, f"{mark.subject}: {mark.text}")
        for mark in marks
        if window[0] <= mark.at <= window[1]
    ]
    return shapes


def merged(periods: Iterable[Period], begin: float, end: float) -> list[tuple[tuple[float, float], str]]:
    """Return one band for all outages that overlap, however many there are, and what it says.

    Args:
        periods: The outages.
        begin: Where the picture begins, in Unix seconds.
        end: Where it ends.
    """
    bands: list[tuple[float, float, list[Period]]] = []
    for period in sorted(periods, key=lambda each: each.began):
        until = end if period.ended is None else period.ended
        if until < begin:
            continue
        if bands and period.began <= bands[-1][1]:
            first, last, members = bands[-1]
            bands[-1] = (first, max(last, until), [*members, period])
        else:
            bands.append((period.began, until, [period]))
    return [((first, last), some(f"{each.subject}: {each.why}" for each in members)) for first, last, members in bands]


def legend(kind: str, *text: Child) -> Html:
    """Return what a colour means.

    Args:
        kind: The CSS class of what has it.
        *text: What it means.
    """
    return tag("span", tag("i", class_=f"key {kind}"), *text, class_="legend")


def lane(label: str, shapes: Iterable[Html], height: int, **attributes: str) -> Html:
    """Return a row of a timeline: its subject, and what happened to it."""
    box = f"0 0 {WIDTH} {height}"
    svg = tag("svg", *shapes, viewBox=box, preserveAspectRatio="none", aria_hidden="true")
    return tag("div", tag("span", label, class_="subject"), svg, class_="row", **attributes)


def bar(
    times: tuple[float, float],
    window: tuple[float, float],
    edge: tuple[int, int],
    title: str,
    kind: str,
    *,
    least: float = 1.0,
) -> Html:
    """Return a rectangle for a time.

    Args:
        times: When it begins and ends, in Unix seconds.
        window: When the picture begins and ends.
        edge: Its upper edge and its height.
        title: Shown at the pointer.
        kind: Its CSS class.
        least: Its smallest width, so that it can be seen.
    """
    left, right = (_x(at, *window) for at in times)
    width, (y, height) = max(least, right - left), edge
    return tag("rect", tag("title", title), x=left, y=y, width=width, height=height, class_=kind)


def _mark(at: float, window: tuple[float, float], height: int, title: str) -> Html:
    return tag("path", tag("title", title), d=f"M{_x(at, *window):.1f} 0V{height}", class_="mark")


def _picture(
    label: str, times: Sequence[float], lines: Sequence[ChartLine], unit: str, *, top: float, behind: Iterable[Html]
) -> Html:
    begin, end, write = times[0], times[-1], UNITS[unit]
    shapes = [*behind]
    for number, line in enumerate(lines):
        points = [
            None if math.isnan(value) else (_x(when, begin, end), HEIGHT * (1 - value / top))
            for when, value in zip(times, line.values, strict=True)
        ]
        shapes.append(tag("path", d=_path(points), class_=f"line line-{number}"))
    data = {
        "unit": unit,
        "times": [round(when, 1) for when in times],
        "lines": [
            [visible(line.label), [None if math.isnan(value) else float(f"{value:.4g}") for value in line.values]]
            for line in lines
        ],
    }
    svg = tag(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        tabindex="0",
        data_chart=json.dumps(data, separators=(",", ":")),
    )
    scale = tag("span", tag("span", write(top)), tag("span", write(top / 2)), tag("span", write(0)), class_="scale")
    return join(tag("div", svg, scale, tag("output", hidden=True), class_="plot"), _axis(begin, end))


def _axis(begin: float, end: float) -> Html:
    return tag("div", map(figures.time_of_day, (begin, (begin + end) / 2, end)), class_="axis")


def _lasted(period: Period, now: float) -> str:
    if period.ended is None:
        return f"for {figures.span(now - period.began)}, and lasts"
    return figures.span(period.ended - period.began)


def _x(at: float, begin: float, end: float) -> float:
    return 0.0 if end <= begin else min(1.0, max(0.0, (at - begin) / (end - begin))) * WIDTH


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts, is_drawing = [], False
    for index, point in enumerate(points):
        if point is None:
            is_drawing = False
            continue
        parts.append(f"{'L' if is_drawing else 'M'}{point[0]:.1f} {point[1]:.1f}")
        if not is_drawing and (index + 1 == len(points) or points[index + 1] is None):
            parts.append("h0.1")  # a lone value would be invisible
        is_drawing = True
    return "".join(parts)


def _groups(length: int) -> list[range]:
    """Return neighbours that share a point of the picture."""
    step = max(1, math.ceil(length / MAX_POINTS))
    # Counted from the end, so that the newest point is always whole.
    starts = range(length % step - step if length % step else 0, length, step)
    return [range(max(0, start), start + step) for start in starts]


def _peak(values: Sequence[float], group: range) -> float:
    return max((values[index] for index in group if not math.isnan(values[index])), default=math.nan)


def _nice(value: float) -> float:
    """Return a round number that is not smaller, for the end of a scale."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999999)
