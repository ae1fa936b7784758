"""The call that copies ranges of a partition's log between nsqds: ``PullCommitLogsAndData``, the client's side.

The client sends a zero byte (no compression), and then requests; each has a number, which its answer repeats. The
values are gob (see ``gob``). A request names a partition and a number of an *entry*, from 0; the answer
has that entry and the following ones. One entry is what one PUB or MPUB wrote: its place and size in the partition's
queue, and its messages as they are stored there. The server stops before 10,000 entries, before 32 MiB of messages,
and at the last readable entry.

A message is its size (4 bytes, without themselves), timestamp (8), attempts (2), internal id (8), trace id (8),
an ext part or none, and the body. All integers are big-endian. The four highest bits of the attempts are ``0xa``
if there is an ext part: a version byte and, unless that is 0, a 16-bit length and that many bytes. An extended topic
may hold older messages without an ext part; an ordinary topic has none.

This module has no I/O. Source: the module ``gorpc`` of Youzan's server; youzan/nsq
``consistence/coordinator_rpc.go``, ``nsqd_coordinator.go`` ``pullCommitLogsAndData``; ``nsqd/message.go``
``internalWriteTo`` and ``decodeMessage``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsq_ha.base.redaction import beginning
from nsq_ha.spark.pull import gob

PREFACE: Final = b"\0"
"""The first byte of a connection: no compression in either direction."""

MAX_ENTRIES: Final = 10_000
"""Entries that a replica asks for at once, and that an answer has at most."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of messages that an answer has at most."""

HEAD_BYTES: Final = 30
"""Bytes before the ext part or the body."""

EXT_MARK: Final = 0xA000
"""The highest bits of the attempts of a message with an ext part."""

EXT_MASK: Final = 0xF000
"""These bits."""

METHOD: Final = "NsqdCoordRpcServer.PullCommitLogsAndData"
REQUEST: Final = "*consistence.RpcPullCommitLogsReq"
ANSWER: Final = "*consistence.RpcPullCommitLogsRsp"
CALL: Final = "*gorpc.dispatcherRequest"
REPLY: Final = "*gorpc.dispatcherResponse"


def _ints(*names: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, gob.INT) for name in names)


ENTRY: Final = gob.Struct(
    "CommitLogData", _ints("LogID", "Epoch", "LastMsgLogID", "MsgOffset", "MsgSize", "MsgCnt", "MsgNum")
)
"""The type of an entry, as the server of today defines it."""

_WIRE, _CALL, _PULL, _TOPIC = 64, 65, 66, 67
_WIRE_TYPE: Final = gob.Struct("wireRequest", (("ID", gob.UINT), ("Request", gob.INTERFACE)))
_CALL_TYPE: Final = gob.Struct("dispatcherRequest", (("Request", gob.INTERFACE), ("Name", gob.TEXT)))
_PULL_TYPE: Final = gob.Struct(
    "RpcPullCommitLogsReq",
    (
        ("RpcTopicData", _TOPIC),
        *_ints("StartLogOffset", "LogMaxNum", "StartIndexCnt", "LogCountNumIndex"),
        ("UseCountIndex", gob.BOOL),
    ),
)
_TOPIC_TYPE: Final = gob.Struct(
    "RpcTopicData",
    (
        ("TopicName", gob.TEXT),
        *_ints("TopicPartition", "Epoch", "TopicWriteEpoch", "TopicLeaderSessionEpoch"),
        ("TopicLeaderSession", gob.TEXT),
        ("TopicLeader", gob.TEXT),
    ),
)


@dataclass(frozen=True, slots=True)
class Pull:
    """A request.

    Attributes:
        topic: The topic.
        partition: The partition.
        entry: Number of the first entry wanted, from 0.
        count: Number of entries wanted.
    """

    topic: str
    partition: int
    entry: int
    count: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """An answer that is not an error.

    Attributes:
        data: The entries and their messages, encoded; ``read.bulk.entries`` decodes them.
        fields: Names of the fields of an entry.
    """

    data: memoryview
    fields: tuple[str, ...]


