"""One cluster, used with raw bytes and plain HTTP, without the client under test."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
import uuid
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import httpx

from integration.differential.observing import Event
from tests.devcluster.wire import Closed, Wire, connect, identify

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.differential.commands import Kind
    from nsq_ha.protocol.frames import FrameType

QUIET: Final = 0.2
"""Seconds without news after which a side counts as quiet; more than nsqd's 50 ms of buffering."""
MSG_TIMEOUT_MS: Final = 1000
READY_LIMIT: Final = 60.0
STABLE_LIMIT: Final = 120.0
_LOOK: Final = 0.05
"""Seconds between two questions."""
_V1: Final = {"Accept": "application/vnd.nsq; version=1.0"}


class UnstableError(Exception):
    """The cluster permits no move."""


@dataclass
class Held:
    """A delivered message without an answer so far.

    Attributes:
        connection: Number of the connection that delivered it last.
        message_id: The 16 bytes.
        body: Its text.
    """

    connection: int
    message_id: bytes
    body: str


class Reader:
    """One subscribed connection, whose frames a thread takes as they arrive: what a command waits for delays no time.

    Args:
        number: Of the connection.
        wire: The socket.
        channel: Name of its channel.
        extended: Its messages carry a header part.
        detail: Its messages carry offset and size.
        arrived: What takes each frame, with its time; None for the end.
    """

    def __init__(
        self, number: int, wire: Wire, channel: str, *, extended: bool, detail: bool, arrived: SimpleQueue[Arrival]
    ) -> None:
        self.number = number
        self.wire = wire
        self.channel = channel
        self.extended = extended
        self.detail = detail
        self._arrived = arrived
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self.wire.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.wire.close()

    def _read(self) -> None:
        while True:
            try:
                frame = self.wire.frame()
            except TimeoutError:
                continue
            except (Closed, OSError):
                self._arrived.put(Arrival(time.monotonic(), self, None))
                return
            self._arrived.put(Arrival(time.monotonic(), self, frame))


class Arrival(NamedTuple):
    """What came over a connection, and when; no frame is the end."""

    at: float
    reader: Reader
    frame: tuple[FrameType, bytes] | None


@dataclass
class Channel:
    """The case's knowledge of one channel.

    Attributes:
        held: Messages held, the oldest first.
        finished: Ids that were finished, each with the number of its connection.
    """

    held: list[Held] = field(default_factory=list)
    finished: list[tuple[int, bytes]] = field(default_factory=list)


