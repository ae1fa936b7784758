"""Perform commands on one side and observe the results."""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any, Final

from integration.differential import commands
from integration.differential.observing import Observation

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from integration.differential.side import Channel, Held, Side

_UNKNOWN: Final = bytes(15) + b"\x07"
_PREFIXES: Final = {"PUB": b"", "PUB_TRACE": struct.pack(">Q", 77), "PUB_EXT": struct.pack(">H", 7) + b'{"a":1}'}
_COUNTED: Final = ("depth", "backend_depth", "in_flight_count", "deferred_count", "requeue_count", "timeout_count")


class Performer:
    """Performs a case's commands on one side."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._number = 0
        self._first_id: int | None = None
        self._began = time.monotonic()

    def perform(self, command: commands.Command) -> Observation:
        """Perform one command and read until it is quiet."""
        answer: str = getattr(self, _ACTS[type(command)])(command)
        return Observation(answer, self._side.listen(self._began), self._side.is_shared(), self._now())

    def _now(self) -> float:
        return time.monotonic() - self._began

    def channel(self, number: int) -> str:
        """Return the name of a channel of this case."""
        return f"c{number}_{self._side.run}"

    # ------------------------------------------------------------ commands

    def publish(self, command: commands.Publish) -> str:
        """Publish; return the answer."""
        side = self._side
        bodies = []
        for _ in range(command.count if command.word.startswith("M") else 1):
            self._number += 1
            bodies.append(f"m{self._number}".encode())
        wire = side.publishing()
        wire.send(publishing(command.word, side.topic, bodies))
        try:
            answer = wire.answer()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer to compare
            wire.close()
            side.publisher = None
            return type(error).__name__
        if len(answer) != 30:
            return self._nameless(answer.decode("utf-8", "replace"))
        _, internal_id, trace_id, offset, size = struct.unpack(">2sQQQI", answer)
        # From the first one of the case: a node leaves out ids when it becomes leader.
        self._first_id = internal_id if self._first_id is None else self._first_id
        number = internal_id - self._first_id
        return f"OK message {number}, trace id {trace_id}, offset {offset - side.base[1]}, size {size}"

    def subscribe(self, command: commands.Subscribe) -> str:
        """Subscribe and send RDY."""
        side = self._side
        start = None if command.start is None else self._absolute(command.start)
        answer = side.subscribe(command.connection, command.word, self.channel(command.channel), start)
        if answer == "OK":
            side.readers[command.connection].wire.send(b"RDY %d\n" % command.ready)
        return self._nameless(answer)

    def ready(self, command: commands.Ready) -> str:
        """Send RDY."""
        reader = self._side.readers.get(command.connection)
        if reader is None:
            return "not subscribed"
        reader.wire.send(b"RDY %d\n" % command.count)
        return "granted"

    def answer(self, command: commands.Answer) -> str:
        """Answer a message over its connection."""
        side = self._side
        name = self.channel(command.channel)
        held = self._chosen(command)
        if held is None:
            return "no such message"
        number, message_id, what = held
        reader = side.readers.get(number)
        if reader is None:
            return "its connection is gone"
        delay = b" %d" % command.delay_ms if command.word == "REQ" else b""
        reader.wire.send(command.word.encode() + b" " + message_id + delay + b"\n")
        known = side.channel(name)
        if command.word != "TOUCH":
            known.held = [one for one in known.held if (one.connection, one.message_id) != (number, message_id)]
        if command.word == "FIN":
            known.finished.append((number, message_id))
        return f"{command.word} {what}"

    def _chosen(self, command: commands.Answer) -> tuple[int, bytes, str] | None:
        side = self._side
        name = self.channel(command.channel)
        known = side.channel(name)
        here = [number for number, reader in side.readers.items() if reader.channel == name]
        if command.which == "unknown":
            return (here[0], _UNKNOWN, "unknown") if here else None
        if command.which == "finished":
            finished = self.last_finished(known, here)
            return None if finished is None else (*finished, "finished")
        held: list[Held] = known.held
        if not held:
            return None
        # By its body, not by its arrival, which is random with two readers.
        one = (min if command.which == "oldest" else max)(held, key=lambda held: int(held.body[1:]))
        return one.connection, one.message_id, one.body

    def last_finished(self, known: Channel, here: list[int]) -> tuple[int, bytes] | None:
        """Return the last message that was finished, and a connection that reads its channel."""
        return (here[0], known.finished[-1][1]) if here and known.finished else None

    def leave(self, command: commands.Leave) -> str:
        """Leave by CLS, or close the connection."""
        reader = self._side.readers.get(command.connection)
        if reader is None:
            return "not subscribed"
        if command.word == "CLS":
            reader.wire.send(b"CLS\n")
        else:
            reader.close()
            del self._side.readers[command.connection]
        return "left"

    def operate(self, command: commands.Operate) -> str:
        """Ask nsqd to do something to a channel."""
        query = {"order": command.query} if command.query else {}
        body = self._absolute(command.body).encode()
        answer = self._side.post(command.path, body, channel=self.channel(command.channel), **query)
        return f"{answer.status_code} {self._nameless(answer.text)}"

    def find(self, command: commands.Find) -> str:
        """Ask for a message."""
        count, offset = self._side.base
        wanted = {
            "count": count + command.position,
            "virtual_offset": offset + 32 * command.position,
            "id": self._side.last_id + command.position,
        }[command.mode]
        answer = self._side.get("/message/get", search_mode=command.mode, search_pos=str(wanted))
        return self._row(answer)

    def _row(self, answer: httpx.Response) -> str:
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        row: dict[str, Any] = answer.json()
        count, offset = self._side.base
        if row["queue_cnt_index"] == 1:
            return "200 the first message of the queue"
        place, bytes_ = row["queue_cnt_index"] - count, row["offset"] - offset
        return f"200 {row['body'] if place > 0 else 'an earlier one'}, number {place}, offset {bytes_}"

    def stats(self, _command: commands.Stats) -> str:
        """Ask for numbers."""
        stats = self._side.stats()
        count, offset = self._side.base
        mine = {
            channel["channel_name"].split("_")[0]: {
                **{name: channel[name] for name in _COUNTED},
                "message_count": channel["message_count"] - count,
                "clients": channel["client_num"],
                "paused": channel["paused"],
                "skipped": channel["skipped"],
            }
            for channel in stats["channels"]
            if channel["channel_name"].endswith(self._side.run)
        }
        whole = {"message_count": stats["message_count"] - count, "backend_depth": stats["backend_depth"] - offset}
        return json.dumps({**whole, "channels": dict(sorted(mine.items()))})

    def lookup(self, command: commands.Lookup) -> str:
        """Ask where the topic is."""
        side = self._side
        query = {"topic": side.topic, "access": command.access, "metainfo": "true"}
        answer = side.http.get(f"{side.lookupd}/lookup", params=query)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        found = answer.json()
        return f"200 partitions {sorted(found['partitions'] or {})}, meta {json.dumps(found['meta'], sort_keys=True)}"

    def settle(self, _command: commands.Settle) -> str:
        """Wait for the flush."""
        return "all can be read" if self._side.settle() else "still not all can be read"

    def wait(self, command: commands.Wait) -> str:
        """Let time pass."""
        time.sleep(command.seconds)  # the command itself: time passes
        return "waited"

    def move(self, _command: commands.Move) -> str:
        """Move the leader to the other replica."""
        return self._side.move()

    def _absolute(self, start: str) -> str:
        """Convert a start position of the case to one of the queue."""
        kind, _, text = start.partition(":")
        base = {"msgcount": self._side.base[0], "virtual_queue": self._side.base[1]}.get(kind)
        return start if base is None or not text.isdecimal() else f"{kind}:{base + int(text)}"

    def _nameless(self, text: str) -> str:
        return text.replace(self._side.topic, "TOPIC").replace(self._side.run, "RUN")


def publishing(word: str, topic: str, bodies: list[bytes]) -> bytes:
    """Return a publish command as bytes."""
    parts = [_PREFIXES[word.removeprefix("M")] + body for body in bodies]
    if not word.startswith("M"):
        (content,) = parts
    else:
        content = struct.pack(">i", len(parts)) + b"".join(struct.pack(">i", len(part)) + part for part in parts)
    return f"{word} {topic} 0\n".encode() + struct.pack(">i", len(content)) + content


_ACTS: Final[Mapping[type[object], str]] = {
    commands.Publish: "publish",
    commands.Subscribe: "subscribe",
    commands.Ready: "ready",
    commands.Answer: "answer",
    commands.Leave: "leave",
    commands.Operate: "operate",
    commands.Find: "find",
    commands.Stats: "stats",
    commands.Lookup: "lookup",
    commands.Settle: "settle",
    commands.Wait: "wait",
    commands.Move: "move",
}
