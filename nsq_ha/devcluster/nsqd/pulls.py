"""The server's side of ``spark.pull.calls``: decode the requests, encode the answers and the messages in them.

Go's ``gob`` defines a type immediately before its first value, in the middle of other values, and numbers the types by
their use. The answers here are the same bytes as those of a server whose process defined no other types before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nsq_ha.spark.pull import gob
from nsq_ha.spark.pull.calls import (
    ANSWER,
    CALL,
    ENTRY,
    EXT_MARK,
    HEAD_BYTES,
    MAX_BYTES,
    METHOD,
    PREFACE,
    REPLY,
    REQUEST,
    Pull,
)

MAX_REQUEST: Final = 64 * 1024
"""Bytes of a gob message from a client; a request has some hundred."""

_STORED_HEAD: Final = struct.Struct(">IqHQQ")
_JSON_EXT: Final = 4

_WIRE, _REPLY, _ANSWER, _ENTRY, _LOGS, _DATA = 64, 65, 66, 67, 68, 69
_WIRE_TYPE: Final = gob.Struct("wireResponse", (("ID", gob.UINT), ("Response", gob.INTERFACE), ("Error", gob.TEXT)))
_REPLY_TYPE: Final = gob.Struct("dispatcherResponse", (("Response", gob.INTERFACE), ("Error", gob.TEXT)))
_ANSWER_TYPE: Final = gob.Struct("RpcPullCommitLogsRsp", (("Logs", _LOGS), ("DataList", _DATA)))
_LOGS_TYPE: Final = gob.Slice("[]consistence.CommitLogData", _ENTRY)
_DATA_TYPE: Final = gob.Slice("[][]uint8", gob.BYTES)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a partition's log.

    Attributes:
        first_id: Internal id of its first message.
        last_id: Internal id of its last message.
        offset: Where it begins in the partition's queue.
        number: Number of its first message, from 0.
        count: Number of its messages.
        data: Its messages, as they are stored.
    """

    first_id: int
    last_id: int
    offset: int
    number: int
    count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Called:
    """A request.

    Attributes:
        number: Its number on the connection.
        pull: What it asks for. None if it calls something else.
        method: What it calls.
    """

    number: int
    pull: Pull | None
    method: str


class _IncompleteError(Exception):
    """The rest of a request is still to come."""


class CallReader:
    """Decodes the requests of one connection."""

    def __init__(self) -> None:
        self._greeted = False
        self._buffer = bytearray()
        self._messages: list[memoryview] = []
        self._taken = 0
        self._decoder = gob.Decoder(self._next)

    def feed(self, data: bytes) -> Iterator[Called]:
        """Take bytes; return the requests that are complete, up to the first that is wrong.

        Raises:
            RemoteProtocolError: What follows is no request, or a compressed one; close the connection.
        """
        self._buffer += data
        if not self._greeted and self._buffer:
            if self._buffer[:1] != PREFACE:
                raise gob.wrong("compression, which is not supported here")
            del self._buffer[:1]
            self._greeted = True
        while True:
            known = dict(self._decoder.types)
            self._taken = 0
            try:
                wire = self._decoder.read()
            except _IncompleteError:
                # Begin again with more: the value was cut by a definition.
                self._decoder = gob.Decoder(self._next)
                self._decoder.types.update(known)
                return
            self._messages.clear()
            yield _called(wire)

    def _next(self) -> memoryview:
        """Return the next message of this request."""
        if self._taken == len(self._messages):
            self._messages.append(self._cut())
        self._taken += 1
        return self._messages[self._taken - 1]

    def _cut(self) -> memoryview:
        """Move a whole message out of the buffer."""
        buffer = self._buffer
        # As gob.decode_uint does, but a cut length is no error here.
        if not buffer or (buffer[0] >= 128 and len(buffer) < 257 - buffer[0]):
            raise _IncompleteError
        size, start = gob.decode_uint(bytes(buffer[:9]), 0)
        if size > MAX_REQUEST:
            raise gob.wrong(f"a request of {size} bytes")
        if len(buffer) < start + size:
            raise _IncompleteError
        message = memoryview(bytes(buffer[start : start + size]))
        del buffer[: start + size]
        return message


