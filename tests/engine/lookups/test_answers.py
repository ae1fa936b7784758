"""Bodies of nsqlookupd, recorded ones and hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.engine.answers import (
    MAX_LISTED_CHANNELS,
    MAX_LISTED_NODES,
    LookupdList,
    TopicInfo,
    decode_channels,
    decode_lookup,
    decode_lookupd_list,
    decode_nodes,
    decode_topics,
    is_host,
)
from nsq_ha.engine.body import Body, unwrap
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.options.checks import MAX_PARTITION_ID
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta

VECTORS = Path(__file__).parents[2] / "vectors"
PEER = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151, "distributed_id": "10.0.0.1:1:4150:7"}
META = {"partition_num": 2, "replica": 3, "ordered": True}
NODE = Node("10.0.0.1", 4150, 4151)


def recorded(path: str) -> list[Any]:
    """Every recorded exchange of one route."""
    found = [
        pytest.param(step, id=exchange["name"])
        for name in ("lookup_http.json", "lookup_leadership.json")
        for exchange in json.loads((VECTORS / name).read_text())["exchanges"]
        for step in exchange["steps"]
        if step.get("method") == "GET" and step["path"].partition("?")[0] == path
    ]
    assert found
    return found


def lookup(content: object, status: int = 200) -> LookupAnswer:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return decode_lookup(unwrap(status, body), "http://a:4161")


def body_of(step: dict[str, Any]) -> tuple[int, bytes]:
    return step["status"], json.dumps(step["body"]).encode()


# ---------------------------------------------------------------- recorded answers


@pytest.mark.parametrize("step", recorded("/lookup"))
def test_recorded_look_ups_decode(step: dict[str, Any]) -> None:
    status, body = body_of(step)
    content = step["body"].get("data", step["body"]) or {}
    text = step["body"].get("status_txt", step["body"].get("message", ""))
    if text not in ("OK", "", "Key not found"):
        with pytest.raises(RemoteProtocolError, match=text):
            decode_lookup(unwrap(status, body), "a")
        return
    answer = decode_lookup(unwrap(status, body), "a")
    wanted = {int(key): entry["tcp_port"] for key, entry in (content.get("partitions") or {}).items()}
    assert {partition: node.tcp_port for partition, node in answer.partitions.items()} == wanted
    meta = content.get("meta")
    known = meta is not None and meta["partition_num"] > 0
    assert answer.meta == (TopicMeta(**meta) if meta is not None and known else None)
    assert answer.exists == (text != "Key not found" and (meta is None or known))


@pytest.mark.parametrize("step", recorded("/listlookup"))
def test_recorded_lists_of_nsqlookupds_decode(step: dict[str, Any]) -> None:
    assert decode_lookupd_list(unwrap(*body_of(step)), "http") == LookupdList(
        leader="http://127.0.0.1:4161", nodes=("http://127.0.0.1:4161", "http://127.0.0.1:4171")
    )


@pytest.mark.parametrize("step", recorded("/nodes"))
def test_recorded_nodes_decode(step: dict[str, Any]) -> None:
    nodes = decode_nodes(unwrap(*body_of(step)))
    wanted = step["body"]["data"]["producers"]
    assert [info.node.tcp_port for info in nodes] == [entry["tcp_port"] for entry in wanted]
    assert nodes[0].partitions["proto_plain"] == tuple(int(n) for n in wanted[0]["partitions"]["proto_plain"])
    assert nodes[0].version == "0.3.7-HA.1.13.0"


@pytest.mark.parametrize("step", recorded("/topics"))
def test_recorded_topics_decode(step: dict[str, Any]) -> None:
    topics = decode_topics(unwrap(*body_of(step)))
    data = step["body"]["data"]
    assert [info.name for info in topics] == sorted(
        data.get("topics") or [entry["topic_name"] for entry in data["meta_info"]]
    )
    if "meta_info" in data:
        assert TopicInfo("ordered", ordered=True) in topics


@pytest.mark.parametrize("step", recorded("/channels"))
def test_recorded_channels_decode(step: dict[str, Any]) -> None:
    body = unwrap(*body_of(step))
    if step["status"] != 200:
        with pytest.raises(RemoteProtocolError, match="MISSING_ARG_TOPIC"):
            decode_channels(body)
    else:
        assert decode_channels(body) == tuple(sorted(step["body"]["data"]["channels"]))


# ---------------------------------------------------------------- envelopes and refusals


def test_both_forms_say_the_same() -> None:
    content = {"meta": META, "partitions": {"0": PEER}}
    assert lookup(content) == lookup({"status_code": 200, "status_txt": "OK", "data": content})
    assert lookup(content).partitions == {0: NODE}
    assert lookup(content).partitions[0].distributed_id == "10.0.0.1:1:4150:7"


def test_channels_of_any_partition_are_listed_once_and_by_name() -> None:
    body = {"channels": ["z", "y", "bad name", "y"], "partitions": {"0": PEER}, "meta": META}
    assert lookup(body).channels == ("y", "z")
    assert lookup(body | {"channels": None}).channels == ()


def test_a_refusal_is_shown_short_and_printable() -> None:
    body = unwrap(500, b"\x00\n" + b"x" * 1_000_000)
    assert body.message.startswith("??xxx")
    assert len(body.message) < 200


# ---------------------------------------------------------------- bodies of another shape


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not json", id="not JSON"),
        pytest.param(b"<html><body>It works!</body></html>", id="HTML"),
        pytest.param(b'{"partitions":{"0":{"broadcast_addr', id="cut"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="an array"),
        pytest.param(b"7", id="a number"),
        pytest.param(b"{}", id="nothing in it"),
        pytest.param(b'{"partitions":null,"producers":null,"channels":null,"meta":null}', id="null everywhere"),
        pytest.param(b'{"partitions":[]}', id="partitions an array"),
        pytest.param(b'{"partitions":"0"}', id="partitions a text"),
        pytest.param(b'{"producers":{}}', id="producers an object"),
        pytest.param(b'{"channels":3,"partitions":{}}', id="channels a number"),
        pytest.param(b'{"channels":["\xff\xfe"],"partitions":{}}', id="bad UTF-8"),
        pytest.param(b"[" * 200_000, id="200000 brackets"),
        pytest.param(b'{"partitions":{"0":' * 100_000, id="deep objects"),
        pytest.param(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}", id="deep in an unknown field"),
    ],
)
def test_a_body_of_another_shape_is_no_answer(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        lookup(body)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["x", "-1", "99999", "1024", "", "00", "1.0", " 1", "٣", "1e2"])
def test_a_partition_that_is_none_is_left_out(key: str) -> None:
    answer = lookup({"meta": META, "partitions": {key: PEER, "1": PEER}})
    assert answer.partitions == {1: NODE}


@pytest.mark.parametrize(
    "change",
    [
        {"tcp_port": 0},
        {"tcp_port": -1},
        {"tcp_port": 65536},
        {"tcp_port": 10**30},
        {"tcp_port": "4150"},
        {"tcp_port": None},
        {"tcp_port": 4150.5},
        {"tcp_port": True},
        {"broadcast_address": ""},
        {"broadcast_address": None},
        {"broadcast_address": "not an address"},
        {"broadcast_address": "a\r\nHost: b"},
        {"broadcast_address": "a/b"},
        {"broadcast_address": "-a"},
        {"broadcast_address": "0.0.0.0"},  # noqa: S104 - an address that nobody can dial
        {"broadcast_address": "x" * 300},
        {"broadcast_address": "fe80::1%a\r\nHost: b"},
        {"broadcast_address": "fe80::1%" + "x" * 300},
        {"distributed_id": 7},
        {"distributed_id": "x" * 513},
    ],
)
def test_a_leader_that_cannot_be_dialled_is_left_out(change: dict[str, object]) -> None:
    answer = lookup({"meta": META, "partitions": {"0": PEER | change, "1": PEER}})
    assert answer.partitions == {1: NODE}
    assert answer.exists
    assert "an nsqd that leads partition 0 has an address" in answer.note


def test_the_note_names_an_address_that_no_client_can_use() -> None:
    """Users read "has no leader now", and looked for a fault of the cluster."""
    odd = PEER | {"broadcast_address": "nsqd-0..svc\x1b"}
    answer = lookup({"meta": META, "partitions": {"0": odd, "1": PEER, "2": odd, "x": odd}})
    assert answer.note == (
        r"an nsqd that leads partition 0, 2 has an address 'nsqd-0..svc\x1b:4150', which is not legal: set nsqd's"
        " -broadcast-address"
    )
    assert lookup({"meta": META, "partitions": {"0": PEER}}).note == ""
    plain = lookup({"channels": [], "producers": [odd, PEER]})
    assert plain.nodes is not None
    assert [node.tcp_port for node in plain.nodes] == [4150]
    assert plain.note.startswith(r"an nsqd has an address 'nsqd-0..svc\x1b:4150', which")


def test_a_leader_that_is_not_utf_8_is_left_out() -> None:
    other = json.dumps(PEER).encode()
    answer = lookup(b'{"partitions":{"0":{"broadcast_address":"\xff\xfe","tcp_port":1},"1":' + other + b"}}")
    assert answer.partitions == {1: NODE}


def test_a_leader_without_http_port_is_good_for_messages() -> None:
    answer = lookup({"meta": META, "partitions": {"0": PEER | {"http_port": -1}}})
    assert answer.partitions == {0: Node("10.0.0.1", 4150, 0)}


@pytest.mark.parametrize("number", [-1, 1025, 10**9, "2", None, 2.5])
def test_a_meta_without_sense_is_none(number: object) -> None:
    answer = lookup({"meta": {"partition_num": number}, "partitions": {"0": PEER}})
    assert answer.meta is None
    assert answer.partitions == {0: NODE}
    assert answer.exists


def test_listed_partitions_contradict_a_number_of_zero() -> None:
    answer = lookup({"meta": {"partition_num": 0}, "partitions": {"0": PEER}})
    assert answer.exists
    assert answer.meta is None


def test_a_partition_named_twice_has_one_leader() -> None:
    first, second = json.dumps(PEER).encode(), json.dumps(PEER | {"tcp_port": 4160}).encode()
    answer = lookup(b'{"partitions":{"0":' + first + b',"0":' + second + b"}}")
    assert answer.partitions == {0: Node("10.0.0.1", 4160, 4151)}


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("10.0.0.1", True),
        ("::1", True),
        ("::", False),
        ("fe80::1%eth0.100", True),
        ("fe80::1%\x1b[31m", False),
        ("nsqd-1.example.org.", True),
        ("under_score", True),
        ("", False),
        ("ö", False),
        ("a b", False),
    ],
)
def test_hosts(text: str, *, legal: bool) -> None:
    assert is_host(text) == legal


# ---------------------------------------------------------------- the other routes


def test_nodes_and_topics_without_sense_are_left_out() -> None:
    nodes = {
        "producers": [
            PEER | {"partitions": {"orders": ["1", "x", "0", "5000"], "bad name": ["0"], "none": None}},
            PEER | {"partitions": 7},
            PEER | {"tcp_port": 0},
            None,
        ]
    }
    found = decode_nodes(unwrap(200, json.dumps(nodes).encode()))
    assert [(info.node, dict(info.partitions)) for info in found] == [(NODE, {"orders": (0, 1), "none": ()})]
    topics = {"topics": ["b", "a b", "a"], "meta_info": [{"topic_name": "b", "ordered": True}, {"topic_name": ""}, 7]}
    assert decode_topics(unwrap(200, json.dumps(topics).encode())) == (TopicInfo("a"), TopicInfo("b", ordered=True))
    assert decode_channels(unwrap(200, b'{"channels":["z","y","bad name","y"]}')) == ("y", "z")
    assert decode_nodes(unwrap(200, b'{"producers":null}')) == ()
    assert decode_topics(unwrap(200, b"{}")) == ()
    assert decode_channels(unwrap(200, b"{}")) == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
peers = st.fixed_dictionaries({}, optional=dict.fromkeys(PEER, json_values)).map(lambda part: PEER | part)
contents = st.fixed_dictionaries(
    {},
    optional={
        "partitions": st.dictionaries(st.integers(-2, 2000).map(str) | st.text(max_size=3), peers | json_values),
        "producers": st.lists(peers, max_size=2) | json_values,
        "meta": st.just(META) | json_values,
        "lookupdnodes": st.lists(st.fixed_dictionaries({"NodeIP": json_values, "HttpPort": json_values}), max_size=3)
        | json_values,
        "topics": json_values,
        "channels": json_values,
    },
)


@given(st.binary(max_size=64) | (contents | json_values).map(lambda value: json.dumps(value).encode()), st.booleans())
def test_whatever_comes_is_a_valid_value_or_a_protocol_error(body: bytes, wrapped: bool) -> None:
    if wrapped:
        body = b'{"status_code":200,"status_txt":"OK","data":' + body + b"}"
    for decode in (decode_nodes, decode_topics, decode_channels):
        try:
            decode(unwrap(200, body))
        except RemoteProtocolError:
            continue
    try:
        found = decode_lookupd_list(unwrap(200, body), "http")
    except RemoteProtocolError:
        pass
    else:
        assert all(url.startswith("http://") for url in found.nodes)
    try:
        answer = decode_lookup(unwrap(200, body), "a")
    except RemoteProtocolError:
        return
    assert all(0 <= partition <= MAX_PARTITION_ID for partition in answer.partitions)
    assert all(0 < node.tcp_port < 65536 and is_host(node.host) for node in answer.partitions.values())
    assert answer.meta is None or answer.meta.partition_num > 0


# ---------------------------------------------------------------- more than anybody has


def test_as_many_nsqds_and_channels_are_read_as_anybody_has() -> None:
    nsqds = [PEER | {"tcp_port": 1 + number} for number in range(MAX_LISTED_NODES + 10)]
    names = [f"c{number:06}" for number in range(MAX_LISTED_CHANNELS + 10)]
    plain = lookup({"channels": [], "producers": nsqds})
    assert plain.nodes is not None
    assert len(plain.nodes) == MAX_LISTED_NODES
    assert len(decode_nodes(Body(200, json.dumps({"producers": nsqds}).encode()))) == MAX_LISTED_NODES
    assert len(lookup({"channels": names, "partitions": {"0": PEER}, "meta": META}).channels) == MAX_LISTED_CHANNELS
