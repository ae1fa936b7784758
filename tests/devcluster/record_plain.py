"""Record what upstream's nsqd and nsqlookupd say and are told: ``tests/vectors/plain``.

``python -m tests.devcluster.record_plain NSQD_TCP NSQD_HTTP LOOKUPD_HTTP`` plays the scenes below with a real
cluster whose nsqd has TLS, and no other topics. The tests play what was recorded with the embedded one.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from nsq_ha.protocol.compression import DeflateCodec, SnappyCodec
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.frames import FrameType
from tests.devcluster.wire import LIMIT, Closed, Wire, identify, message_id
from tests.support.web import NO_CERTIFICATES

FOLDER = Path(__file__).parent.parent / "vectors" / "plain"
SILENCE = 0.3
"""Seconds of silence that the recorder waits for."""
_CODECS = {"snappy": SnappyCodec, "deflate": DeflateCodec}


class Talk:
    """One exchange with an nsqd, which may have several connections."""

    def __init__(self, name: str, tcp: str, web: str) -> None:
        self.topic = f"plain_{name}"
        self.steps: list[dict[str, Any]] = []
        self.ids: list[bytes] = []
        self._tcp = tcp
        self.web = web
        self._wires: dict[str, Wire] = {}

    def _wire(self, conn: str) -> Wire:
        if conn not in self._wires:
            self._wires[conn] = Wire(self._tcp)
        return self._wires[conn]

    def _keep(self, conn: str, direction: str, **fields: Any) -> None:  # noqa: ANN401
        self.steps.append({"dir": direction, **({"conn": conn} if conn else {}), **fields})

    def send(self, data: bytes, conn: str = "") -> None:
        self._keep(conn, "c2s", hex=data.hex())
        self._wire(conn).send(data)

    def magic(self, conn: str = "") -> None:
        self.send(MAGIC, conn)

    def frame(self, conn: str = "") -> bytes:
        wire = self._wire(conn)
        kind, data = wire.frame(LIMIT * 3)
        if kind is FrameType.MESSAGE:
            self.ids.append(message_id(data))
        text = {} if kind is FrameType.MESSAGE else {"text": data.decode("utf-8", "replace")}
        whole = struct.pack(">ii", len(data) + 4, kind.value) + data
        self._keep(conn, "s2c", frame=kind.name.lower(), hex=whole.hex(), **text)
        return data

    def ok(self, conn: str = "") -> None:
        assert self.frame(conn) == b"OK"

    def closed(self, conn: str = "") -> None:
        try:
            kind, data = self._wire(conn).frame(LIMIT)
        except Closed:
            self._keep(conn, "event", event="closed_by_server")
            return
        raise AssertionError(f"{self.topic}: {kind} {data!r} instead of the end")

    def quiet(self, conn: str = "", seconds: float = SILENCE) -> None:
        assert self._wire(conn).is_quiet(seconds), self.topic
        self._keep(conn, "event", event="no_frame")

    def leave(self, conn: str = "") -> None:
        self._wires.pop(conn).close()
        self._keep(conn, "event", event="client_closed")

    def switch(self, layer: str, conn: str = "") -> None:
        wire = self._wire(conn)
        if layer == "tls":
            wire.secure()
        else:
            wire.compress(_CODECS[layer]())
        self._keep(conn, "event", event=layer)

    def http(self, method: str, path: str, body: bytes = b"") -> None:
        answer = httpx.request(method, self.web + path, content=body, timeout=LIMIT, verify=NO_CERTIFICATES)
        self.steps.append(
            {
                "dir": "http",
                "method": method,
                "path": path,
                **({"request_body_hex": body.hex()} if body else {}),
                "status": answer.status_code,
                "content_type": answer.headers.get("content-type", ""),
                "body_text": answer.text,
            }
        )

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()

    # ------------------------------------------------------------ common beginnings

    def publish(self, *bodies: bytes, conn: str = "p") -> None:
        if conn not in self._wires:
            self.magic(conn)
        for body in bodies:
            self.send(pub(self.topic, body), conn)
            self.ok(conn)

    def subscribe(self, channel: str = "ch", ready: int = 1, conn: str = "", **fields: object) -> None:
        self.magic(conn)
        if fields:
            self.send(identify(**fields), conn)
            self.frame(conn)
        self.send(f"SUB {self.topic} {channel}\n".encode(), conn)
        self.ok(conn)
        if ready:
            self.send(b"RDY %d\n" % ready, conn)


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body


def mpub(topic: str, *bodies: bytes, count: int | None = None, size: int | None = None) -> bytes:
    content = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    content = struct.pack(">i", len(bodies) if count is None else count) + content
    return f"MPUB {topic}\n".encode() + struct.pack(">i", len(content) if size is None else size) + content


def dpub(topic: str, delay: str, body: bytes) -> bytes:
    return f"DPUB {topic} {delay}\n".encode() + struct.pack(">i", len(body)) + body


def nop(talk: Talk) -> None:
    talk.magic()
    talk.send(b"NOP\nNOP\r\n")
    talk.quiet()


def mpub_big_message(topic: str) -> bytes:
    return f"MPUB {topic}\n".encode() + struct.pack(">iii", 9, 1, 1048577)


Scene = Callable[[Talk], None]


def refused(*commands: bytes) -> Scene:
    """The last command is refused, and the connection ends."""

    def play(talk: Talk) -> None:
        talk.magic()
        *accepted, last = commands
        for command in accepted:
            talk.send(command)
            talk.frame()
        talk.send(last)
        talk.frame()
        talk.closed()

    return play


def answered(*commands: bytes) -> Scene:
    """Each command is answered with one frame."""

    def play(talk: Talk) -> None:
        talk.magic()
        for command in commands:
            talk.send(command)
            talk.frame()
        talk.quiet()

    return play


def to_topic(make: Callable[[str], bytes], then: Callable[..., Scene]) -> Scene:
    """Make the command for the scene's own topic."""
    return lambda talk: then(make(talk.topic))(talk)


