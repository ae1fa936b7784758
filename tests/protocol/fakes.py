"""What stands around the protocol in its tests: a source of messages, connections in a state, frames, requests."""

import struct
from collections.abc import Iterable

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Message, MessageSource
from nsq_ha.protocol import ClientProtocol, Layout, Received, Sub, Traced
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.messages import damage_of, reader_for
from nsq_ha.protocol.server.answers import encode_traced
from nsq_ha.protocol.server.decoder import CommandDecoder, Event, PublishHeader, decode_commands
from nsq_ha.protocol.server.stream import Limits
from tests.support.message_frames import encode_message

LARGEST = 1024 * 1024
ID = b"\x00\x00\x00\x00\x00\x00\x00\x09\n \r\n\x00\xff\n\n"
"""An id as hostile as they come: newlines, blanks, bytes that are no text."""

OK_FRAME = encode_frame(FrameType.RESPONSE, b"OK")
HEARTBEAT_FRAME = encode_frame(FrameType.RESPONSE, b"_heartbeat_")
TRACED_FRAME = encode_frame(FrameType.RESPONSE, encode_traced(Traced(1, 2, 3, 4)))
NOT_LEADER = encode_frame(FrameType.ERROR, b"E_FAILED_ON_NOT_LEADER ")


class Source:
    """A message source that only has a name."""

    topic = "orders"
    channel = "billing"
    partition = 0
    nsqd = "127.0.0.1:4150"

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None) -> None: ...

    def touch(self, message: Message) -> None: ...


SOURCE = Source()


def response(data: bytes) -> bytes:
    return encode_frame(FrameType.RESPONSE, data)


def error(data: bytes) -> bytes:
    return encode_frame(FrameType.ERROR, data)


def message_frame(data: bytes) -> bytes:
    return encode_frame(FrameType.MESSAGE, data)


def message(body: bytes = b"paid", *, message_id: bytes = ID, ext: bytes | None = None) -> Message:
    raw_size = 30 + len(body) + (0 if ext is None else 3 + len(ext))
    return Message(message_id, body, 1, 1_700_000_000_000_000_000, SOURCE, 4096, raw_size, ext)


def delivery(body: bytes = b"paid", layout: Layout = Layout.PLAIN, *, ext: bytes | None = None) -> bytes:
    return message_frame(encode_message(message(body, ext=ext), layout))


def identifying(largest: int = LARGEST) -> ClientProtocol:
    """Return a connection that has the answer to IDENTIFY and may switch to another layer."""
    protocol = ClientProtocol(max_frame_bytes=largest)
    protocol.send(Identify(b"{}"))
    protocol.receive(OK_FRAME)
    return protocol


def identified(largest: int = LARGEST) -> ClientProtocol:
    """Return a connection after its IDENTIFY."""
    protocol = identifying(largest)
    protocol.take_trailing()
    return protocol


def subscribed(layout: Layout = Layout.PLAIN, largest: int = LARGEST) -> ClientProtocol:
    """Return a connection that gets messages."""
    protocol = identified(largest)
    protocol.subscribe_to(SOURCE, layout)
    protocol.send(Sub("orders", "billing", 0))
    protocol.receive(OK_FRAME)
    return protocol


def seen(message: Message) -> tuple[object, ...]:
    """Return all that a message holds, to compare."""
    return (
        message.id,
        message.body,
        message.attempts,
        message.timestamp_ns,
        message.offset,
        message.raw_size,
        message.ext,
        message.source,
    )


def summary(found: Iterable[Received]) -> tuple[list[object], ...]:
    """Return what several reads gave together, kind by kind."""
    messages: list[object] = []
    answers: list[object] = []
    refusals: list[object] = []
    damaged: list[object] = []
    heartbeats = 0
    for received in found:
        messages += map(seen, received.messages)
        answers += [answer if isinstance(answer, bytes) else str(answer) for answer in received.answers]
        refusals += map(str, received.refusals)
        damaged += received.damaged
        heartbeats += received.heartbeats
    return messages, answers, refusals, damaged, [heartbeats]


def size(value: int) -> bytes:
    return struct.pack(">i", value)


def events(decoder: CommandDecoder, data: bytes = b"") -> list[Event]:
    """Return the events up to a publish that wants to be accepted, or to the need of more data."""
    decoder.feed(data)
    found: list[Event] = []
    while (event := decoder.next_event()) is not None:
        found.append(event)
        if isinstance(event, PublishHeader):
            break
    return found


def fresh(limits: Limits | None = None) -> CommandDecoder:
    return CommandDecoder(limits, magic=False)


def only(data: bytes) -> Event:
    [event] = decode_commands(data)
    return event


def decode_message(data: bytes, layout: Layout, source: MessageSource) -> Message:
    """Decode the data of one message frame; connections read many at once.

    Raises:
        RemoteProtocolError: It is shorter than its layout needs.
    """
    frame = encode_frame(FrameType.MESSAGE, data)
    messages: list[Message] = []
    reader_for(layout)(frame, 0, len(frame), source, messages)
    if not messages:
        raise RemoteProtocolError(damage_of(data, layout).reason)
    return messages[0]