class Requests:
    """Encodes the requests of one connection; the first one with the definitions of their types."""

    def __init__(self) -> None:
        self._sent = 0

    def encode(self, asked: Pull) -> bytes:
        """Return the bytes to send; the answer has the number of requests so far."""
        self._sent += 1
        topic = [(0, gob.encode_text(asked.topic)), *_given(1, asked.partition)]
        pull = gob.encode_fields(
            [
                (0, gob.encode_fields(topic)),
                (2, gob.encode_int(asked.count)),
                *_given(4, asked.entry),
                (5, gob.encode_uint(1)),
            ]
        )
        wire = gob.encode_int(_WIRE) + b"\x01" + gob.encode_uint(self._sent) + b"\x01" + gob.encode_text(CALL)
        call = b"\x01" + gob.encode_text(REQUEST)
        last = gob.encode_int(_PULL) + gob.encode_message(pull) + b"\x01" + gob.encode_text(METHOD) + b"\0"
        if self._sent > 1:
            return gob.encode_message(wire, gob.encode_int(_CALL), gob.encode_message(call, last), b"\0")
        # The definition of a type comes before its first value, even in the middle of another one.
        return b"".join(
            (
                PREFACE,
                gob.encode_message(gob.encode_definition(_WIRE, _WIRE_TYPE)),
                gob.encode_message(wire, gob.encode_definition(_CALL, _CALL_TYPE)),
                gob.encode_message(
                    gob.encode_int(_CALL),
                    gob.encode_message(call, gob.encode_definition(_PULL, _PULL_TYPE)),
                    gob.encode_message(gob.encode_definition(_TOPIC, _TOPIC_TYPE)),
                    gob.encode_message(last),
                    b"\0",
                ),
            )
        )


def _given(number: int, value: int) -> list[tuple[int, bytes]]:
    return [(number, gob.encode_int(value))] if value else []


class Answers:
    """Decodes the answers of one connection.

    Args:
        next_message: Returns the bytes of the next gob message, without its length.
    """

    def __init__(self, next_message: Callable[[], memoryview]) -> None:
        self._decoder = gob.Decoder(next_message, {ANSWER})

    def read(self) -> tuple[int, Pulled | str]:
        """Return the number of a request and its answer; a text if that is an error.

        Raises:
            RemoteProtocolError: It is not understood; close the connection.
        """
        wire = self._decoder.read()
        number = wire.get("ID", 0)
        reply = wire.get("Response")
        if wire.get("Error"):
            return number, _text(wire["Error"])
        if not isinstance(reply, gob.Boxed) or reply.name != REPLY:
            raise gob.wrong("no answer to a call")
        if reply.value.get("Error"):
            return number, _text(reply.value["Error"])
        answer = reply.value.get("Response")
        if not isinstance(answer, gob.Boxed) or answer.name != ANSWER:
            raise gob.wrong("an answer to another call")
        return number, Pulled(answer.value, self._fields(answer.kind))

    def _fields(self, kind: int) -> tuple[str, ...]:
        """Check the types of an answer; return the fields of its entries."""
        types = self._decoder.types
        answer = types.get(kind)
        parts = answer.fields if isinstance(answer, gob.Struct) else ()
        lists = [types.get(of) for _, of in parts]
        if [name for name, _ in parts] == ["Logs", "DataList"]:
            logs, data = lists
            entry = types.get(logs.element) if isinstance(logs, gob.Slice) else None
            if (
                isinstance(entry, gob.Struct)
                and isinstance(data, gob.Slice)
                and data.element == gob.BYTES
                and all(of == gob.INT for _, of in entry.fields)
                and len(dict(entry.fields)) == len(entry.fields)
            ):
                return tuple(name for name, _ in entry.fields)
        raise gob.wrong("an answer of another version of nsqd")


def _text(value: object) -> str:
    """Return the first line of an error; after a panic, a stack follows."""
    return beginning(str(value).splitlines()[0], 200)
