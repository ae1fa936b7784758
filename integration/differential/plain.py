"""A cluster of upstream's servers, used with raw bytes: every command goes to each of its first two nsqds.

Both get what is published at the same moment, so nsqds with one node id give equal ids. Connection 0 reads the first
one and connection 1 the second one, so that deliveries are no matter of chance. The channels are the same in all cases,
since an nsqd looks for timeouts in a new one only after up to 5 s.
"""

from __future__ import annotations

import json
import struct
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from integration.differential.commands import CHANNELS, CONNECTIONS
from integration.differential.performing import Performer
from integration.differential.side import MSG_TIMEOUT_MS, Channel, Side
from tests.devcluster.wire import Wire, connect, identify

if TYPE_CHECKING:
    import httpx

    from integration.differential import commands
    from integration.differential.commands import Kind
    from integration.differential.observing import Event
    from integration.differential.side import Held, Reader

_REFRESH: Final = 5.5
"""Seconds after which an nsqd looks for timeouts in a new channel."""
_APART: Final = 1_000_000
"""Added to the numbers of messages for the second nsqd, so that bodies differ."""
_COUNTED: Final = ("depth", "backend_depth", "in_flight_count", "deferred_count", "client_count", "paused")
_GROWING: Final = ("message_count", "requeue_count", "timeout_count")


class PlainSide(Side):
    """One plain cluster and one topic on it."""

    def __init__(self, name: str, lookupd: str) -> None:
        super().__init__(name, lookupd)
        nodes = self.http.get(f"{lookupd}/nodes").json()["producers"]
        found = sorted((node["broadcast_address"], node["tcp_port"], node["http_port"]) for node in nodes)
        if len(found) < CONNECTIONS:
            self.http.close()
            raise RuntimeError(f"{name}: {lookupd} lists {len(found)} nsqds, but {CONNECTIONS} are needed")
        self.tcp = [f"{host}:{tcp}" for host, tcp, _ in found[:CONNECTIONS]]
        self.urls = [f"http://{host}:{port}" for host, _, port in found[:CONNECTIONS]]
        self.url = self.urls[0]
        self.node_ids: set[int] = set()
        self.publishers: list[Wire] = []
        self._counts: list[dict[str, dict[str, int]]] = []

    def make(self, kind: Kind, replicas: int) -> str:
        """Make a topic, and the channels of all cases."""
        topic = f"diff_{kind.name}_{uuid.uuid4().hex[:8]}"
        for url in self.urls:
            self.http.post(f"{url}/topic/create", params={"topic": topic}).raise_for_status()
            for number in range(CHANNELS):
                params = {"topic": topic, "channel": f"c{number}"}
                self.http.post(f"{url}/channel/create", params=params).raise_for_status()
        return topic

    def drop(self, topic: str) -> None:
        """Delete a topic."""
        for url in (*self.urls, self.lookupd):
            self.http.post(f"{url}/topic/delete", params={"topic": topic})

    def use(self, topic: str, kind: Kind) -> None:
        """Switch to a topic once its channels are looked after."""
        self.leave_all()
        self.forget_publisher()
        self.topic, self.kind = topic, kind
        time.sleep(_REFRESH)  # nothing shows when a channel is looked after

    def begin(self, run: str, count: int) -> None:
        """Start a case with empty channels that nobody reads."""
        self.run = run
        self.leave_all()
        self.channels.clear()
        for number in range(CHANNELS):
            for path in ("unpause", "empty"):
                for answer in self.post_each(f"/channel/{path}", channel=f"c{number}"):
                    answer.raise_for_status()
        self._counts = [
            {name: {key: channel[key] for key in _GROWING} for name, channel in each.items()} for each in self._stats()
        ]

    def ends(self) -> tuple[int, int]:
        """Positions mean nothing here."""
        return 0, 0

    def settle(self, limit: float = 20.0) -> bool:
        """Everything can be read at once."""
        return True

    def is_shared(self) -> bool:
        """Each connection reads an nsqd of its own."""
        return False

    def post_each(self, path: str, **query: str) -> list[httpx.Response]:
        """POST to both nsqds."""
        return [self.http.post(url + path, params={"topic": self.topic, **query}) for url in self.urls]

    def forget_publisher(self) -> None:
        """Close the connections that publish."""
        for wire in self.publishers:
            wire.close()
        self.publishers = []

    def publish(self, word: str, numbers: list[int]) -> list[bytes]:
        """Publish to both nsqds at the same moment; return their answers."""
        self.publishers = self.publishers or [connect(address) for address in self.tcp]
        for nsqd, wire in enumerate(self.publishers):
            wire.send(_publishing(word, self.topic, [b"m%d" % (number + nsqd * _APART) for number in numbers]))
        return [wire.answer() for wire in self.publishers]

    def subscribe(self, number: int, word: str, channel: str, start: str | None) -> str:
        """Subscribe at the connection's nsqd; return the answer."""
        former = self.readers.pop(number, None)
        if former is not None:
            former.close()
        # Messages are gathered for less than the time after which a side counts as quiet.
        who = identify(heartbeat_interval=60000, msg_timeout=MSG_TIMEOUT_MS, output_buffer_timeout=50)
        wire = connect(self.tcp[number], who)
        wire.answer()
        wire.send(f"{word} {self.topic} {channel}\n".encode())
        answer = wire.answer().decode("utf-8", "replace")
        if answer == "OK":
            self.read(number, wire, channel, extended=False, detail=False)
        else:
            wire.close()
        return answer

    def is_copy(self, held: Held, number: int, message_id: bytes) -> bool:
        """Return whether it is another delivery of a message that is held: an id means nothing at another nsqd."""
        return (held.connection, held.message_id) == (number, message_id)

    def _message(self, reader: Reader, data: bytes, at: float) -> Event:
        self.node_ids.add(int(data[10:26], 16) >> 12 & 1023)
        return super()._message(reader, data, at)

    def counted(self) -> list[dict[str, dict[str, Any]]]:
        """Return the numbers of the channels, by nsqd and name; those that only grow count from the case's start."""
        return [
            {
                name: {key: channel[key] for key in _COUNTED}
                | {key: channel[key] - before[name][key] for key in _GROWING}
                for name, channel in sorted(each.items())
            }
            for each, before in zip(self._stats(), self._counts, strict=True)
        ]

    def _stats(self) -> list[dict[str, dict[str, Any]]]:
        answers = [self.http.get(f"{url}/stats?format=json&topic={self.topic}").json() for url in self.urls]
        return [{each["channel_name"]: each for each in answer["topics"][0]["channels"]} for answer in answers]


