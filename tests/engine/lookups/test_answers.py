"""Bodies of nsqlookupd, recorded ones and hostile ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.engine.answers import (
    LookupdList,
    NodeInfo,
    TopicInfo,
    decode_channels,
    decode_lookup,
    decode_lookupd_list,
    decode_nodes,
    decode_topics,
    is_host,
)
from nsq_ha.engine.body import Body, decode_json, unwrap
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


def ok(content: object) -> Body:
    return unwrap(200, json.dumps(content).encode())


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


def test_the_envelope_decides_only_where_http_says_200() -> None:
    content = {"meta": META, "partitions": {"0": PEER}}
    assert lookup(content) == lookup({"status_code": 200, "status_txt": "OK", "data": content})
    wrapped = b'{"status_code":404,"status_txt":"gone","data":{"a":1}}'
    assert unwrap(200, wrapped) == Body(404, b"", "gone")
    assert unwrap(500, wrapped) == Body(500, b"", "gone")
    assert unwrap(200, b'{"status_code":200,"status_txt":"OK"}') == Body(200, b"null")
    assert unwrap(500, b'{"status_code":200,"status_txt":"OK","data":1}') == Body(500, b"", "OK")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"x" * 120, "x" * 120),
        (b"x" * 121, "x" * 120 + "..."),
        (b"\x00\n" + b"x" * 1_000_000, "??" + "x" * 118 + "..."),
    ],
)
def test_a_refusal_is_shown_short_and_printable(body: bytes, message: str) -> None:
    assert unwrap(500, body).message == message


def test_an_unexpected_answer_says_what_is_wrong_with_it() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_json(b"[1", list[int])
    assert str(caught.value) == "unexpected answer: Input data was truncated"
    assert caught.value.__cause__ is not None


NOT_CREATED = "the topic is not created"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Key not found", LookupAnswer("a", False, None, {}, exists=False, note=NOT_CREATED)),
        ("TOPIC_NOT_FOUND", LookupAnswer("a", False, None, {}, exists=False, note=NOT_CREATED, nodes=())),
        ("Topic has no channel", LookupAnswer("a", False, None, {}, exists=True, note="Topic has no channel")),
    ],
)
def test_a_refusal_because_of_the_topic_is_a_whole_answer(text: str, answer: LookupAnswer) -> None:
    body = json.dumps({"message": text}).encode()
    for status in (404, 500):
        assert decode_lookup(unwrap(status, body), "a") == answer
    with pytest.raises(RemoteProtocolError, match=f"^HTTP status 403: {text}$"):
        decode_lookup(unwrap(403, body), "a")


@pytest.mark.parametrize(("text", "said"), [("NOT_FOUND", " (NOT_FOUND)"), ("", "")])
def test_a_route_that_a_server_does_not_know_says_which_address_to_give(text: str, said: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_nodes(Body(404, b"", text))
    assert str(caught.value) == (
        f"HTTP status 404{said}: this server does not know the request. Give the HTTP address of an nsqlookupd (port"
        " 4161 by default), not that of an nsqd"
    )


# ---------------------------------------------------------------- bodies of another shape


SHAPES = {
    "empty": b"",
    "not JSON": b"not json",
    "HTML": b"<html><body>It works!</body></html>",
    "cut": b'{"partitions":{"0":{"broadcast_addr',
    "null": b"null",
    "an array": b"[]",
    "a number": b"7",
    "null everywhere": b'{"partitions":null,"producers":null,"channels":null,"meta":null}',
    "partitions an array": b'{"partitions":[]}',
    "partitions a text": b'{"partitions":"0"}',
    "producers an object": b'{"producers":{}}',
    "channels a number": b'{"channels":3,"partitions":{}}',
    "bad UTF-8": b'{"channels":["\xff\xfe"],"partitions":{}}',
    "200000 brackets": b"[" * 200_000,
    "deep objects": b'{"partitions":{"0":' * 100_000,
    "deep in an unknown field": b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
}


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES)
def test_a_body_of_another_shape_is_no_answer(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        lookup(body)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["x", "-1", "99999", "1024", "", "00", "1.0", " 1", "٣", "1e2"])
def test_a_partition_that_is_none_is_left_out(key: str) -> None:
    answer = lookup({"meta": META, "partitions": {key: PEER, "1": PEER}})
    assert answer.partitions == {1: NODE}


LONG = "x" * 300
HOSTS = ("", None, "not an address", "a\r\nHost: b", "a/b", "-a", "0.0.0.0", LONG, "fe80::1%a\r\nHost: b")  # noqa: S104


@pytest.mark.parametrize(
    "change",
    [
        *({"tcp_port": port} for port in (0, -1, 65536, 10**30, "4150", None, 4150.5, True)),
        *({"broadcast_address": host} for host in (*HOSTS, "fe80::1%" + LONG)),
        *({"distributed_id": name} for name in (7, "x" * 513)),
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
        r"an nsqd that leads partition 0, 2 has an address 'nsqd-0..svc\x1b:4150', which is not valid: set nsqd's"
        " -broadcast-address"
    )
    assert lookup({"meta": META, "partitions": {"0": PEER}}).note == ""
    plain = lookup({"channels": [], "producers": [odd, PEER]})
    assert plain.nodes is not None
    assert [node.tcp_port for node in plain.nodes] == [4150]
    assert plain.note.startswith(r"an nsqd has an address 'nsqd-0..svc\x1b:4150', which")


def test_a_leader_is_used_with_what_is_good_of_it() -> None:
    other = json.dumps(PEER).encode()
    answer = lookup(b'{"partitions":{"0":{"broadcast_address":"\xff\xfe","tcp_port":1},"1":' + other + b"}}")
    assert answer.partitions == {1: NODE}
    answer = lookup({"meta": META, "partitions": {"0": PEER | {"http_port": -1}}})
    assert answer.partitions == {0: Node("10.0.0.1", 4150, 0)}
    twice = json.dumps(PEER | {"tcp_port": 4160}).encode()
    assert lookup(b'{"partitions":{"0":' + other + b',"0":' + twice + b"}}").partitions[0].tcp_port == 4160


FLAGS = ("ordered", "extend_support", "multi_part", "disable_channel_auto_create")


@pytest.mark.parametrize("flag", FLAGS)
def test_each_setting_of_a_topic_is_its_own(flag: str) -> None:
    meta = TopicMeta(1024, replica=2, **{flag: True})
    answer = decode_lookup(
        ok({"meta": {"partition_num": 1024, "replica": 2, flag: True}, "partitions": {"1023": PEER}}), "a"
    )
    assert answer == LookupAnswer("a", leads=False, meta=meta, partitions={1023: NODE}, exists=True)
    listed = decode_topics(ok({"topics": ["plain"], "meta_info": [{"topic_name": "orders", flag: True}]}))
    assert listed == (TopicInfo("orders", **{flag: True}), TopicInfo("plain"))


@pytest.mark.parametrize("number", [-1, 1025, 10**9, "2", None, 2.5])
def test_a_meta_without_sense_is_none(number: object) -> None:
    answer = lookup({"meta": {"partition_num": number}, "partitions": {"0": PEER}})
    assert answer.meta is None
    assert answer.partitions == {0: NODE}
    assert answer.exists


def test_an_answer_without_anything_is_not_that_of_an_nsqlookupd() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        lookup({})
    assert str(caught.value) == (
        "the answer is not that of an nsqlookupd: it has no partitions, no nodes and no settings of the topic"
    )
    # Each of them alone is enough.
    assert lookup({"partitions": {"0": PEER}}).partitions == {0: NODE}
    assert lookup({"producers": []}).nodes == ()
    assert lookup({"partitions": None, "producers": [PEER]}).nodes is None
    assert lookup({"meta": {"partition_num": 3}}).meta == TopicMeta(3)


UNLISTED = "no partition is listed, for example because writes are disabled"


@pytest.mark.parametrize(
    ("content", "exists", "note"),
    [
        ({"meta": META, "partitions": None}, True, UNLISTED),
        ({"meta": META, "partitions": {}}, True, ""),
        ({"meta": {"partition_num": 0}, "partitions": None}, False, ""),
        ({"meta": {"partition_num": 0}, "partitions": {"0": PEER}}, True, ""),
        ({"meta": {"partition_num": 0}, "partitions": None, "producers": [PEER]}, True, UNLISTED),
    ],
)
def test_without_partitions_the_note_says_why_unless_the_topic_is_unknown(
    content: dict[str, object], note: str, *, exists: bool
) -> None:
    assert (lookup(content).exists, lookup(content).note) == (exists, note)


def test_hosts() -> None:
    legal = ("10.0.0.1", "::1", "fe80::1%eth0.100", "nsqd-1.example.org.", "under_score")
    other = ("::", "fe80::1%\x1b[31m", "", "ö", "a b")
    assert [is_host(text) for text in (*legal, *other)] == [True] * len(legal) + [False] * len(other)


# ---------------------------------------------------------------- the other routes


def test_an_nsqd_is_listed_with_all_that_it_says() -> None:
    entry = PEER | {
        "hostname": "one",
        "version": "1.3.0",
        "topics": ["orders", "bad name", "old"],
        "tombstones": [False, False, True],
    }
    partitions = {"orders": ["1023", "1024", "0", "x"], "none": None, "bad name": ["0"]}
    wrong = [{"tcp_port": 1}, PEER | {"partitions": 7}, PEER | {"tcp_port": 0}, None]
    plain, other = decode_nodes(ok({"producers": [entry, *wrong, entry | {"partitions": partitions}]}))
    assert plain == NodeInfo(NODE, "one", "1.3.0", {}, ("orders", "old"), frozenset({"old"}))
    assert other == NodeInfo(
        NODE, "one", "1.3.0", {"orders": (0, 1023), "none": ()}, ("orders", "old"), plain.tombstoned
    )
    assert (plain.node.is_plain, other.node.is_plain) == (True, False)
    assert plain.node.distributed_id == "10.0.0.1:1:4150:7"


def test_topics_and_channels_without_sense_are_left_out() -> None:
    topics = {"topics": ["b", "a b", "a"], "meta_info": [{"topic_name": "b", "ordered": True}, {"topic_name": ""}, 7]}
    assert decode_topics(ok(topics)) == (TopicInfo("a"), TopicInfo("b", ordered=True))
    channels = {"channels": ["z", "y", "bad name", "y"]}
    assert decode_channels(ok(channels)) == ("y", "z")
    assert lookup(channels | {"partitions": {"0": PEER}, "meta": META}).channels == ("y", "z")
    assert (decode_nodes(ok({"producers": None})), decode_topics(ok({})), decode_channels(ok({}))) == ((), (), ())


def lookupd(host: object = "10.0.0.1", port: object = "4161") -> dict[str, object]:
    return {"NodeIP": host, "HttpPort": port}


def test_a_list_is_missing_only_where_a_server_says_so() -> None:
    for body in (Body(200, b" null\n"), Body(404, b"{}"), unwrap(404, b'{"message":"NOT_FOUND"}')):
        assert decode_lookupd_list(body, "http") == LookupdList(leader=None, nodes=(), supported=False)
    for body in (Body(500, b"null", "no"), ok([]), ok({"lookupdnodes": 7})):
        with pytest.raises(RemoteProtocolError):
            decode_lookupd_list(body, "http")


@pytest.mark.parametrize("wrong", [("",), (None,), ("a b",), *(("a", port) for port in ("x", "0", "70000", None))])
def test_a_wrong_nsqlookupd_is_left_out(wrong: tuple[object, ...]) -> None:
    nodes = [lookupd(*wrong), 7, lookupd("10.0.0.2")]
    found = decode_lookupd_list(ok({"lookupdnodes": nodes, "lookupdleader": lookupd(*wrong)}), "https")
    assert found == LookupdList(leader=None, nodes=("https://10.0.0.2:4161",))


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
