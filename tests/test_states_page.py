"""The page of states and rules names what exists, and its diagrams show the tables."""

from __future__ import annotations

import importlib
import re

import pytest

from docs._ext import states
from docs._ext.diagram import Edge, draw
from nsq_ha.policy import lane_table, subscription
from tests.examples import ROOT

PAGE = (ROOT / "docs" / "explanation" / "states.md").read_text("utf-8")
NAMES = sorted(set(re.findall(r"`(nsq_ha[\w.]*)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


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


@pytest.mark.parametrize("name", NAMES)
def test_a_place_in_the_code_exists(name: str) -> None:
    assert resolve(name) is not None


@pytest.mark.parametrize(("path", "test"), TESTS, ids=[f"{path}-{test}" for path, test in TESTS])
def test_a_test_that_holds_a_rule_exists(path: str, test: str) -> None:
    source = (ROOT / path).read_text("utf-8")
    assert not test or re.search(rf"^(async def|def|class) {test}\b", source, re.MULTILINE)


def test_each_rule_says_where_it_lives_and_what_holds_it() -> None:
    rules = re.findall(
        r"^\*\*.+?\*\*.*?(?=^\*\*|^## |\Z)", PAGE[PAGE.index("## The rules") :], re.MULTILINE | re.DOTALL
    )
    assert len(rules) == 24
    for rule in rules:
        where, _, held_by = rule.partition("- *Held by:*")
        assert "- *Where:* `nsq_ha." in where, rule
        assert "`tests/" in held_by, rule


def test_each_step_that_leads_elsewhere_is_drawn() -> None:
    drawn = states.subscription_diagram()
    told = {(edge.start, edge.end): " ".join(edge.words) for edge in states.subscription_edges()}
    for (here, event), (there, _) in subscription.TRANSITIONS.items():
        if here is not there and event not in states.NOT_DRAWN:
            frame = "unread" if states._is_in("unread", here) else "reading"
            words = told.get((here.name, there.name), "") + told.get((frame, there.name), "")
            assert event.name in words, (here, event)
    assert all(f">{state.name}<" in drawn for state in subscription.State)
    lane = {(edge.start, edge.end): edge for edge in states.lane_edges()}
    for (standing, what), (then, doubt) in lane_table.STEPS.items():
        if standing is not then:
            edge = lane[standing.name, then.name]
            assert what.name in " ".join(edge.words)
            assert edge.is_doubtful or doubt is lane_table.Doubt.NONE


def test_a_state_without_a_place_is_told() -> None:
    with pytest.raises(LookupError, match="NOWHERE"):
        draw("x", states.LANE, [*states.LANE.places, "NOWHERE"], [])
    with pytest.raises(LookupError, match="not there"):
        draw("x", states.LANE, states.LANE.places, [Edge("OUTSIDE", "READY", ("SUBMIT",))])
