"""The charts of the docs show what the tables say."""

from xml.etree import ElementTree as ET

import pytest

from docs._ext.charts import Bar, Group, draw, fault_chart, fault_rows, speed_chart


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
