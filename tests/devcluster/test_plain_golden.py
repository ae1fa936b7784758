"""The embedded upstream servers answer the recorded exchanges as the real ones did."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.compression import DeflateCodec, SnappyCodec
from nsq_ha.protocol.frames import FrameType
from tests.devcluster.wire import Wire
from tests.golden import load
from tests.support.certificates import server_context
from tests.support.web import NO_CERTIFICATES

NSQD_HTTP, LOOKUPD_HTTP = (load(f"plain/{file}")["exchanges"][0]["steps"] for file in ("nsqd_http", "lookupd_http"))
TCP = load("plain/tcp")["exchanges"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqlookupds=1, nsqds=1, tls=server_context()) as cluster:
        yield cluster


_CODECS = {"snappy": SnappyCodec, "deflate": DeflateCodec}
QUIET = 0.1
"""Seconds of silence that count as silence."""


class PlainReplay:
    """Plays the recorded steps: what the client wrote is written, what the server said must come."""

    def __init__(self, cluster: DevCluster) -> None:
        (self._tcp,) = cluster.nsqds.values()
        self._web = cluster.http_address("nsqd-0")
        self._wires: dict[str, Wire] = {}
        self._translated: dict[bytes, bytes] = {}

    def _wire(self, conn: str) -> Wire:
        if conn not in self._wires:
            self._wires[conn] = Wire(self._tcp)
        return self._wires[conn]

    def run(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            wire = self._wire(step.get("conn", "")) if step["dir"] != "http" else None
            if wire is None:
                _play(step, self._web, self._web)
            elif step["dir"] == "c2s":
                wire.send(self._with_ids(bytes.fromhex(step["hex"])))
            elif step["dir"] == "s2c":
                self._compare(wire, step)
            else:
                self._happen(wire, step["event"], step.get("conn", ""))

    def _happen(self, wire: Wire, event: str, conn: str) -> None:
        if event == "closed_by_server":
            assert wire.ends()
        elif event == "no_frame":
            assert wire.is_quiet(QUIET)
        elif event == "client_closed":
            self._wires.pop(conn).close()
        elif event == "tls":
            wire.secure()
        else:
            wire.compress(_CODECS[event]())

    def _with_ids(self, data: bytes) -> bytes:
        for recorded, actual in self._translated.items():
            data = data.replace(recorded, actual)
        return data

    def _compare(self, wire: Wire, step: dict[str, Any]) -> None:
        recorded = bytes.fromhex(step["hex"])[8:]
        kind, data = wire.frame()
        assert kind.name.lower() == step["frame"], (data, step)
        if kind is FrameType.MESSAGE:
            self._translated[recorded[10:26]] = data[10:26]
            # Timestamp and id are of the recording, attempts and body are not.
            assert data[8:10] + data[26:] == recorded[8:10] + recorded[26:]
            assert re.fullmatch(rb"[0-9a-f]{16}", data[10:26])
        else:
            assert data == self._with_ids(recorded)

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


@pytest.mark.parametrize("exchange", [pytest.param(exchange, id=exchange["name"]) for exchange in TCP])
def test_tcp(cluster: DevCluster, exchange: dict[str, Any]) -> None:
    replay = PlainReplay(cluster)
    try:
        replay.run(exchange["steps"])
    finally:
        replay.close()


_OWN = ("hostname", "http_port", "tcp_port", "start_time", "remote_address", "memory")


def _masked(told: Any) -> Any:  # noqa: ANN401 - any JSON
    """Without what is of the recording; the real server's maps have no order."""
    if isinstance(told, dict):
        return {key: "-" if key in _OWN else _masked(value) for key, value in told.items()}
    if isinstance(told, list):
        return sorted((_masked(value) for value in told), key=json.dumps)
    return told


def _play(step: dict[str, Any], base: str, nsqd: str) -> None:
    path, body = step["path"], step.get("request_body_hex", "")
    url = nsqd + path.removeprefix("nsqd") if path.startswith("nsqd") else base + path
    content = b"x" * int(body.split()[0]) if body.endswith("x") else bytes.fromhex(body)
    url = url.replace("NODE", nsqd.removeprefix("http://"))
    answer = httpx.request(step["method"], url, content=content, verify=NO_CERTIFICATES)
    assert (answer.status_code, answer.headers.get("content-type", "")) == (step["status"], step["content_type"])
    if step["body_text"].startswith("{"):
        assert _masked(answer.json()) == _masked(json.loads(step["body_text"]))
        assert list(answer.json()) == list(json.loads(step["body_text"]))
    else:
        assert answer.text == step["body_text"]


@pytest.fixture(scope="module")
def fresh() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqlookupds=1, nsqds=1) as cluster:
        yield cluster


@pytest.mark.parametrize("step", NSQD_HTTP, ids=lambda step: f"{step['method']} {step['path']}")
def test_http_of_nsqd(fresh: DevCluster, step: dict[str, Any]) -> None:
    nsqd = fresh.http_address("nsqd-0")
    _play(step, nsqd, nsqd)


def test_http_of_nsqlookupd() -> None:
    """In one test: the requests build on each other, with an nsqd that has no other topics."""
    with DevCluster(plain=True, nsqlookupds=1, nsqds=1) as cluster:
        for step in LOOKUPD_HTTP:
            _play(step, cluster.lookupd[0], cluster.http_address("nsqd-0"))


def test_the_recording_has_all_commands() -> None:
    said = b"".join(bytes.fromhex(step["hex"]) for each in TCP for step in each["steps"] if step["dir"] == "c2s")
    for word in (b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"MPUB", b"DPUB", b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS"):
        assert word + b" " in said or word + b"\n" in said
