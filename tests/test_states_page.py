"""The page of states and rules names what exists, and its tables show the rules of the code."""

import importlib
import re

from tests.examples import ROOT
from tests.support.pages import named_in

PAGE = (ROOT / "docs" / "explanation" / "states.md").read_text("utf-8")
NAMES = sorted(set(re.findall(r"`(nsq_ha[\w.]*)`", PAGE)))


def resolve(name: str) -> object:
    """Return what a dotted name stands for: a module, or something inside one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return getattr(resolve(owner), last)


def test_the_page_is_about_something() -> None:
    assert len(NAMES) > 15
    assert len(set(named_in(PAGE))) > 20


def test_a_place_in_the_code_exists() -> None:
    assert [name for name in NAMES if resolve(name) is None] == []


def test_each_rule_says_where_it_lives_and_what_holds_it() -> None:
    rules = re.findall(
        r"^\*\*.+?\*\*.*?(?=^\*\*|^## |\Z)", PAGE[PAGE.index("## The rules") :], re.MULTILINE | re.DOTALL
    )
    assert len(rules) == 14
    for rule in rules:
        assert "\n- `nsq_ha." in rule, rule
        assert named_in(rule), rule