def _called(wire: dict[str, object]) -> Called:
    number, call = wire.get("ID", 0), wire.get("Request")
    if not isinstance(call, gob.Boxed) or call.name != CALL or not isinstance(number, int):
        raise gob.wrong("no call")
    method, asked = str(call.value.get("Name", "")), call.value.get("Request")
    if method != METHOD or not isinstance(asked, gob.Boxed) or asked.name != REQUEST:
        return Called(number, None, method)
    value = asked.value
    topic = value.get("RpcTopicData", {})
    # A client defines the types of its request itself.
    name, *numbers = (
        topic.get("TopicName", "") if isinstance(topic, dict) else None,
        topic.get("TopicPartition", 0) if isinstance(topic, dict) else None,
        value.get("LogCountNumIndex", 0),
        value.get("LogMaxNum", 0),
    )
    if not isinstance(name, str) or not all(isinstance(each, int) for each in numbers):
        raise gob.wrong("a call with other types")
    pull = Pull(name, *numbers)
    return Called(number, pull if value.get("UseCountIndex") else None, method)


class AnswerWriter:
    """Encodes the answers of one connection, with the definitions of types that the client does not know yet."""

    def __init__(self) -> None:
        self._defined: set[int] = set()

    def refuse(self, number: int, text: str) -> bytes:
        """Return the answer with an error to request ``number``."""
        return self._answer(number, [gob.encode_message(gob.encode_fields([(1, gob.encode_text(text))]))])

    def answer(self, number: int, entries: Sequence[StoredEntry]) -> bytes:
        """Return the answer to request ``number``."""
        fields = []
        if entries:
            fields = [
                (0, gob.encode_uint(len(entries)) + b"".join(map(_entry, entries))),
                (1, gob.encode_uint(len(entries)) + b"".join(gob.encode_bytes(entry.data) for entry in entries)),
            ]
        head = b"\x01" + gob.encode_text(ANSWER)
        last = gob.encode_int(_ANSWER) + gob.encode_message(gob.encode_fields(fields)) + b"\0"
        if _ANSWER in self._defined:
            return self._answer(number, [gob.encode_message(head, last)])
        self._defined.add(_ANSWER)
        return self._answer(
            number,
            [
                gob.encode_message(head, gob.encode_definition(_ANSWER, _ANSWER_TYPE)),
                gob.encode_message(gob.encode_definition(_LOGS, _LOGS_TYPE)),
                gob.encode_message(gob.encode_definition(_ENTRY, ENTRY)),
                gob.encode_message(gob.encode_definition(_DATA, _DATA_TYPE)),
                gob.encode_message(last),
            ],
        )

    def _answer(self, number: int, reply: Sequence[bytes]) -> bytes:
        wire = gob.encode_int(_WIRE) + b"\x01" + gob.encode_uint(number) + b"\x01" + gob.encode_text(REPLY)
        value = gob.encode_int(_REPLY) + b"".join(reply) + b"\0"
        if self._defined & {_WIRE}:
            return gob.encode_message(wire, value)
        self._defined.add(_WIRE)
        return b"".join(
            (
                gob.encode_message(gob.encode_definition(_WIRE, _WIRE_TYPE)),
                gob.encode_message(wire, gob.encode_definition(_REPLY, _REPLY_TYPE)),
                gob.encode_message(value),
            )
        )


def within_limits(sizes: Sequence[int]) -> int:
    """Return how many of the entries with these sizes one answer may have."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > MAX_BYTES:
            return count
    return len(sizes)


def _entry(entry: StoredEntry) -> bytes:
    values = (entry.first_id, 1, entry.last_id, entry.offset, len(entry.data), entry.number, entry.count)
    return gob.encode_fields([(place, gob.encode_int(value)) for place, value in enumerate(values) if value])


def encode_stored(
    timestamp_ns: int, internal_id: int, trace_id: int, body: bytes, ext: bytes | None = None, *, extended: bool = False
) -> bytes:
    """Encode a message that was not delivered yet.

    Args:
        timestamp_ns: Time of the publish.
        internal_id: The server's number of it.
        trace_id: The publisher's number of it.
        body: The payload.
        ext: The JSON header. None for none.
        extended: Whether the topic is extended.
    """
    part = b""
    if extended:
        part = b"\0" if ext is None else bytes((_JSON_EXT,)) + len(ext).to_bytes(2, "big") + ext
    size = HEAD_BYTES - 4 + len(part) + len(body)
    head = _STORED_HEAD.pack(size, timestamp_ns, EXT_MARK if extended else 0, internal_id, trace_id)
    return b"".join((head, part, body))
