"""The tables of the docs, made of what was measured: ``python -m benchmarks.figures FIGURES.json FOLDER``.

``peers``, ``ha``, ``growth`` and ``guard`` keep what they measure in the file
that ``--json`` names; here it becomes the parts that the page includes.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any, Final

from benchmarks import growth, markdown
from benchmarks.peers.environments import GO_NSQ, OURS_311, OURS_312, OURS_UVLOOP, PEERS
from benchmarks.peers.rounds import Outcome
from benchmarks.peers.rows import ROWS, Row, table
from benchmarks.record import Record

_OURS: Final = (OURS_311, OURS_312, OURS_UVLOOP)
_BEFORE: Final = tuple(one.before("before") for one in _OURS)
_CLIENTS: Final = {one.name: one for one in (*_OURS, *_BEFORE, *PEERS, GO_NSQ)}
_UNITS: Final = {"rate": (1.0, ",.0f"), "cpu": (1e6, ".2f"), "p50": (1e3, ".2f"), "p99": (1e3, ".2f")}
_HEADS: Final = {"rate": "messages/s", "cpu": "CPU, us", "p50": "p50, ms", "p99": "p99, ms", "peak_bytes": "peak, MB"}


def main(arguments: list[str] | None = None) -> None:
    """Write the parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("json", type=Path, help="what was measured")
    parser.add_argument("folder", type=Path, help="where the parts go")
    chosen = parser.parse_args(arguments)
    kept = Record(chosen.json).read()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "peers.md.inc": _peers(kept),
        "absolute.md.inc": _absolute(kept),
        "ha.md.inc": _ha(kept),
        "guard.md.inc": _guard(kept),
        "growth.md.inc": _growth(kept),
        "conditions.md.inc": _conditions(kept),
    }
    for name, text in texts.items():
        (chosen.folder / name).write_text(text.rstrip("\n") + "\n")


def _rows(kept: dict[str, Any]) -> list[tuple[Row, list[Outcome]]]:
    return [
        (
            ROWS[name],
            [Outcome(_CLIENTS[client], results) for client, results in kept[f"peers/{name}"]["figures"].items()],
        )
        for name in ROWS
        if f"peers/{name}" in kept
    ]


def _peers(kept: dict[str, Any]) -> str:
    return table(_rows(kept))


def _absolute(kept: dict[str, Any]) -> str:
    found = [(row, outcome) for row, outcomes in _rows(kept) for outcome in outcomes]
    rows = [[row.work.name, of.client.name, *(_cell(of, figure) for figure in _HEADS)] for row, of in found]
    return markdown.table(["work", "client", *_HEADS.values()], rows)


def _cell(outcome: Outcome, figure: str) -> str:
    if figure not in outcome.results[0]:
        return ""
    factor, form = _UNITS.get(figure, (1e-6, ".1f"))
    return format(outcome.median(figure) * factor, form)


def _ha(kept: dict[str, Any]) -> str:
    rows = []
    for name, (ours, other, mark) in kept.get("ha", {"figures": {}})["figures"].items():
        found = [a / b for a, b in zip(ours, other, strict=True)]
        text = f"{statistics.median(found):.2f} ({min(found):.2f}..{max(found):.2f})"
        text = text if statistics.median(found) >= mark else f"**{text}**"
        rates = (f"{statistics.median(each):,.0f}" for each in (ours, other))
        rows.append([name, f">= {mark:g}", text, *rates])
    return markdown.table(["work", "mark", "ratio", "ours, /s", "the other, /s"], rows)


def _guard(kept: dict[str, Any]) -> str:
    rows = [
        (f"{body:,}", f"{bare * 1e6:.2f}", f"{ours * 1e6:.2f}", f"{ratio:.2f}", f"<= {mark:g}")
        for body, bare, ours, ratio, mark in kept.get("guard", {"figures": []})["figures"]
    ]
    return markdown.table(("body, bytes", "bare loop, us", "ours, us", "ours / bare", "mark"), rows)


def _growth(kept: dict[str, Any]) -> str:
    sections = []
    for name in growth.SECTIONS:
        if f"growth/{name}" not in kept:
            continue
        points = [growth.Point(*point) for point in kept[f"growth/{name}"]["figures"]]
        title = growth.SECTIONS[name][0]
        sections.append(f"**{title[0].upper()}{title[1:]}**\n\n{growth.table(name, points)}")
    return "\n\n".join(sections)


def _conditions(kept: dict[str, Any]) -> str:
    rows = []
    for part, of in kept.items():
        figures = of["figures"]
        rounds = max(map(len, figures.values())) if part.startswith("peers/") else ""
        rows.append((f"`{part}`", f"{of['load']:.2f}", f"`{of['commit']}`", str(rounds)))
    machines = {of["machine"] for of in kept.values()}
    text = markdown.table(("part", "load average before it", "commit", "rounds"), rows)
    return f"{text}\n\nMachine: {'; '.join(sorted(machines))}."


if __name__ == "__main__":
    main()
