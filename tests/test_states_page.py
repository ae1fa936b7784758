"""The page of states and rules names what exists, and its tables show the rules of the code."""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

from docs._ext import lane_table, states
from nsq_ha.policy import link_life
from tests.examples import ROOT
from tests.support.pages import lost, named_in

PAGE = (ROOT / "docs" / "explanation" / "states.md").read_text("utf-8")
NAMES = sorted(set(re.findall(r"`(nsq_ha[\w.]*)`", PAGE)))
TESTS = sorted(set(named_in(PAGE)))


def resolve(name: str) -> object:
    """Return what a dotted name stands for: a module, or something inside one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return getattr(resolve(owner), last)


def test_the_page_is_about_something() -> None:
    assert len(NAMES) > 30
    assert len(TESTS) > 50


def test_a_place_in_the_code_exists() -> None:
    assert [name for name in NAMES if resolve(name) is None] == []


def test_a_test_that_holds_a_rule_exists() -> None:
    assert lost(TESTS) == []


def test_each_rule_says_where_it_lives_and_what_holds_it() -> None:
    rules = re.findall(
        r"^\*\*.+?\*\*.*?(?=^\*\*|^## |\Z)", PAGE[PAGE.index("## The rules") :], re.MULTILINE | re.DOTALL
    )
    assert len(rules) == 27
    for rule in rules:
        where, _, held_by = rule.partition("- *Held by:*")
        assert "- *Where:* `nsq_ha." in where, rule
        assert named_in(held_by), rule


@pytest.mark.parametrize("steps", [lane_table.STEPS, link_life.TRANSITIONS])
def test_a_matrix_shows_each_step_once(steps: Mapping[Any, tuple[enum.Enum, enum.Enum]]) -> None:
    _, head, *rows = [row.splitlines() for row in re.split(r"^   \* ", states.matrix(steps), flags=re.MULTILINE)]
    names = [cell.split("**")[1] for cell in head[1:]]
    shown = [
        (row[0].split("**")[1], word, there)
        for row in rows
        for there, cell in zip(names, row[1:], strict=True)
        for word in re.findall(r"[A-Z_]{3,}", cell)
    ]
    assert sorted(shown) == sorted((here.name, event.name, there.name) for (here, event), (there, _) in steps.items())


def test_a_matrix_marks_the_steps_that_leave_doubt() -> None:
    doubtful = {event.name for (_, event), (_, doubt) in lane_table.STEPS.items() if doubt is not lane_table.Doubt.NONE}
    assert set(re.findall(r"(\w+) (?:\(late: )?\?", states.matrix(lane_table.STEPS))) == doubtful