class PlainPerformer(Performer):
    """Performs a case's commands on a plain side."""

    def __init__(self, side: PlainSide) -> None:
        super().__init__(side)
        self._plain = side

    def channel(self, number: int) -> str:
        """Return the name of a channel."""
        return f"c{number}"

    def publish(self, command: commands.Publish) -> str:
        """Publish to both nsqds; return the answers."""
        count = command.count if command.word == "MPUB" else 1
        numbers = [self._number + each for each in range(1, count + 1)]
        self._number += count
        return str(self._plain.publish(command.word, numbers))

    def operate(self, command: commands.Operate) -> str:
        """Ask both nsqds to do something to a channel."""
        answers = self._plain.post_each(command.path, channel=self.channel(command.channel))
        return str([f"{answer.status_code} {answer.text}" for answer in answers])

    def stats(self, _command: commands.Stats) -> str:
        """Ask for numbers, and tell whether the nsqds have one node id."""
        return json.dumps({"node ids": len(self._plain.node_ids), "nsqds": self._plain.counted()})

    def lookup(self, _command: commands.Lookup) -> str:
        """Ask where the topic is."""
        answer = self._plain.http.get(f"{self._plain.lookupd}/lookup", params={"topic": self._plain.topic})
        found = answer.json()
        return f"{answer.status_code} channels {sorted(found['channels'])}, {len(found['producers'])} nsqds"

    def last_finished(self, known: Channel, here: list[int]) -> tuple[int, bytes] | None:
        """Return the last message that was finished at an nsqd where a connection reads its channel."""
        return next(((number, each) for number, each in reversed(known.finished) if number in here), None)


def _publishing(word: str, topic: str, bodies: list[bytes]) -> bytes:
    """Return a publish command of an upstream nsqd as bytes."""
    if word == "MPUB":
        content = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        return f"MPUB {topic}\n".encode() + struct.pack(">i", len(content)) + content
    delay = " 400" if word == "DPUB" else ""
    return f"{word} {topic}{delay}\n".encode() + struct.pack(">i", len(bodies[0])) + bodies[0]
