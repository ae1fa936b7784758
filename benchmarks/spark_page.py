"""The tables of the Spark benchmarks, made of the figures that were kept: in the terminal, and on the docs' page."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.markdown import table

Figures = Mapping[str, Any]

CPU: Final = "CPU, µs a row: Spark with its workers / of it the workers of tasks / the nsqds on the same machine"
BARE: Final = "a Python source that does nothing"
IDLE: Final = "idle"
SUBSCRIBE: Final = "nsq, subscribe"
BULK: Final = "nsq, bulk"
FLOOR: Final = "floor"
"""A source in Python that hands over the same Arrow batches out of files."""
PARQUET: Final = "Parquet"
KAFKA: Final = "Kafka"
ONLY_VALUE: Final = ", only value"
READS: Final = (BULK, BULK + ONLY_VALUE, SUBSCRIBE, FLOOR, FLOOR + ONLY_VALUE, PARQUET, KAFKA)
READ_MARKS: Final[Figures] = {
    "200 B, plain": {BULK: 1.3, BULK + ONLY_VALUE: 1.3},
    "200 B, extended": {BULK: 1.6},
    "2 KiB, plain": {BULK: 1.2},
    "16 KiB, plain": {BULK: 1.1},
}
"""Of the CPU of Spark and its workers, as a multiple of the floor's with the same columns."""
ORDERED_MARK: Final = 20.0
SINK_MARK: Final = 0.65
TRIGGER_MARK: Final = 1.3
ACK_MARKS: Final = {"200": 15.0, "16384": 200.0}
"""Microseconds of CPU a row of ``delivery=ack``, by size of the bodies."""
ACK_LIMITED_MARK: Final = 0.5
HEADERS_MARK: Final = 60.0
"""Microseconds of CPU a row in the workers, of 60 headers of 100 B."""
MEMORY_MARK: Final = 200
"""MB above an idle worker, for reading."""