def for_consumer(*commands: bytes, answers: int = 1, ends: bool = True) -> Scene:
    """Commands of a consumer that holds no message."""

    def play(talk: Talk) -> None:
        talk.subscribe(ready=0)
        for command in commands:
            talk.send(command)
        for _ in range(answers):
            talk.frame()
        talk.closed() if ends else talk.quiet()

    return play


def agreed(**fields: object) -> Scene:
    return answered(identify(**fields))


def not_agreed(**fields: object) -> Scene:
    return refused(identify(**fields))


# ---------------------------------------------------------------- scenes of several steps


def bad_magic(talk: Talk) -> None:
    talk.send(b"  V9")
    talk.frame()
    talk.closed()


def long_line(talk: Talk) -> None:
    talk.magic()
    talk.send(b"x" * 16384)
    talk.closed()


def deliver(talk: Talk) -> None:
    talk.subscribe(ready=2)
    talk.publish(b"one")
    talk.frame()
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.frame()
    talk.send(b"TOUCH " + talk.ids[0] + b"\n")
    talk.frame()
    talk.send(b"REQ " + talk.ids[0] + b" 0\n")
    talk.frame()
    talk.quiet()


def backlog_goes_to_the_first_channel(talk: Talk) -> None:
    talk.publish(b"one")
    talk.subscribe(ready=1)
    talk.frame()
    talk.subscribe("second", ready=1, conn="2")
    talk.quiet("2")
    talk.publish(b"two")
    talk.frame("2")
    talk.quiet()  # it holds as many as it asked for


