"""Replays recorded exchanges: what the client wrote is written, what the server said must come.

Ids, times, offsets, client numbers and ports are of the recording: ids are
followed from the messages that bring them, the others are not compared.
"""

import json
import re
import struct
import time
from collections.abc import Callable
from typing import Any

from nsq_ha.protocol.compression import DeflateCodec, SnappyCodec
from nsq_ha.protocol.frames import FrameType
from nsq_ha.protocol.server.gotext import byte_list
from tests.devcluster.probes import until
from tests.devcluster.stage import TOPICS, Stage
from tests.devcluster.wire import LIMIT, Closed, Wire
from tests.support.inside import in_cluster, nsqd_of

QUIET = 0.1
"""Seconds of silence that count as silence."""
_OWNERS = re.compile(rb"(\d+) vs \d+")


class Mismatch(AssertionError):  # noqa: N818 - that is what it is
    """The cluster did not do what was recorded."""


class Replay:
    """One exchange, which may have several connections."""

    def __init__(self, stage: Stage, exchange: dict[str, Any], address: str) -> None:
        self.stage = stage
        self.exchange = exchange
        self.address = address
        self.ids: dict[bytes, bytes] = {}
        self.seconds: dict[bytes, bytes] = {}
        self.wires: dict[str, Wire] = {}
        self.extra: list[Wire] = []
        self.paced = False
        self.limit = LIMIT
        self.before: dict[int, Callable[[], None]] = {}
        self._started = time.monotonic()

    def wire(self, connection: str) -> Wire:
        if connection not in self.wires:
            self.wires[connection] = Wire(self.address)
        return self.wires[connection]

    def run(self) -> None:
        """Replay every step.

        Raises:
            Mismatch: Something else came than was recorded.
        """
        self._started = time.monotonic()
        for number, step in enumerate(self.exchange["steps"]):
            if number in self.before:
                self.before[number]()
            wire = self.wire(step.get("conn", ""))
            try:
                getattr(self, f"_{step['dir']}")(wire, step)
            except (Closed, TimeoutError) as error:
                raise Mismatch(f"{step} met {error!r}") from error
        if "published" in self.exchange and not all(wire.is_quiet(QUIET) for wire in self.wires.values()):
            raise Mismatch("more came than was recorded")

    def until_left(self) -> None:
        """Wait until nsqd has seen that the consumer of the exchange's channel left."""
        subscribed = subscription(self.exchange)
        assert subscribed is not None
        topic, channel, partition = subscribed
        leader = self.stage.cluster.leader(topic, partition)
        assert leader is not None
        replica = nsqd_of(self.stage.cluster, leader).replicas[topic, partition]
        until(lambda: not in_cluster(self.stage.cluster, lambda: replica.channels[channel].consumers))

    def close(self) -> None:
        for wire in (*self.wires.values(), *self.extra):
            wire.close()

    # ------------------------------------------------------------ steps

    def _http(self, _wire: Wire, step: dict[str, Any]) -> None:
        if step["method"] != "POST":
            raise Mismatch(f"a request of another server: {step}")
        answer = self.stage.http.post(self.stage.web(self.stage.default) + step["path"])
        if (answer.status_code, answer.text) != (step["status"], step["body_text"]):
            raise Mismatch(f"{answer.status_code} {answer.text} instead of {step}")

    def _c2s(self, wire: Wire, step: dict[str, Any]) -> None:
        data = bytes.fromhex(step["hex"])
        for word in step.get("args", []):
            if word.startswith("hex:"):
                recorded_id = bytes.fromhex(word.removeprefix("hex:"))
                data = data.replace(recorded_id, self._actual_id(recorded_id))
        for recorded, actual in self.seconds.items():
            data = data.replace(b"timestamp:" + recorded, b"timestamp:" + actual)
        if self.paced and "at_s" in step:
            wire.is_quiet(max(0.0, self._started + step["at_s"] - time.monotonic()))
        wire.send(data)

    def _s2c(self, wire: Wire, step: dict[str, Any]) -> None:
        if step.get("raw"):
            # Compressed bytes depend on the library; what they say does not.
            deflate = "raw DEFLATE" in step.get("note", "") or "deflate" in self.exchange["name"]
            wire.compress(DeflateCodec() if deflate else SnappyCodec())
            data = bytes.fromhex(step.get("inflated_hex") or "00000006000000004f4b")
            self._compare(wire.frame(self.limit), (FrameType(data[7]), data[8:]), step)
            return
        data = bytes.fromhex(step["hex"])
        got = wire.frame(self.limit)
        self._compare(got, (FrameType(data[7]), data[8:]), step)

    def _compare(self, got: tuple[FrameType, bytes], recorded: tuple[FrameType, bytes], step: dict[str, Any]) -> None:
        if got[0] is not recorded[0]:
            raise Mismatch(f"{got} instead of {step}")
        if got[0] is FrameType.MESSAGE:
            self._compare_message(got[1], recorded[1], step["fields"])
        elif "fields" in step:
            self._compare_traced(got[1], step["fields"])
        elif self._masked(got[1]) != self._masked(self._translated(recorded[1])):
            raise Mismatch(f"{got[1]!r} instead of {recorded[1]!r}")

    def _compare_message(self, got: bytes, recorded: bytes, fields: dict[str, Any]) -> None:
        self.ids[recorded[10:18]] = got[10:18]
        masked, expected = bytearray(got), bytearray(recorded)
        offset = 26
        if "ext" in fields["layout"]:
            offset += 1 if not expected[26] else 3 + int.from_bytes(expected[27:29], "big")
        for data in (masked, expected):
            data[:8] = data[10:18] = bytes(8)
            if "detail" in fields["layout"]:
                data[offset : offset + 8] = bytes(8)
        if masked != expected:
            raise Mismatch(f"{got!r} instead of {recorded!r}")
        if int.from_bytes(got[10:18], "big") >> 50 != fields["internal_id"] >> 50:
            raise Mismatch("another partition")

    @staticmethod
    def _compare_traced(got: bytes, fields: dict[str, Any]) -> None:
        if len(got) != 30:
            raise Mismatch(f"{got!r} instead of {fields}")
        status, _, trace_id, _, raw_size = struct.unpack(">2sQQQI", got)
        if (status, trace_id, raw_size) != (b"OK", fields["trace_id"], fields["raw_size"]):
            raise Mismatch(f"{got!r} instead of {fields}")

    def _actual_id(self, recorded: bytes) -> bytes:
        """The server looks at the first half only; the other goes as it is."""
        return self.ids.get(recorded[:8], recorded[:8]) + recorded[8:]

    def _translated(self, data: bytes) -> bytes:
        """The recorded text with the ids of now, as bytes and as lists of numbers."""
        for recorded, actual in self.ids.items():
            data = data.replace(recorded, actual)
            data = data.replace(byte_list(recorded)[:-1].encode() + b" ", byte_list(actual)[:-1].encode() + b" ")
        return data

    @staticmethod
    def _masked(data: bytes) -> bytes:
        return _OWNERS.sub(lambda found: b"0 vs N" if found[1] == b"0" else b"N vs N", data)

    def _event(self, wire: Wire, step: dict[str, Any]) -> None:
        event = step["event"]
        if event == "closed_by_server":
            if not wire.ends(self.limit):
                raise Mismatch("the connection stays open")
        elif event in ("no_frame", "stays_open"):
            if not wire.is_quiet(step["waited_s"] if self.paced else QUIET):
                raise Mismatch(f"something came: {step}")
        elif event == "client_closed":
            wire.close()
            self.until_left()
        elif event == "tls_handshake":
            wire.secure()
        elif event != "note":
            raise Mismatch(f"unknown event {event}")


