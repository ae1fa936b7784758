"""The filter that a user writes."""

import sys
from typing import Any

import pytest

from nsq_ha import ConfigError, Consumer, ConsumerConfig, ExtFilter
from nsq_ha.options.environment import settings_of


def test_the_five_kinds() -> None:
    assert ExtFilter.equals("k", "v") == ExtFilter("equals", "k", "v")
    assert ExtFilter.regexp("k", "^v", inverse=True) == ExtFilter("regexp", "k", "^v", (), True)
    assert ExtFilter.glob("k", "v*") == ExtFilter("glob", "k", "v*")
    assert ExtFilter.all_of({"a": "1", "b": "2"}).pairs == (("a", "1"), ("b", "2"))
    assert ExtFilter.any_of([("a", "1"), ("a", "2")]).pairs == (("a", "1"), ("a", "2"))
    assert ExtFilter("any_of", pairs=("a=1", "b=c=d")).pairs == (("a", "1"), ("b", "c=d"))  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "key must not be empty: nsqd ignores a filter with an empty key or value"),
    ({"kind": "equal"}, "kind must be .* not 'equal': did you mean 'equals'"),
    ({"key": "k"}, "value must not be empty"),
    ({"key": "k", "value": 5}, "value must be text, not 5: nsqd compares no other values"),
    ({"key": b"k", "value": "v"}, "key must be text, not b'k'"),
    ({"key": "k", "value": "x" * 4097}, "value must have at most 4096 bytes"),
    ({"key": "\ud800", "value": "v"}, "surrogates"),
    ({"key": "k", "value": "v", "inverse": 1}, "inverse must be True or False, not 1"),
    ({"key": "k", "value": "v", "pairs": {"a": "b"}}, "has a key and a value, but no pairs"),
    ({"kind": "regexp", "key": "k", "value": "(?=a)"}, r"regexp '\(\?=a\)' is not one that nsqd knows: invalid perl"),
    ({"kind": "glob", "key": "k", "value": "{a"}, "glob '{a' is not one that nsqd knows: braces"),
    ({"kind": "all_of"}, r"all_of needs 1\.\.1000 pairs"),
    ({"kind": "any_of", "pairs": [("a", "b")] * 1001}, r"any_of needs 1\.\.1000 pairs"),
    ({"kind": "any_of", "key": "k", "pairs": [("a", "b")]}, "has pairs, but no key and no value"),
    ({"kind": "any_of", "pairs": "a=b"}, "pairs must be a mapping or pairs of text"),
    ({"kind": "any_of", "pairs": 5}, "pairs must be a mapping or pairs of text"),
    ({"kind": "any_of", "pairs": ["a"]}, "a name and a value each, not 'a'"),
    ({"kind": "any_of", "pairs": [("a", "b", "c")]}, "a name and a value each"),
    ({"kind": "any_of", "pairs": {"a": 1}}, "the value of a header must be text, not 1"),
    ({"kind": "any_of", "pairs": {"": "x"}}, "the name of a header must not be empty"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_what_nsqd_would_ignore_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ExtFilter(**fields)


def test_it_can_come_from_variables_and_a_file() -> None:
    variables = {"NSQ_HA_EXT_FILTER_KIND": "any_of", "NSQ_HA_EXT_FILTER_PAIRS": "a=1, b=2"}
    assert settings_of(ConsumerConfig, variables).options["ext_filter"] == ExtFilter.any_of({"a": "1", "b": "2"})
    toml = '[consumer]\next_filter = {key = "k", value = "v", inverse = true}\nskip_header = {test = true}\n'
    options = settings_of(ConsumerConfig, {}, toml, "nsq.toml").options
    assert options == {"ext_filter": ExtFilter.equals("k", "v", inverse=True), "skip_header": {"test": True}}
    assert settings_of(ConsumerConfig, {"NSQ_HA_SKIP_HEADER": "test"}).options["skip_header"] == "test"
    with pytest.raises(ConfigError, match=r"NSQ_HA_EXT_FILTER_KEY.*value must not be empty"):
        settings_of(ConsumerConfig, {"NSQ_HA_EXT_FILTER_KEY": "k"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "skip_header must not be empty: None skips nothing"),
        ({}, "skip_header names no header"),
        (5, "skip_header must be the name of a header, or a mapping from names to values, not 5"),
        (["a"], "skip_header must be the name of a header"),
        ({1: 2}, "skip_header must be the name of a header"),
        ("x" * 65536, "at most 65535 bytes"),
    ],
)
def test_skip_header_is_checked(value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConsumerConfig.of({"skip_header": value})


def test_a_plain_nsqd_has_no_filters() -> None:
    with pytest.raises(ConfigError, match=r"remove ext_filter=: .* would deliver every message"):
        Consumer("t", "c", nsqd="127.0.0.1:4150", ext_filter=ExtFilter.equals("k", "v"))
    with pytest.raises(ConfigError, match="ext_filter must be an ExtFilter"):
        ConsumerConfig(ext_filter={"type": 1})  # type: ignore[arg-type]


def test_only_patterns_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nsq_ha.options.patterns", raising=False)
    monkeypatch.setitem(sys.modules, "re2", None)
    ExtFilter.equals("k", "v")
    for make in (ExtFilter.regexp, ExtFilter.glob):
        with pytest.raises(ConfigError, match=r"need google-re2: install nsq_ha\[filters\]"):
            make("k", "v")