def requeue(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.publish(b"one")
    talk.frame()
    talk.send(b"REQ " + talk.ids[0] + b" 0\n")
    talk.frame()
    talk.send(b"REQ " + talk.ids[0] + b" 300\n")
    talk.quiet(seconds=0.1)
    talk.frame()
    talk.send(b"TOUCH " + talk.ids[0] + b"\n")
    talk.quiet()


def someone_elses(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.publish(b"one")
    talk.frame()
    talk.subscribe(ready=1, conn="2")
    for word in (b"FIN ", b"TOUCH ", b"REQ "):
        talk.send(word + talk.ids[0] + (b" 0\n" if word == b"REQ " else b"\n"), "2")
        talk.frame("2")


def time_out(talk: Talk) -> None:
    talk.subscribe(ready=1, msg_timeout=1000)
    talk.publish(b"one")
    talk.frame()
    talk.frame()
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.quiet()


def a_leaver_keeps_its_messages(talk: Talk) -> None:
    talk.subscribe(ready=1, msg_timeout=1500)
    talk.publish(b"one")
    talk.frame()
    talk.leave()
    talk.subscribe(ready=1, conn="2")
    talk.quiet("2")
    talk.frame("2")


def deferred(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.magic("p")
    talk.send(dpub(talk.topic, "400", b"later"), "p")
    talk.ok("p")
    talk.quiet(seconds=0.2)
    talk.frame()


def closing(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.publish(b"one")
    talk.frame()
    talk.send(b"CLS\n")
    talk.frame()
    talk.send(b"RDY 1\n")
    talk.send(b"RDY nonsense\n")
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.quiet()
    talk.send(b"CLS\n")
    talk.frame()
    talk.closed()


def publish_while_subscribed(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.send(pub(talk.topic, b"one"))
    talk.frame()
    talk.frame()


def paused(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.http("POST", f"/channel/pause?topic={talk.topic}&channel=ch")
    talk.publish(b"one")
    talk.quiet()
    talk.http("POST", f"/channel/unpause?topic={talk.topic}&channel=ch")
    talk.frame()
    talk.http("POST", f"/topic/pause?topic={talk.topic}")
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.publish(b"two")
    talk.quiet()
    talk.http("POST", f"/topic/unpause?topic={talk.topic}")
    talk.frame()


def emptied(talk: Talk) -> None:
    talk.subscribe(ready=1)
    talk.publish(b"one", b"two")
    talk.frame()
    talk.http("POST", f"/channel/empty?topic={talk.topic}&channel=ch")
    talk.quiet()
    talk.send(b"FIN " + talk.ids[0] + b"\n")
    talk.frame()
    talk.publish(b"three")
    talk.frame()


def deleted(talk: Talk) -> None:
    talk.subscribe()
    talk.subscribe("other", conn="2")
    talk.http("POST", f"/channel/delete?topic={talk.topic}&channel=ch")
    talk.closed()
    talk.http("POST", f"/topic/delete?topic={talk.topic}")
    talk.closed("2")


def heartbeat(talk: Talk) -> None:
    talk.subscribe(ready=0, heartbeat_interval=1000)
    talk.frame()
    talk.send(b"NOP\n")
    talk.frame()
    talk.frame()
    talk.closed()


def layered(*layers: str) -> Scene:
    def play(talk: Talk) -> None:
        talk.magic()
        talk.send(identify(tls_v1="tls" in layers, snappy="snappy" in layers, deflate="deflate" in layers))
        talk.frame()
        for layer in layers:
            talk.switch(layer)
            talk.ok()
        talk.send(pub(talk.topic, b"x" * 100))
        talk.ok()
        talk.send(f"SUB {talk.topic} ch\nRDY 1\n".encode())
        talk.ok()
        talk.frame()

    return play


def ephemeral(talk: Talk) -> None:
    talk.topic += "#ephemeral"
    talk.subscribe("ch#ephemeral", ready=1)
    talk.publish(b"one")
    talk.frame()
    talk.leave()


CONTENT = b"x"
ID = b"0123456789abcdef"

TCP: dict[str, Scene] = {
    "bad_magic": bad_magic,
    "long_line": long_line,
    "unknown_command": refused(b"BOGUS 1 2\n"),
    "empty_line": refused(b"\n"),
    "lower_case": refused(b"nop\n"),
    "sub_ordered": refused(b"SUB_ORDERED topic ch 0\n"),
    "pub_trace": refused(b"PUB_TRACE topic 0\n"),
    "nop": nop,
    # IDENTIFY
    "identify": agreed(),
    "identify_all": agreed(
        client_id="c", hostname="h", user_agent="u/1", heartbeat_interval=5000, output_buffer_size=1000,
        output_buffer_timeout=30000, sample_rate=50, msg_timeout=900000,
    ),
    "identify_twice": answered(identify(msg_timeout=2000), identify(output_buffer_timeout=25)),
    "identify_off": agreed(heartbeat_interval=-1, output_buffer_size=-1, output_buffer_timeout=100),
    "identify_timeout_off": agreed(output_buffer_timeout=-1),
    "identify_no_negotiation": agreed(feature_negotiation=False, snappy=True),
    "identify_unknown_field": agreed(extend_support=True, desired_tag="t", ext_filter=None),
    "identify_any_case": agreed(Sample_Rate=3, nothing=[1, 2]),
    "identify_deflate_level": not_agreed(deflate=True, snappy=True),
    "identify_level_alone": agreed(deflate_level=3),
    "identify_bad_json": refused(b"IDENTIFY\n\0\0\0\x02{x"),
    "identify_wrong_type": not_agreed(msg_timeout="1"),
    "identify_no_size": refused(b"IDENTIFY\n\0\0\0\0"),
    "identify_negative_size": refused(b"IDENTIFY\n\xff\xff\xff\xff"),
    "identify_too_big": refused(b"IDENTIFY\n\x7f\xff\xff\xff"),
    "identify_heartbeat_low": not_agreed(heartbeat_interval=999),
    "identify_heartbeat_high": not_agreed(heartbeat_interval=60001),
    "identify_buffer_low": not_agreed(output_buffer_size=63),
    "identify_buffer_high": not_agreed(output_buffer_size=65537),
    "identify_timeout_low": not_agreed(output_buffer_timeout=24),
    "identify_timeout_high": not_agreed(output_buffer_timeout=30001),
    "identify_timeout_before_size": not_agreed(output_buffer_timeout=1, output_buffer_size=1),
    "identify_sample_rate": not_agreed(sample_rate=100),
    "identify_msg_timeout_low": not_agreed(msg_timeout=999),
    "identify_msg_timeout_high": not_agreed(msg_timeout=900001),
    "identify_subscribed": for_consumer(identify()),
    "auth": refused(b"AUTH\n\0\0\0\x01x"),
    "auth_words": refused(b"AUTH x\n"),
    "auth_subscribed": for_consumer(b"AUTH\n\0\0\0\x01x"),
    # SUB
    "sub": lambda talk: talk.subscribe(),
    "sub_more_words": to_topic(lambda topic: f"SUB {topic} ch 0 more\n".encode(), answered),
    "sub_short": refused(b"SUB topic\n"),
    "sub_bad_topic": refused(b"SUB to/pic ch\n"),
    "sub_bad_channel": refused(b"SUB topic ch\xc3\xa4\n"),
    "sub_two_blanks": refused(b"SUB  ch\n"),
    "sub_twice": for_consumer(b"SUB topic ch\n"),
    "sub_twice_bad": for_consumer(b"SUB to/pic\n"),
    "sub_no_heartbeats": refused(identify(heartbeat_interval=-1), b"SUB topic ch\n"),
    "sub_no_heartbeats_bad": refused(identify(heartbeat_interval=-1), b"SUB\n"),
    # commands of consumers
    "rdy_early": refused(b"RDY 1\n"),
    "rdy_early_bad": refused(b"RDY x\n"),
    "rdy_word": for_consumer(b"RDY 1x\n"),
    "rdy_negative": for_consumer(b"RDY -1\n"),
    "rdy_high": for_consumer(b"RDY 2501\n"),
    "rdy_wraps": for_consumer(b"RDY 18446744073709551615\n"),
    "rdy_most": for_consumer(b"RDY 2500\nRDY\nRDY 0 more\n", answers=0, ends=False),
    "fin_early": refused(b"FIN " + ID + b"\n"),
    "fin_short": for_consumer(b"FIN\n"),
    "fin_short_id": for_consumer(b"FIN 0123\n"),
    "fin_unknown": for_consumer(b"FIN " + ID + b"\n", ends=False),
    "fin_more_words": for_consumer(b"FIN " + ID + b" more\n", ends=False),
    "touch_early": refused(b"TOUCH " + ID + b"\n"),
    "touch_short": for_consumer(b"TOUCH\n"),
    "touch_unknown": for_consumer(b"TOUCH " + ID + b"\n", ends=False),
    "req_early": refused(b"REQ " + ID + b" 0\n"),
    "req_short": for_consumer(b"REQ " + ID + b"\n"),
    "req_short_id": for_consumer(b"REQ 0123 0\n"),
    "req_word": for_consumer(b"REQ " + ID + b" -1\n"),
    "req_unknown": for_consumer(b"REQ " + ID + b" 99999999\n", ends=False),
    "cls_early": refused(b"CLS\n"),
    "cls": for_consumer(b"CLS\n", ends=False),
    # publishing
    "pub": lambda talk: talk.publish(CONTENT),
    "pub_more_words": to_topic(lambda topic: pub(f"{topic} 0", CONTENT), answered),
    "pub_short": refused(b"PUB\n"),
    "pub_bad_topic": refused(pub("to/pic", CONTENT)),
    "pub_long_topic": refused(pub("x" * 65, CONTENT)),
    "pub_no_body": refused(pub("topic", b"")),
    "pub_negative": refused(b"PUB topic\n\xff\xff\xff\xff"),
    "pub_too_big": refused(b"PUB topic\n\0\x10\0\x01"),
    "mpub": to_topic(lambda topic: mpub(topic, b"a", b"b"), answered),
    "mpub_short": refused(b"MPUB\n"),
    "mpub_bad_topic": refused(mpub("to/pic", b"a")),
    "mpub_no_size": to_topic(lambda topic: mpub(topic, size=0), refused),
    "mpub_too_big": to_topic(lambda topic: mpub(topic, size=5242881), refused),
    "mpub_no_messages": to_topic(lambda topic: mpub(topic, count=0), refused),
    "mpub_many_messages": to_topic(lambda topic: mpub(topic, count=1048576), refused),
    "mpub_empty_message": to_topic(lambda topic: mpub(topic, b"a", b""), refused),
    "mpub_big_message": to_topic(mpub_big_message, refused),
    "mpub_other_size": to_topic(lambda topic: mpub(topic, b"a", b"b", size=5), answered),
    "dpub": to_topic(lambda topic: dpub(topic, "3600000", b"a"), answered),
    "dpub_short": refused(b"DPUB topic\n"),
    "dpub_bad_topic": refused(dpub("to/pic", "0", b"a")),
    "dpub_word": refused(dpub("topic", "1x", b"a")),
    "dpub_high": refused(dpub("topic", "3600001", b"a")),
    "dpub_wraps": refused(dpub("topic", "9223372036855", b"a")),
    "dpub_no_body": refused(dpub("topic", "1", b"")),
    "dpub_too_big": refused(b"DPUB topic 1\n\0\x10\0\x01"),
    # messages
    "deliver": deliver,
    "backlog_goes_to_the_first_channel": backlog_goes_to_the_first_channel,
    "requeue": requeue,
    "someone_elses": someone_elses,
    "time_out": time_out,
    "a_leaver_keeps_its_messages": a_leaver_keeps_its_messages,
    "deferred": deferred,
    "closing": closing,
    "publish_while_subscribed": publish_while_subscribed,
    "paused": paused,
    "emptied": emptied,
    "deleted": deleted,
    "ephemeral": ephemeral,
    "heartbeat": heartbeat,
    "tls": layered("tls"),
    "snappy": layered("snappy"),
    "deflate": layered("deflate"),
    "tls_snappy": layered("tls", "snappy"),
    "tls_deflate": layered("tls", "deflate"),
}  # fmt: skip

NSQD_HTTP: tuple[tuple[str, str, bytes], ...] = (
    ("GET", "/ping", b""),
    ("POST", "/ping", b""),
    ("GET", "/nothing", b""),
    ("GET", "/listlookup", b""),
    ("GET", "/pub", b""),
    ("POST", "/pub?topic=h1", b"one"),
    ("POST", "/pub?topic=h1", b""),
    ("POST", "/pub", b"one"),
    ("POST", "/pub?topic=", b"one"),
    ("POST", "/pub?topic=a/b", b"one"),
    ("POST", "/pub?topic=h1", b"x" * 1048577),
    ("POST", "/pub?topic=h1&defer=100", b"one"),
    ("POST", "/pub?topic=h1&defer=x", b"one"),
    ("POST", "/pub?topic=h1&defer=-1", b"one"),
    ("POST", "/pub?topic=h1&defer=3600001", b"one"),
    ("POST", "/mpub?topic=h1", b"one\n\ntwo"),
    ("POST", "/mpub?topic=h1", b""),
    ("POST", "/mpub?topic=h1&binary=true", b"\0\0\0\x01\0\0\0\x01x"),
    ("POST", "/mpub?topic=h1&binary=other", b"\0\0\0\x01\0\0\0\x01x"),
    ("POST", "/mpub?topic=h1&binary=false", b"x"),
    ("POST", "/mpub?topic=h1&binary=1", b"\0\0\0\0"),
    ("POST", "/mpub?topic=h1&binary=1", b"\0\0\0\x01\0\0\0\0"),
    ("POST", "/mpub?topic=a/b", b"one"),
    ("POST", "/topic/create?topic=h2", b""),
    ("POST", "/topic/create?topic=h2", b""),
    ("POST", "/topic/create", b""),
    ("POST", "/topic/create?topic=a/b", b""),
    ("GET", "/topic/create?topic=h2", b""),
    ("POST", "/channel/create?topic=h2&channel=c1", b""),
    ("POST", "/channel/create?topic=missing&channel=c1", b""),
    ("POST", "/channel/create?topic=h2", b""),
    ("POST", "/channel/create?channel=c1", b""),
    ("POST", "/channel/create?topic=h2&channel=a/b", b""),
    ("POST", "/channel/create?topic=a/b&channel=c1", b""),
    ("POST", "/channel/pause?topic=h2&channel=c1", b""),
    ("POST", "/channel/unpause?topic=h2&channel=c1", b""),
    ("POST", "/channel/empty?topic=h2&channel=c1", b""),
    ("POST", "/channel/pause?topic=h2&channel=missing", b""),
    ("POST", "/channel/empty?topic=h2&channel=missing", b""),
    ("POST", "/channel/delete?topic=h2&channel=missing", b""),
    ("POST", "/channel/delete?topic=h2&channel=c1", b""),
    ("POST", "/topic/pause?topic=h2", b""),
    ("POST", "/topic/pause?topic=missing", b""),
    ("POST", "/topic/pause", b""),
    ("POST", "/topic/unpause?topic=h2", b""),
    ("POST", "/topic/empty?topic=h1", b""),
    ("POST", "/topic/empty?topic=missing", b""),
    ("POST", "/topic/empty?topic=a/b", b""),
    ("POST", "/topic/empty", b""),
    ("GET", "/info", b""),
    ("GET", "/config/nothing", b""),
    ("PUT", "/config/nothing", b"x"),
    ("GET", "/stats?format=json&topic=h2", b""),
    ("POST", "/channel/create?topic=h2&channel=c2", b""),
    ("POST", "/pub?topic=h2", b"one"),
    ("GET", "/stats?format=json&topic=h2&channel=c2", b""),
    ("GET", "/stats?format=json&topic=h2&channel=missing", b""),
    ("GET", "/stats?format=json&topic=missing", b""),
    ("GET", "/stats?format=json&topic=h2&include_clients=false&include_mem=false", b""),
    ("GET", "/stats?format=json&topic=missing&include_mem=0", b""),
    ("POST", "/topic/delete?topic=missing", b""),
    ("POST", "/topic/delete", b""),
    ("POST", "/topic/delete?topic=h1", b""),
    ("POST", "/topic/delete?topic=h2", b""),
)

LOOKUPD_HTTP: tuple[tuple[str, str, bytes], ...] = (
    ("GET", "/ping", b""),
    ("POST", "/lookup", b""),
    ("GET", "/info", b""),
    ("GET", "/listlookup", b""),
    ("GET", "/nothing", b""),
    ("GET", "/lookup", b""),
    ("GET", "/lookup?topic=missing", b""),
    ("GET", "/lookup?topic=", b""),
    ("GET", "/lookup?topic=missing&access=w&metainfo=true", b""),
    ("GET", "/channels", b""),
    ("GET", "/channels?topic=missing", b""),
    ("POST", "/topic/create?topic=l1", b""),
    ("POST", "/topic/create", b""),
    ("POST", "/topic/create?topic=a/b", b""),
    ("GET", "/lookup?topic=l1", b""),
    ("POST", "/channel/create?topic=l1&channel=c1", b""),
    ("POST", "/channel/create?topic=l1", b""),
    ("POST", "/channel/create?topic=l1&channel=a/b", b""),
    ("GET", "/lookup?topic=l1", b""),
    ("GET", "/channels?topic=l1", b""),
    ("POST", "/channel/delete?topic=l1&channel=missing", b""),
    ("POST", "/channel/delete?topic=l1", b""),
    ("POST", "/channel/delete?topic=l1&channel=c1", b""),
    ("GET", "/channels?topic=l1", b""),
    ("POST", "/topic/delete", b""),
    ("POST", "/topic/delete?topic=missing", b""),
    ("POST", "/topic/delete?topic=l1", b""),
    ("GET", "/lookup?topic=l1", b""),
    ("POST", "/topic/tombstone", b""),
    ("POST", "/topic/tombstone?topic=l2", b""),
    ("POST", "nsqd/topic/create?topic=l2", b""),
    ("POST", "nsqd/channel/create?topic=l2&channel=c1", b""),
    ("GET", "/lookup?topic=l2", b""),
    ("GET", "/nodes", b""),
    ("POST", "/topic/tombstone?topic=l2&node=elsewhere:1", b""),
    ("GET", "/lookup?topic=l2", b""),
    ("POST", "/topic/tombstone?topic=l2&node=NODE", b""),
    ("GET", "/lookup?topic=l2", b""),
    ("GET", "/nodes", b""),
    ("GET", "/topics", b""),
    ("POST", "nsqd/topic/delete?topic=l2", b""),
    ("GET", "/lookup?topic=l2", b""),
)


def requests(scene: tuple[tuple[str, str, bytes], ...], base: str, nsqd: str) -> list[dict[str, Any]]:
    """Make the requests, one after the other, and return the steps."""
    talk = Talk("http", "", "")
    for method, path, body in scene:
        talk.web = nsqd if path.startswith("nsqd") else base
        talk.http(method, path.removeprefix("nsqd").replace("NODE", nsqd.removeprefix("http://")), body)
        talk.steps[-1]["path"] = path
        if len(body) > 1000:
            talk.steps[-1]["request_body_hex"] = f"{len(body)} x"
    return talk.steps


def exchange(name: str, play: Scene, tcp: str, web: str) -> dict[str, Any]:
    """Play one scene, and return its steps."""
    talk = Talk(name, tcp, web)
    try:
        play(talk)
    finally:
        talk.close()
    return {"name": name, "steps": talk.steps}


def main(tcp: str, web: str, lookupd: str) -> None:
    files = {  # in this order: lookups list all topics of the nsqd
        "lookupd_http": [{"name": "lookupd_http", "steps": requests(LOOKUPD_HTTP, lookupd, web)}],
        "nsqd_http": [{"name": "nsqd_http", "steps": requests(NSQD_HTTP, web, web)}],
        "tcp": [exchange(name, play, tcp, web) for name, play in TCP.items()],
    }
    version = httpx.get(f"{web}/info").json()["version"]
    FOLDER.mkdir(exist_ok=True)
    for file, exchanges in files.items():
        content = {"server": f"nsqio/nsq {version}", "exchanges": exchanges}
        (FOLDER / f"{file}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