def _compact(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def subscription(exchange: dict[str, Any]) -> tuple[str, str, int] | None:
    """Topic, channel and partition of the first SUB that has all three."""
    for step in exchange["steps"]:
        words = step.get("args", [])
        if step.get("cmd", "").startswith("SUB") and len(words) >= 3 and words[2].isdecimal():
            return words[0], words[1], int(words[2])
    return None


def first_target(exchange: dict[str, Any], default: str = "proto_plain") -> tuple[str, int]:
    """Topic and partition that the first command names, if they are on the stage."""
    for step in exchange["steps"]:
        words = step.get("args", [])
        if words and words[0] in TOPICS:
            number = next((word for word in words[1:] if word.isdecimal()), "0")
            known = int(number) < TOPICS[words[0]]["partitions"]
            return words[0], int(number) if known else 0
    return default, 0


def put_messages(stage: Stage, exchange: dict[str, Any], *, ordered: bool | None = None) -> None:
    """Put what the exchange will deliver on its topic, behind a channel made for it."""
    subscribed = subscription(exchange)
    published = any(step.get("cmd", "").startswith(("PUB", "MPUB")) for step in exchange["steps"])
    messages = {
        step["fields"]["internal_id"]: step["fields"]
        for step in exchange["steps"]
        if step.get("frame") == "message" and "fields" in step
    }
    if subscribed is None or not messages or published:
        return
    topic, channel, partition = subscribed
    if ordered is None:
        ordered = bool(TOPICS[topic].get("ordered"))
    stage.make_channel(topic, partition, channel, ordered=ordered)
    if "published" in exchange:
        for header, body in exchange["published"]:
            stage.publish(topic, partition, body.encode(), 0, None if header is None else _compact(header))
        return
    for _, fields in sorted(messages.items()):
        ext = fields.get("ext_json")
        stage.publish(
            topic,
            partition,
            bytes.fromhex(fields["body_hex"]),
            fields["trace_id"],
            None if ext is None else ext.encode(),
        )