class Side:
    """One cluster and one topic on it.

    Args:
        name: ``real`` or ``embedded``.
        lookupd: URL of an nsqlookupd.
    """

    def __init__(self, name: str, lookupd: str) -> None:
        self.name = name
        self.http = httpx.Client(timeout=20.0, trust_env=False, headers=_V1)
        self.lookupd = lookupd
        self.topic = ""
        self.kind: Kind | None = None
        self.address = self.url = ""
        self.run = ""
        self.base = (0, 0)
        self.last_id = 0
        self.readers: dict[int, Reader] = {}
        self.channels: dict[str, Channel] = {}
        self.publisher: Wire | None = None
        self.quiet = QUIET
        self._arrived: SimpleQueue[Arrival] = SimpleQueue()
        self._was_shared = False

    def close(self) -> None:
        """End all connections."""
        self.leave_all()
        self.forget_publisher()
        self.http.close()

    def forget_publisher(self) -> None:
        """Close the connection that publishes."""
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None

    # ------------------------------------------------------------ topics

    def make(self, kind: Kind, replicas: int) -> str:
        """Make a topic of one partition and wait until it takes messages."""
        name = f"diff_{kind.name}_{uuid.uuid4().hex[:8]}"
        params = {
            "topic": name,
            "partition_num": "1",
            "replicator": str(replicas),
            "syncdisk": str(kind.sync_every),
            "orderedmulti": str(kind.ordered).lower(),
            "extend": str(kind.extended).lower(),
        }
        answer = self.http.post(f"{self.leading()}/topic/create", params=params)
        if answer.status_code != 200:
            raise RuntimeError(f"{self.name}: /topic/create of {name} answered {answer.status_code} {answer.text}")
        return name

    def leading(self) -> str:
        """URL of the nsqlookupd that leads."""
        leader = self.http.get(f"{self.lookupd}/listlookup").json()["lookupdleader"]
        return f"http://{leader['NodeIP']}:{leader['HttpPort']}"

    def drop(self, topic: str) -> None:
        """Delete a topic."""
        self.http.post(f"{self.leading()}/topic/delete", params={"topic": topic, "partition": "**"})

    def use(self, topic: str, kind: Kind) -> None:
        """Switch to a topic once its leader stores messages."""
        self.topic, self.kind = topic, kind
        self.leave_all()
        self.forget_publisher()
        if not _holds_within(READY_LIMIT, lambda: self._found_leader() and self._probe().status_code == 200):
            raise TimeoutError(f"{self.name}: {topic} took no message in {READY_LIMIT:g} s")

    def _found_leader(self) -> bool:
        answer = self.http.get(f"{self.lookupd}/lookup", params={"topic": self.topic, "access": "w"})
        peer = (answer.json().get("partitions") or {}).get("0")
        if peer is None:
            return False
        self.address = f"{peer['broadcast_address']}:{peer['tcp_port']}"
        self.url = f"http://{peer['broadcast_address']}:{peer['http_port']}"
        return True

    def _probe(self) -> httpx.Response:
        return self.post("/pub", b"probe")

    def begin(self, run: str, count: int) -> None:
        """Start a case with new channels; positions count from here, after ``count`` messages."""
        self.run = run
        self.leave_all()
        for channel in self.stats()["channels"]:  # a channel that waits for messages makes flushes come sooner
            self.post("/channel/delete", channel=channel["channel_name"])
        self.channels.clear()
        self._was_shared = False
        for _ in range(count - self.ends()[0]):
            self._probe()
        if not self.settle():
            raise TimeoutError(f"{self.name}: {self.topic} was not flushed")
        self.base = self.ends()
        last = self.get("/message/get", search_mode="count", search_pos=str(self.base[0]))
        self.last_id = last.json()["id"]

    def leave_all(self) -> None:
        """Close the readers."""
        for reader in self.readers.values():
            reader.close()
        self.readers.clear()

    # ------------------------------------------------------------ HTTP

    def post(self, path: str, body: bytes = b"", **query: str) -> httpx.Response:
        """POST to the leader's nsqd."""
        params = {"topic": self.topic, "partition": "0", **query}
        return self.http.post(self.url + path, params=params, content=body)

    def get(self, path: str, **query: str) -> httpx.Response:
        """GET from the leader's nsqd."""
        return self.http.get(self.url + path, params={"topic": self.topic, "partition": "0", **query})

    def version(self) -> str:
        """Version of the nsqd that is used now."""
        return str(self.http.get(f"{self.url}/info").json()["version"])

    def stats(self) -> dict[str, Any]:
        """Numbers of the topic."""
        topics: list[dict[str, Any]] = self.get("/stats", format="json").json()["topics"]
        return next(topic for topic in topics if topic["topic_partition"] == "0")

    def ends(self) -> tuple[int, int]:
        """Messages and bytes of the partition."""
        stats = self.stats()
        return stats["message_count"], stats["backend_depth"]

    def settle(self, limit: float = 20.0) -> bool:
        """Wait until all acknowledged messages can be read."""
        count = self.ends()[0]

        def is_readable() -> bool:
            found = self.get("/message/get", search_mode="count", search_pos=str(count))
            return found.status_code == 200 and bool(found.json()["queue_cnt_index"] == count)

        return _holds_within(limit, is_readable)

    # ------------------------------------------------------------ TCP

    def publishing(self) -> Wire:
        """The connection that publishes."""
        if self.publisher is None:
            self.publisher = connect(self.address, identify(heartbeat_interval=60000))
            self.publisher.answer()
        return self.publisher

    def subscribe(self, number: int, word: str, channel: str, start: str | None) -> str:
        """Subscribe on a new connection; return the answer."""
        former = self.readers.pop(number, None)
        if former is not None:
            former.close()
        kind = self.kind
        extended = kind is not None and kind.extended
        who = identify(heartbeat_interval=60000, msg_timeout=MSG_TIMEOUT_MS, extend_support=extended)
        wire = connect(self.address, who)
        wire.answer()
        where = "" if start is None else f" {start}"
        wire.send(f"{word} {self.topic} {channel} 0{where}\n".encode())
        answer = wire.answer()
        if answer == b"OK":
            self.read(number, wire, channel, extended=extended, detail=word != "SUB")
        else:
            wire.close()
        return answer.decode("utf-8", "replace")

    def read(self, number: int, wire: Wire, channel: str, *, extended: bool, detail: bool) -> None:
        """Read from a connection that is subscribed."""
        self.readers[number] = Reader(number, wire, channel, extended=extended, detail=detail, arrived=self._arrived)

    def listen(self, began: float) -> tuple[Event, ...]:
        """Take what came over all connections until nothing comes for a while; between two there is no order."""
        events: list[Event] = []
        while True:
            try:
                at, reader, frame = self._arrived.get(timeout=self.quiet)
            except Empty:
                return tuple(sorted(events, key=lambda event: event.connection))
            if self.readers.get(reader.number) is reader:
                events.append(self._event(reader, frame, at - began))

    def _event(self, reader: Reader, frame: tuple[FrameType, bytes] | None, at: float) -> Event:
        if frame is None:
            reader.close()
            del self.readers[reader.number]
            return Event(reader.number, "closed", at=at)
        kind, data = frame
        if kind.name == "MESSAGE":
            return self._message(reader, data, at)
        return Event(reader.number, kind.name.lower(), _without_ids(data), at=at)

    def _message(self, reader: Reader, data: bytes, at: float) -> Event:
        number, rest = reader.number, data[26:]
        if reader.extended:
            rest = rest[1:] if not rest[0] else rest[3 + struct.unpack_from(">H", rest, 1)[0] :]
        body = (rest[12:] if reader.detail else rest).decode()
        held = self.channel(reader.channel).held
        held[:] = [one for one in held if not self.is_copy(one, number, data[10:26])]
        held.append(Held(number, data[10:26], body))
        return Event(number, "message", body, int.from_bytes(data[8:10], "big"), at)

    def is_copy(self, held: Held, number: int, message_id: bytes) -> bool:
        """Return whether what connection ``number`` got is another delivery of a message that is held."""
        return held.message_id[:8] == message_id[:8]

    def channel(self, name: str) -> Channel:
        """Return what is known about a channel."""
        return self.channels.setdefault(name, Channel())

    def is_shared(self) -> bool:
        """Return whether several connections have read one channel in this case; deliveries are random then."""
        names = [reader.channel for reader in self.readers.values()]
        self._was_shared = self._was_shared or len(set(names)) < len(names)
        return self._was_shared

    # ------------------------------------------------------------ leaders

    def move(self) -> str:
        """Move the leader to another in-sync replica and wait until it leads; return what the nsqlookupd said.

        The readers leave after it: when their connections end depends on the moment.
        """
        stats = self.get("/coordinator/stats").json()["topic_coord_stats"]
        members = [member["node_id"] for member in stats[0]["isr_stats"]]
        former = next(member for member in members if member.split(":")[2] == self.address.rpartition(":")[2])
        to = next((member for member in members if member != former), former)
        query = {"topic": self.topic, "partition": "0", "move_leader": "true", "move_from": former, "move_to": to}
        answer = self.http.post(f"{self.leading()}/topic/partition/move", params=query)
        if answer.status_code == 200:
            self.leave_all()
            self._renew(former)
        return f"{answer.status_code} {answer.text}"

    def wait_stable(self) -> None:
        """Wait until the cluster permits moves.

        Raises:
            UnstableError: It does not within two minutes.
        """
        if not _holds_within(STABLE_LIMIT, self._is_stable):
            raise UnstableError(f"{self.name}: the cluster is unstable after {STABLE_LIMIT:g} s")

    def _is_stable(self) -> bool:
        return bool(self.http.get(f"{self.leading()}/cluster/stats").json()["stable"])

    def _renew(self, former: str) -> None:
        self.forget_publisher()
        port = former.split(":")[2]
        if not _holds_within(READY_LIMIT, lambda: self._found_leader() and self.address.rpartition(":")[2] != port):
            raise TimeoutError(f"{self.name}: {self.topic} has no new leader after {READY_LIMIT:g} s")


def _holds_within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Ask until ``condition`` holds; return False if it does not within the limit."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK)  # between two questions to a cluster that announces nothing
    return True


def _without_ids(data: bytes) -> str:
    """Return an error's text without ids and numbers, which differ between clusters."""
    code, _, text = data.partition(b" ")
    if code.endswith(b"_FAILED") and b"failed" in text:
        text = text[text.rindex(b"failed") :]
    words = json.dumps(text.decode("utf-8", "replace"))
    owners = " ".join("N" if word.strip('"').isdecimal() else word for word in words.split(" "))
    return f"{code.decode()} {owners}"
