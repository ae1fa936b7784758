"""The embedded daemons answer recorded HTTP requests as the real ones did, but for those that the docs list."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.messages import decode_traced
from tests.devcluster.likeness import compare_answer
from tests.devcluster.prefaces import writable_no_more
from tests.devcluster.probes import until
from tests.devcluster.stage import TOPICS, Stage
from tests.devcluster.unmatched import unmatched
from tests.devcluster.wire import connect, identify
from tests.golden import load

FILES = ("lookup_http", "lookup_leadership", "nsqd_http")

EXTRA_MASKS = {
    "lookup_http/topics": {"topics"},
    "lookup_http/topics_metaInfo": {"topics", "meta_info"},
    "lookup_http/nodes": {"topics", "tombstones", "partitions"},
    "lookup_http/channels": {"channels"},
}
"""Lists of all topics are of the recording."""


class Requests:
    """Sends the requests of one file to a stage, in the order of the file."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.found: dict[str, str] = {}
        stage.make_channel("proto_plain", 0, "chx", ordered=False)

    def run(self, file: str) -> dict[str, list[str]]:
        """Return the differences of each exchange."""
        return {
            f"{file}/{exchange['name']}": self._one(file, exchange["name"], exchange["steps"][0])
            for exchange in load(file)["exchanges"]
        }

    def _one(self, file: str, name: str, step: dict[str, Any]) -> list[str]:
        if name in BEFORE:
            BEFORE[name](self)
        path = step["path"]
        for recorded, actual in self.found.items():
            path = path.replace(recorded, actual)
        base = self._lookupd(name) if file.startswith("lookup") else self._nsqd(name, path)
        headers = step.get("request_headers", {})
        body = bytes.fromhex(step.get("request_body_hex", ""))
        answer = self.stage.http.request(step["method"], base + path, headers=headers, content=body)
        return compare_answer(step, answer, EXTRA_MASKS.get(f"{file}/{name}", frozenset()))

    def _lookupd(self, name: str) -> str:
        return self.stage.cluster.lookupd[1 if name.endswith("_on_follower") else 0]

    def _nsqd(self, name: str, path: str) -> str:
        query = parse_qs(urlsplit(path).query)
        topic = query.get("topic", ["proto_plain"])[0]
        number = query.get("partition", ["0"])[0]
        if "on_follower" in name:
            return self.stage.cluster.http_address(self.stage.cluster.followers("proto_one")[0])
        if topic not in TOPICS or name == "pub_wrong_partition" or not number.isdecimal():
            topic, number = "proto_plain", "0"
        return self.stage.web(topic, int(number))


def settled(requests: Requests) -> None:
    for lookupd in requests.stage.cluster.lookupd:
        until(partial(requests.stage.writable, "proto_t31983", lookupd))


def find_me(requests: Requests) -> None:
    """Publish the message that the recording looks for, and learn where it is."""
    stage = requests.stage
    traced = decode_traced(stage.publish("proto_plain", 0, b"findme", trace_id=9))
    requests.found = {"=111": f"={traced.internal_id}", "=3476": f"={traced.offset}"}


def busy_channel(requests: Requests) -> None:
    """A consumer that holds two messages: one that was in hand when the offset was set, and the one that was found."""
    stage = requests.stage
    who = identify(client_id="cid", hostname="hn", user_agent="ua/1")
    wire = connect(stage.address("proto_plain"), who, b"SUB proto_plain hch 0\nRDY 3\n")
    stage.wires.append(wire)
    wire.answer()
    assert wire.answer() == b"OK"
    for _ in range(2):
        wire.message()


BEFORE: dict[str, Callable[[Requests], None]] = {
    "lookup_after_create_settled": settled,
    "message_get_by_id": find_me,
    "stats_json_topic": busy_channel,
}


@pytest.fixture(scope="module")
def outcome() -> dict[str, list[str]]:
    """Differences of every exchange, by name."""
    found: dict[str, list[str]] = {}
    for file in ("lookup_http", "nsqd_http"):
        with DevCluster() as cluster:
            stage = Stage(cluster)
            found |= Requests(stage).run(file)
            stage.close()
    return found


def exchanges(*files: str) -> list[Any]:
    return [
        pytest.param(f"{file}/{exchange['name']}", exchange, id=f"{file}/{exchange['name']}")
        for file in files
        for exchange in load(file)["exchanges"]
    ]


@pytest.mark.parametrize(("name", "exchange"), exchanges("lookup_http", "nsqd_http"))
def test_request(name: str, exchange: dict[str, Any], outcome: dict[str, list[str]]) -> None:
    assert bool(outcome[name]) == (name in unmatched()), (exchange.get("about"), outcome[name])


# ------------------------------------------------------------ lookups while leaders move


def moved(stage: Stage) -> None:
    stage.make_channel("proto_lead2", 0, "chl", ordered=False)
    stage.cluster.move_leader("proto_lead2")


def disabled(stage: Stage) -> None:
    stage.cluster.refuse_writes()


def follower_dead(stage: Stage) -> None:
    stage.cluster.kill(stage.cluster.followers("proto_lead")[0])
    writable_no_more(stage, "proto_lead")


LEADERSHIP = {"move_leader": moved, "writes_disabled": disabled, "one_replica_down": follower_dead}


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "exchange"), exchanges("lookup_leadership"))
def test_lookup_while_leaders_move(name: str, exchange: dict[str, Any]) -> None:
    with DevCluster() as cluster:
        stage = Stage(cluster, "proto_lead", "proto_lead2")
        next(act for begin, act in LEADERSHIP.items() if exchange["name"].startswith(begin))(stage)
        step = exchange["steps"][0]
        answer: httpx.Response = stage.http.get(cluster.lookupd[0] + step["path"])
        stage.close()
    assert bool(compare_answer(step, answer)) == (name in unmatched()), compare_answer(step, answer)