def ratios(ours: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratios within each round."""
    return [one / another for one, another in zip(ours, other, strict=True)]


def _ratio(found: Sequence[float], *, at_least: float | None = None, at_most: float | None = None) -> str:
    """Return median and range as a cell; bold where a mark is missed."""
    middle = statistics.median(found)
    digits = 1 if middle >= 10 else 2
    text = f"{middle:.{digits}f} ({min(found):.{digits}f} to {max(found):.{digits}f})"
    missed = (at_least is not None and middle < at_least) or (at_most is not None and middle > at_most)
    return f"**{text}**" if missed else text


def _rate(rates: Mapping[str, Sequence[float]], label: str) -> str:
    return f"{statistics.median(rates[label]):,.0f}"


def _size(size: str) -> str:
    number = int(size)
    return f"{number} B" if number < 1024 else f"{number // 1024} KiB"


def sizes(figures: Figures) -> str:
    """Return rates and CPU by kind of topic and size of the bodies."""
    kinds = [(kind, size) for kind in ("plain", "extended") for size in sorted(figures[kind], key=int)]
    shown = _reads("bodies, topic", {f"{_size(size)}, {kind}": figures[kind][size] for kind, size in kinds})
    is_told = all(KAFKA in figures[kind][size]["rates"] for kind, size in kinds)
    return shown if is_told else f"{shown}\n\nKafka was not measured: NSQ_HA_TEST_KAFKA named no node."


def writers(figures: Figures) -> str:
    """Return rates and CPU by who wrote the topic."""
    return _reads("written by", {"PUB" if lot == "1" else f"MPUB of {lot}": of for lot, of in figures.items()})


def _reads(head: str, found: Figures) -> str:
    """Return a table of the ways to read each topic.

    Args:
        head: What the topics differ in.
        found: The figures by the name of the topic.
    """
    rows = []
    for name, of in found.items():
        for label in (each for each in READS if each in of["rates"]):
            ours, workers, servers = _microseconds(of, label)
            mark = READ_MARKS.get(name, {}).get(label)
            floor = FLOOR + ONLY_VALUE if label.endswith(ONLY_VALUE) else FLOOR
            spent = [[each[0] for each in of["cpu"][kind]] for kind in (label, floor)]
            ratio = "" if label == floor else _ratio(ratios(*spent), at_most=mark)
            cpu = [f"{each:.{_digits(each)}f}" for each in (ours - workers, workers, servers)]
            rows.append([name, label, _rate(of["rates"], label), *cpu, ratio, f"{mark} or less" if mark else ""])
    heads = [head, "read", "rows/s", "CPU: JVM", "workers", "servers", "/ floor", "mark"]
    about = "CPU in µs a row; that of the JVM includes Python on the driver. The ratio is of JVM and workers together."
    return f"{table(heads, rows)}\n\n{about}"


def _microseconds(of: Figures, label: str) -> list[float]:
    """Return the CPU a row of Spark, of its workers and of the servers."""
    return [statistics.median(each) / of["rows"] * 1e6 for each in zip(*of["cpu"][label], strict=True)]


def _cpu(of: Figures, label: str) -> str:
    """Return the CPU of Spark, of its workers and of the nsqds as a cell."""
    return " / ".join(f"{each:.{_digits(each)}f}" for each in _microseconds(of, label))


def _digits(figure: float) -> int:
    return 2 if figure < 2 else 1 if figure < 100 else 0


def ordered(figures: Figures) -> str:
    """Return rates of ordered topics."""
    rates = figures["rates"]
    ratio = _ratio(ratios(rates["bulk"], rates["subscribe"]), at_least=ORDERED_MARK)
    cells = [_rate(rates, "subscribe"), _rate(rates, "bulk"), f"{ORDERED_MARK:g} or more", ratio]
    return table(["ordered topic, subscribe", "bulk", "mark", "bulk / subscribe"], [cells])


def headers(figures: Figures) -> str:
    """Return rates and CPU of messages with 60 headers of 100 B."""
    rows = [[fetch, _rate(figures["rates"], fetch), _cpu(figures, fetch), ""] for fetch in figures["rates"]]
    rows[0][-1] = f"workers {HEADERS_MARK:g} or less"
    return table(["fetch", "rows/s", CPU, "mark"], rows)


def traces(figures: Figures) -> str:
    """Return what an event of a trace log costs."""
    cpu = {label: statistics.median(ours for ours, *_ in used) for label, used in figures["cpu"].items()}
    events = figures["rows"]
    rows = [[label, f"{each / events * 1e6:.1f}", f"{events / each:,.0f}"] for label, each in cpu.items()]
    return table([f"of {events:,} events", "CPU, µs an event", "events a second of CPU"], rows)


def sink(figures: Figures) -> str:
    """Return rates of writing."""
    rates = figures["rates"]
    ratio = _ratio(ratios(rates["nsq"], rates["dropped"]), at_least=SINK_MARK)
    cpu = [_cpu(figures, label) for label in ("nsq", "dropped")]
    cells = [_rate(rates, "nsq"), _rate(rates, "dropped"), f"{SINK_MARK:g} or more", ratio, *cpu]
    heads = ["sink, rows/s", "writer that drops, rows/s", "mark", "sink / dropped"]
    return table([*heads, "CPU of sink", "CPU of dropped"], [cells]) + f"\n\n{CPU}."


def trigger(figures: Figures) -> str:
    """Return times of micro-batches with next to no rows."""
    found, parts = figures["ms"], figures["parts"]
    names = sorted(set().union(*(each[0] for each in parts.values())) - {"triggerExecution"})
    rows = []
    for label, times in found.items():
        at_most = TRIGGER_MARK if label == "nsq" else None
        ratio = _ratio(ratios(times, found["rate"]), at_most=at_most)
        mark = f"{TRIGGER_MARK:g} or less" if at_most else ""
        each = [f"{statistics.median(of.get(name, 0.0) for of in parts[label]):.0f}" for name in names]
        rows.append([label, f"{statistics.median(times):.0f}", mark, ratio, *each])
    return table(["source", "trigger, ms", "mark", "/ `rate`", *(f"`{name}`, ms" for name in names)], rows)


def ack(figures: Figures) -> str:
    """Return rates, CPU and micro-batches of ``delivery=ack``."""
    if not figures:
        return "Not measured: UPSTREAM_NSQD_BIN names no nsqd."
    rows = []
    for size, of in figures.items():
        whole = next(iter(of["rates"]))
        for label, rates in of["rates"].items():
            mark = f"{ACK_MARKS[size]:g} or less" if label == whole else f"{ACK_LIMITED_MARK:g} or more"
            pace = _ratio(ratios(rates, of["rates"][whole]), at_least=None if label == whole else ACK_LIMITED_MARK)
            batches = f"{statistics.median(of['batches'][label]):,.0f}"
            rows.append([_size(size), label, _rate(of["rates"], label), pace, _cpu(of, label), mark, batches])
    heads = ["body", "read", "rows/s", "/ no limit", "CPU", "mark", "rows of a micro-batch"]
    return table(heads, rows) + f"\n\n{CPU}."


def memory(figures: Figures) -> str:
    """Return peaks of the largest worker with bodies of 1 MB."""
    if not figures:
        return "Not measured: there is no /proc."
    idle = figures[IDLE] / 1e6
    rows = []
    for label, peak in figures.items():
        above = peak / 1e6 - idle
        is_marked = label.startswith("read ") and "write" not in label
        text = f"**{above:.0f}**" if is_marked and above > MEMORY_MARK else f"{above:.0f}"
        name = "1,000 bodies of 200 B (idle)" if label == IDLE else f"{label} bodies of 1 MB"
        rows.append([name, f"{peak / 1e6:.0f}", f"{MEMORY_MARK} or less" if is_marked else "", text])
    return table(["work", "peak of the largest worker, MB", "mark", "above idle, MB"], rows)


TABLES: Final[Mapping[str, Callable[[Figures], str]]] = {
    "sizes": sizes,
    "writers": writers,
    "ordered": ordered,
    "headers": headers,
    "sink": sink,
    "trigger": trigger,
    "ack": ack,
    "traces": traces,
    "memory": memory,
}

TITLES: Final = {
    "sizes": "Reading, by size of the bodies",
    "writers": "Reading, by who wrote the topic",
    "ordered": "Reading ordered topics",
    "headers": "Reading 60 headers of 100 B",
    "sink": "Writing",
    "trigger": "Micro-batches with next to no rows",
    "ack": "Reading plain nsqds with `delivery=ack`",
    "traces": "Following messages through a trace log",
    "memory": "Memory",
}


def page(kept: Figures) -> str:
    """Return the tables of all that is kept, with the conditions of each."""
    parts = []
    for name, title in TITLES.items():
        if of := kept.get(f"spark/{name}"):
            where = f"Commit `{of['commit']}`, load {of['load']:.1f} before it, {of['machine']}."
            parts.append(f"**{title}**\n\n{TABLES[name](of['figures'])}\n\n{where}")
    return "\n\n".join(parts)


def write_page(kept: Figures, folder: Path) -> None:
    """Write the part that the page includes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md.inc").write_text(page(kept) + "\n")
