"""The charts of the docs show what the tables say."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from benchmarks import changes
from benchmarks.peers.environments import ASYNCNSQ, OURS_UVLOOP, Client
from benchmarks.peers.rounds import Outcome
from docs._ext.charts import MOST_SHOWN, PAGES, Bar, Group, change_chart, draw, fault_chart, fault_rows, speed_chart


def elements(svg: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(tag))  # noqa: S314 - drawn here


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in elements(svg, "text")]


def widths(svg: str) -> list[float]:
    return [float(rect.get("width", "0")) for rect in elements(svg, "rect")]


def test_bars_are_as_long_as_their_values() -> None:
    svg = draw("About <this>", [Group("A & B", [Bar("whole", 10, "10 s"), Bar("half", 5, "5 s", is_ours=True)])])
    assert widths(svg)[1] * 2 == pytest.approx(widths(svg)[0], abs=0.5)
    assert texts(svg) == ["A & B", "whole", "10 s", "half", "5 s"]


def test_a_bar_never_leaves_the_chart() -> None:
    svg = draw("About", [Group("", [Bar("long", 100, "100"), Bar("none", 0, "0")])])
    assert max(widths(svg)) < 720
    assert min(widths(svg)) > 0


def test_the_faults_of_the_page_are_drawn() -> None:
    rows = fault_rows()
    assert len(rows) > 15
    assert {name for name, *_ in rows} <= set(texts(fault_chart()))


def test_each_client_has_a_bar() -> None:
    shown = texts(speed_chart())
    assert shown.count("nsq_ha") == 5
    assert any(text.startswith("asyncnsq") for text in shown)


def test_each_goal_has_a_group_whose_longest_bars_end_at_the_same_place() -> None:
    svg = change_chart()
    shown = texts(svg)
    drawn = json.loads((PAGES / "performance" / "changes.json").read_text())
    assert drawn
    assert shown.count("goal") == shown.count("after") == len(drawn)
    goals = {width for name, width in zip(bar_names(shown), widths(svg), strict=True) if name == "goal"}
    assert len(goals) == 1
    assert max(widths(svg)) <= MOST_SHOWN * goals.pop() + 0.1


def bar_names(shown: list[str]) -> list[str]:
    return [text for text in shown if text in {"before", "after", "goal"}]


def outcomes(client: Client, *figures: float) -> Outcome:
    return Outcome(client, [{"p50": figure, "rate": figure, "cpu": figure} for figure in figures])


def test_the_table_of_changes_says_what_was_before_and_where_the_time_goes() -> None:
    before = OURS_UVLOOP.before("58c22fa")
    single = [outcomes(OURS_UVLOOP, 0.8, 0.7), outcomes(before, 1.0, 1.2), outcomes(ASYNCNSQ, 1.0, 1.0)]
    kept = {
        "changes/hold": {"figures": {"before": [{"hold": 0.09}], "after": [{"hold": 0.004}]}},
        "changes/threads": {"figures": {"after": [{"ratio": 0.8}]}},
        "ha": {"figures": {"ordered consume against a raw loop on asyncio": [[9.0], [10.0], 0.8]}},
    }
    found = changes.found(kept, {"single": single})
    assert [(change.row, change.is_reached, change.is_earlier) for change in found] == [
        ("single", True, False),
        ("ordered", True, True),
        ("hold", True, False),
        ("threads", False, True),
    ]
    assert found[0].before == (1.0, 1.2)
    lines = changes.table(found).splitlines()
    assert "| p50, 3.12 uvloop | 1.10 (1.00..1.20) | 0.75 (0.70..0.80) | <= 0.85 | asyncnsq 2.0.1 uvloop |" in lines[2]
    assert "| 0.75 \\* | 0.90 (0.90..0.90) | >= 0.9 | a raw asyncio loop |" in lines[3]
    assert "| 90.00 (90.00..90.00) | 4.00 (4.00..4.00) | <= 5 | ms |" in lines[4]
    assert "| 0.78 \\* | **0.80 (0.80..0.80)** | >= 0.9 | a bare thread pool |" in lines[5]
    assert lines[-1] == f"- **`concurrency=8`, plain handlers, 1 ms each**: {changes.WHERE['threads']}"
    assert json.loads(changes.as_json(found))[2]["mark"] == 5.0


def test_every_row_can_say_where_its_time_goes() -> None:
    assert {*changes.OWN, *changes.PEER_ROWS, "ordered"} == set(changes.WHERE)
