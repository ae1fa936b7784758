"""Rules of filters, and what passes them. What paths and rules find was compared with the real server."""

import json

import msgspec
import pytest

from nsq_ha import ExtFilter
from nsq_ha.protocol.ext_filter import Filter, FilterRule, Pair, decoded, path_of, rule_of, text_at
from tests.golden import load

BODIES = {
    b"v1": b'{"k":"v1"}',
    b"v2": b'{"k":"v2"}',
    b"nokey": b'{"z":"1"}',
    b"noext": None,
    b"number": b'{"k":5}',
    b"both": b'{"k":"v1","z":"1"}',
}


def passed(rule: FilterRule) -> list[str]:
    found = Filter(rule)
    return [body.decode() for body, header in BODIES.items() if found.passes(header)]


@pytest.mark.parametrize("name", [e["name"] for e in load("tag_filter")["exchanges"] if "published" in e])
def test_the_recorded_rules_pass_what_the_server_delivered(name: str) -> None:
    exchange = next(e for e in load("tag_filter")["exchanges"] if e["name"] == name)
    data = bytes.fromhex(next(step["hex"] for step in exchange["steps"] if step.get("cmd") == "IDENTIFY"))
    rule = msgspec.convert(json.loads(data[data.index(b"{") :])["ext_filter"], FilterRule)
    published = [body for _, body in exchange["published"]]
    if "bad" in name:
        with pytest.raises(ValueError, match=r"."):
            Filter(rule)
    else:
        assert [body for body in passed(rule) if body in published] == exchange["result"]


@pytest.mark.parametrize(
    ("given", "bodies"),
    [
        (ExtFilter.equals("k", "v1"), ["v1", "both"]),
        (ExtFilter.equals("k", "v1", inverse=True), ["v2", "nokey", "noext", "number"]),
        (ExtFilter.regexp("k", "^v[12]$"), ["v1", "v2", "both"]),
        (ExtFilter.regexp("k", "^$"), ["nokey", "number"]),
        (ExtFilter.regexp("k", "^$", inverse=True), ["v1", "v2", "noext", "both"]),
        (ExtFilter.glob("k", "v*"), ["v1", "v2", "both"]),
        (ExtFilter.glob("k", "*", inverse=True), ["noext"]),
        (ExtFilter.all_of({"k": "v1", "z": "1"}), ["both"]),
        (ExtFilter.any_of([("k", "v2"), ("k", "v1")]), ["v1", "v2", "both"]),
        (ExtFilter.any_of({"k": "v2", "z": "1"}, inverse=True), ["v1", "noext", "number"]),
    ],
)
def test_what_passes(given: ExtFilter, bodies: list[str]) -> None:
    assert passed(rule_of(given)) == bodies


def test_the_rule_on_the_wire() -> None:
    assert msgspec.json.encode(rule_of(ExtFilter.glob("a.b", "x*", inverse=True))) == (
        b'{"type":3,"inverse":true,"filter_ext_key":"a\\\\.b","filter_data":"x*"}'
    )
    assert msgspec.json.encode(rule_of(ExtFilter.all_of({"a b": "1"}))) == (
        b'{"type":4,"filter_ext_key":"all","filter_data_list":[{"filter_ext_key":"a b","filter_data":"1"}]}'
    )


@pytest.mark.parametrize(
    "rule",
    [
        FilterRule(),
        FilterRule(1),
        FilterRule(1, None, "k"),
        FilterRule(1, None, None, "v"),
        FilterRule(0, None, "k", "v"),
        FilterRule(2, None, "k", "("),
        FilterRule(3, None, "k", "["),
        FilterRule(4, None, "all"),
        FilterRule(4, None, "all", None, []),
        FilterRule(4, None, "all", None, [Pair("k", "v"), Pair("k")]),
        FilterRule(4, None, "all", None, [Pair(None, "v")]),
        FilterRule(5, None, "k", "v"),
        FilterRule(1, None, "k" * 4097, "v"),
        FilterRule(4, None, "all", None, [Pair("k" * 4097, "v")]),
        FilterRule(-1, None, "k", "v"),
    ],
)
def test_a_rule_that_nsqd_ignores(rule: FilterRule) -> None:
    with pytest.raises(ValueError, match=r"."):
        Filter(rule)


def test_a_name_may_have_4096_bytes() -> None:
    assert passed(FilterRule(1, None, "k" * 4096, "v")) == []


def test_an_unknown_relation_never_matches() -> None:
    pairs = [Pair("k", "v1")]
    assert passed(FilterRule(4, None, "none", None, pairs)) == []
    assert len(passed(FilterRule(4, True, "none", None, pairs))) == len(BODIES)


@pytest.mark.parametrize(
    "name", ["a.b", "a*", "a?", "a\\b", "#", "##trace_id", "größe", "a b", "x|y", "@this", "0", ""]
)
def test_an_escaped_name_is_only_a_name(name: str) -> None:
    header = decoded(json.dumps({"a": {"b": "inside"}, "ab": "wild", name: "this"}).encode())
    assert text_at(header, path_of(name)) == "this"


@pytest.mark.parametrize(
    ("path", "found"),
    [("n", None), ("twice", "first"), ("s", "\ufffd"), ("missing", None), ("a.b", None), ("a\\", None)],
)
def test_values(path: str, found: str | None) -> None:
    header = b'{"a":{"b":"inside"},"n":5,"twice":"first","twice":"last","s":"\\ud800"}'
    assert text_at(decoded(header), path) == found


@pytest.mark.parametrize("header", [b"", b"{", b"[" * 100_000, b'"text"', b"5", b"\xff"])
def test_what_is_no_object_has_no_values(header: bytes) -> None:
    assert text_at(decoded(header), "k") is None
    assert not Filter(FilterRule(1, None, "k", "v")).passes(header)
    assert Filter(FilterRule(2, None, "k", "^$")).passes(header)
