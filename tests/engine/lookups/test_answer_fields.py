"""Each field of an answer reaches the caller, and each refusal says all that it should."""

from __future__ import annotations

import json

import pytest

from nsq_ha.engine.answers import (
    NodeInfo,
    TopicInfo,
    decode_lookup,
    decode_lookupd_list,
    decode_nodes,
    decode_topics,
)
from nsq_ha.engine.body import Body, decode_json, unwrap
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta

URL = "http://a:4161"
PEER = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151, "distributed_id": "10.0.0.1:1:4150:7"}
NODE = Node("10.0.0.1", 4150, 4151)
FLAGS = ("ordered", "extend_support", "multi_part", "disable_channel_auto_create")


def ok(content: object) -> Body:
    return unwrap(200, json.dumps(content).encode())


@pytest.mark.parametrize("flag", FLAGS)
def test_each_setting_of_a_topic_is_its_own(flag: str) -> None:
    meta = {"partition_num": 1024, "replica": 2, flag: True}
    answer = decode_lookup(ok({"meta": meta, "partitions": {"1023": PEER}}), URL)
    assert answer.meta == TopicMeta(1024, replica=2, **{flag: True})
    assert answer == LookupAnswer(URL, leads=False, meta=answer.meta, partitions={1023: NODE}, exists=True)
    listed = decode_topics(ok({"topics": ["plain"], "meta_info": [{"topic_name": "orders", flag: True}]}))
    assert listed == (TopicInfo("orders", **{flag: True}), TopicInfo("plain"))


NOT_CREATED = "the topic is not created"


@pytest.mark.parametrize("status", [404, 500])
@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Key not found", LookupAnswer(URL, False, None, {}, exists=False, note=NOT_CREATED)),
        ("TOPIC_NOT_FOUND", LookupAnswer(URL, False, None, {}, exists=False, note=NOT_CREATED, nodes=())),
        ("Topic has no channel", LookupAnswer(URL, False, None, {}, exists=True, note="Topic has no channel")),
    ],
)
def test_a_refusal_because_of_the_topic_is_a_whole_answer(status: int, text: str, answer: LookupAnswer) -> None:
    assert decode_lookup(unwrap(status, json.dumps({"message": text}).encode()), URL) == answer


@pytest.mark.parametrize("text", ["Key not found", "TOPIC_NOT_FOUND", "Topic has no channel"])
def test_with_another_status_the_same_text_is_no_answer(text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_lookup(unwrap(403, json.dumps({"message": text}).encode()), URL)
    assert str(caught.value) == f"HTTP status 403: {text}"


@pytest.mark.parametrize(("text", "said"), [("NOT_FOUND", " (NOT_FOUND)"), ("", "")])
def test_a_route_that_a_server_does_not_know_says_which_address_to_give(text: str, said: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_nodes(Body(404, b"", text))
    assert str(caught.value) == (
        f"HTTP status 404{said}: this server does not know the request. Give the HTTP address of an nsqlookupd (port"
        " 4161 by default), not that of an nsqd"
    )


def test_an_answer_without_anything_is_not_that_of_an_nsqlookupd() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_lookup(ok({}), URL)
    assert str(caught.value) == (
        "the answer is not that of an nsqlookupd: it has no partitions, no nodes and no settings of the topic"
    )
    # Each of them alone is enough.
    assert decode_lookup(ok({"partitions": {"0": PEER}}), URL).partitions == {0: NODE}
    assert decode_lookup(ok({"producers": []}), URL).nodes == ()
    assert decode_lookup(ok({"partitions": None, "producers": [PEER]}), URL).nodes is None
    assert decode_lookup(ok({"meta": {"partition_num": 3}}), URL).meta == TopicMeta(3)


def test_without_partitions_the_note_says_why_unless_the_topic_is_unknown() -> None:
    unlisted = "no partition is listed, for example because writes are disabled"
    meta = {"partition_num": 2}
    assert decode_lookup(ok({"meta": meta, "partitions": None}), URL).note == unlisted
    assert decode_lookup(ok({"meta": meta, "partitions": {}}), URL).note == ""
    unknown = decode_lookup(ok({"meta": {"partition_num": 0}, "partitions": None}), URL)
    assert (unknown.exists, unknown.note) == (False, "")
    led = decode_lookup(ok({"meta": {"partition_num": 0}, "partitions": None, "producers": [PEER]}), URL)
    assert (led.exists, led.note) == (True, unlisted)


def test_a_list_is_missing_only_where_a_server_says_so() -> None:
    assert not decode_lookupd_list(Body(200, b" null\n"), "http").supported
    assert not decode_lookupd_list(Body(404, b"{}"), "http").supported
    with pytest.raises(RemoteProtocolError, match=r"^HTTP status 500: no$"):
        decode_lookupd_list(Body(500, b"null", "no"), "http")


def test_an_nsqd_is_listed_with_all_that_it_says() -> None:
    entry = {
        **PEER,
        "hostname": "one",
        "version": "1.3.0",
        "topics": ["orders", "bad name", "old"],
        "tombstones": [False, False, True],
    }
    partitions = {"orders": ["1023", "1024", "0", "x"], "none": None, "bad name": ["0"]}
    plain, other = decode_nodes(ok({"producers": [entry, {"tcp_port": 1}, {**entry, "partitions": partitions}]}))
    assert plain == NodeInfo(NODE, "one", "1.3.0", {}, ("orders", "old"), frozenset({"old"}))
    assert other == NodeInfo(
        NODE, "one", "1.3.0", {"orders": (0, 1023), "none": ()}, ("orders", "old"), plain.tombstoned
    )
    assert (plain.node.is_plain, other.node.is_plain) == (True, False)
    assert plain.node.distributed_id == "10.0.0.1:1:4150:7"


# ---------------------------------------------------------------- bodies


def test_the_envelope_decides_only_where_http_says_200() -> None:
    wrapped = b'{"status_code":404,"status_txt":"gone","data":{"a":1}}'
    assert unwrap(200, wrapped) == Body(404, b"", "gone")
    assert unwrap(500, wrapped) == Body(500, b"", "gone")
    assert unwrap(200, b'{"status_code":200,"status_txt":"OK","data":{"a":1}}') == Body(200, b'{"a":1}')
    assert unwrap(200, b'{"status_code":200,"status_txt":"OK"}') == Body(200, b"null")
    assert unwrap(500, b'{"status_code":200,"status_txt":"OK","data":1}') == Body(500, b"", "OK")


@pytest.mark.parametrize(("length", "shown"), [(120, "x" * 120), (121, "x" * 120 + "...")])
def test_a_long_refusal_is_cut(length: int, shown: str) -> None:
    assert unwrap(500, b"x" * length).message == shown


def test_an_unexpected_answer_says_what_is_wrong_with_it() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_json(b"[1", list[int])
    assert str(caught.value) == "unexpected answer: Input data was truncated"
    assert caught.value.__cause__ is not None
