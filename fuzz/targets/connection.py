"""What a server sends: frames, messages, the handshake, and the answers to traced publishes."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, cast

from fuzz import seeds
from fuzz.target import Target, pieces
from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.errors import AuthError, ConnectError, NotInFlightError, RemoteProtocolError, ServerError
from nsq_ha.message import Message, MessageSource
from nsq_ha.options.types import Compression
from nsq_ha.protocol import (
    ClientProtocol,
    Close,
    Handshake,
    Layout,
    Offer,
    Received,
    Send,
    StartCodec,
    Sub,
    decode_traced,
)
from nsq_ha.protocol.client import OK_RUNS
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.frames import HEARTBEAT, Frame, FrameDecoder, FrameType, encode_frame
from nsq_ha.protocol.handshake import GetSecret, Receive
from nsq_ha.protocol.identify import decode_identity, upgrades
from nsq_ha.protocol.messages import check_traced, damage_of
from nsq_ha.protocol.server.answers import encode_identity, encode_plain_identity, encode_traced
from tests.protocol.fakes import decode_message
from tests.support.message_frames import encode_message

LARGEST: Final = 1024 * 1024
LAYOUTS: Final = tuple(Layout)
_OK: Final = encode_frame(FrameType.RESPONSE, b"OK")
_SECRET: Final = "s3cret-of-the-fuzzer"  # noqa: S105 - no secret


@dataclasses.dataclass(frozen=True)
class Source:
    """The subscription of a message."""

    topic: str = "orders"
    channel: str = "billing"
    partition: int = 0
    nsqd: str = "127.0.0.1:4150"


SOURCE: Final = cast("MessageSource", Source())


# ---------------------------------------------------------------- frames


def _identifying() -> ClientProtocol:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    return protocol


def _ready() -> ClientProtocol:
    protocol = _identifying()
    protocol.receive(_OK)
    protocol.take_trailing()
    return protocol


def _subscribed(layout: Layout) -> ClientProtocol:
    protocol = _ready()
    protocol.subscribe_to(SOURCE, layout)
    protocol.send(Sub("orders", "billing", 0))
    protocol.receive(_OK)
    return protocol


def _publishing(count: int) -> ClientProtocol:
    protocol = _ready()
    protocol.expect_publish(count)
    return protocol


def _mixed(layout: Layout) -> ClientProtocol:
    protocol = _subscribed(layout)
    protocol.expect_publish(5)
    protocol.send(Close())
    protocol.expect_publish(2)
    return protocol


_STATES: Final[tuple[Callable[[], ClientProtocol], ...]] = (
    *(partial(_subscribed, layout) for layout in LAYOUTS),
    partial(_publishing, 3),
    partial(_publishing, 10_000),
    partial(_mixed, Layout.PLAIN),
    partial(_mixed, Layout.EXT_DETAIL),
    _identifying,
)
"""How a connection gets into a state."""
_IDENTIFYING: Final = len(_STATES) - 1


class Heard(NamedTuple):
    """What a connection made of a stream, in order, kind by kind."""

    messages: list[tuple[object, ...]]
    answers: list[bytes | str]
    refusals: list[str]
    damaged: list[object]
    heartbeats: int
    is_error: bool


def fields_of(message: Message) -> tuple[object, ...]:
    """Return what was read of a message."""
    return (
        message.id,
        message.body,
        message.attempts,
        message.timestamp_ns,
        message.offset,
        message.raw_size,
        message.ext,
    )


def _told(error: ServerError) -> str:
    if isinstance(error, NotInFlightError):
        assert error.unfinished is None or len(error.unfinished) == 16
    return str(error)


def heard(protocol: ClientProtocol, stream: Iterable[bytes]) -> Heard:
    """Feed a connection as ``engine.connection`` does; the only error is a broken rule."""
    found, asked = Heard([], [], [], [], 0, is_error=False), protocol.awaiting
    counted = protocol.take_publishes()
    for piece in stream:
        if 0 < (count := OK_RUNS.get(piece, 0)) <= counted:
            found.answers.extend([b"OK"] * count)
            counted -= count
            continue
        if counted:
            protocol.expect_publish(counted)
        try:
            found = _add(found, protocol.receive(piece))
            counted = protocol.take_publishes()
        except RemoteProtocolError:
            counted = 0
            found = _add(found, protocol.received)._replace(is_error=True)
            break
    assert len(found.answers) == asked - protocol.awaiting - counted
    return found


def _add(found: Heard, received: Received) -> Heard:
    found.messages.extend(map(fields_of, received.messages))
    found.answers.extend(_told(each) if isinstance(each, ServerError) else each for each in received.answers)
    found.refusals.extend(map(_told, received.refusals))
    found.damaged.extend(received.damaged)
    return found._replace(heartbeats=found.heartbeats + received.heartbeats)


def split(stream: Iterable[bytes]) -> tuple[list[Frame], bool]:
    """Return the frames of a stream as the tools' decoder finds them, and whether it refused the rest."""
    decoder, found = FrameDecoder(LARGEST), list[Frame]()
    try:
        for piece in stream:
            found += decoder.feed(piece)
    except RemoteProtocolError:
        return found, True
    return found, False


def run_frames(data: bytes) -> None:
    """A connection in some state, and the tools' decoders; the stream may be cut anywhere."""
    how, cut, stream = *data[:2].ljust(2, b"\1"), data[2:]
    state = _STATES[how % len(_STATES)]
    whole = heard(state(), [stream])
    assert heard(state(), pieces(stream, cut)) == whole
    frames, is_refused = split(pieces(stream, cut))
    at_once, is_refused_at_once = split([stream])
    assert is_refused_at_once is is_refused
    assert at_once == frames or is_refused  # what came together with a bad frame is lost with it
    if how % len(_STATES) < len(LAYOUTS):
        _compare(whole, frames, is_refused, LAYOUTS[how % len(_STATES)])


def _compare(whole: Heard, frames: list[Frame], is_refused: bool, layout: Layout) -> None:
    """Compare the batches of an open subscription with its frames one by one."""
    assert whole.is_error or not is_refused
    if whole.is_error:
        return
    expected = list[tuple[object, ...]]()
    for frame in frames:
        if frame.kind is FrameType.MESSAGE:
            try:
                message = decode_message(frame.data, layout, SOURCE)
            except RemoteProtocolError:
                with contextlib.suppress(RemoteProtocolError):
                    assert damage_of(frame.data, layout).reason
            else:
                expected.append(fields_of(message))
                _encoded_again(message, frame.data, layout)
    assert whole.messages == expected
    assert len(whole.damaged) == sum(frame.kind is FrameType.MESSAGE for frame in frames) - len(expected)
    assert len(whole.refusals) == sum(frame.kind is FrameType.ERROR for frame in frames)


def _encoded_again(message: Message, data: bytes, layout: Layout) -> None:
    assert not message.raw_size or len(data) - 8 - layout.ext <= message.raw_size
    version = data[26] if layout.ext and message.ext is not None else 4
    assert encode_message(message, layout, ext_version=version) == data
    assert message.internal_id >= 0
    assert message.trace_id >= 0


def seeds_of_frames() -> Iterator[bytes]:
    """Yield streams for the states in which they can arrive."""
    for number, stream in enumerate(seeds.streams("s2c")):
        yield bytes((_IDENTIFYING, number % 5)) + stream
    beat, ok = encode_frame(FrameType.RESPONSE, HEARTBEAT), _OK
    errors = [encode_frame(FrameType.ERROR, data) for data in seeds.frames("error")]
    traced = [encode_frame(FrameType.RESPONSE, data) for data in seeds.frames("response") if data.startswith(b"OK")]
    messages = [encode_frame(FrameType.MESSAGE, data) for data in seeds.frames("message")]
    for number, error in enumerate(errors):
        message, answer = messages[number % len(messages)], traced[number % len(traced)]
        yield bytes((number % len(LAYOUTS), number % 7)) + message + beat + error + messages[number - 1] + message
        yield bytes((len(LAYOUTS) + number % 4, number % 7)) + ok + answer + beat + error + ok + ok
    for number, layout in enumerate(LAYOUTS):
        short = [Message(bytes(range(16)), b"body", 1, 2**60, SOURCE, 7, size, b"{}") for size in (0, 5, 29, 30, 31)]
        yield bytes((number, 1)) + b"".join(
            [*messages, *(encode_frame(FrameType.MESSAGE, encode_message(each, layout)) for each in short)]
        )
        large = Message(bytes(range(16)), b"b" * 2100, 1, 2**60, SOURCE, 7, 2130, b'{"a":"b"}')
        frame = encode_frame(FrameType.MESSAGE, encode_message(large, layout))
        yield bytes((number, 7)) + frame + frame[:1900]
        yield bytes((number, 2)) + encode_frame(FrameType.MESSAGE, encode_message(large, Layout.PLAIN)[:40]) + beat
    yield bytes((len(LAYOUTS) + 1, 3)) + ok * 70 + beat + ok * 3


# ---------------------------------------------------------------- handshake

_OFFERS: Final = tuple(Offer(tls=tls, compression=compression) for tls in (False, True) for compression in Compression)


def _shaken(offer: Offer, *, asks: bool, secret: str | None, stream: Iterable[bytes]) -> str:
    """Execute a handshake as its documentation does; return what became of it."""
    handshake = Handshake(
        ClientProtocol(max_frame_bytes=LARGEST), offer, address="127.0.0.1:4150", secret=secret, asks=asks
    )
    arriving = iter(stream)
    unread: Iterator[bytes] = iter(())
    codec = None
    try:
        for step in handshake:
            match step:
                case StartCodec():
                    codec = step.codec
                    unread = codec.pieces(step.trailing)
                case GetSecret():
                    handshake.secret = _SECRET
                case Send() if codec is not None:
                    codec.compress(step.data)
                case Receive() if (piece := next(unread, None)) is not None:
                    handshake.feed(piece)
                case Receive():
                    if (data := next(arriving, None)) is None:
                        return "incomplete"
                    unread = iter([data]) if codec is None else codec.pieces(data)
                case _:
                    pass
    except (ConnectError, AuthError, ServerError, RemoteProtocolError) as error:
        assert _SECRET not in str(error)
        return type(error).__name__
    return f"{handshake.identity}"


def run_handshake(data: bytes) -> None:
    """A whole handshake, and the two answers in JSON, there and back."""
    how, cut, stream = *data[:2].ljust(2, b"\1"), data[2:]
    offer = _OFFERS[how % len(_OFFERS)]
    asks, secret = bool(how & 64), (_SECRET if how & 128 else None)
    whole = _shaken(offer, asks=asks, secret=secret, stream=[stream])
    parts = _shaken(offer, asks=asks, secret=secret, stream=pieces(stream, cut))
    # What arrives together with an answer is read with it, in the layer that follows, and may be damaged.
    assert parts == whole or whole.endswith("Error") or offer.compression is not Compression.NONE
    _answers(stream[8:])


def _answers(data: bytes) -> None:
    try:
        identity = decode_identity(data)
    except RemoteProtocolError:
        return
    upgrades(identity)
    assert decode_identity(encode_identity(identity)) == identity
    assert decode_identity(encode_plain_identity(identity)) is not None


def seeds_of_handshakes() -> Iterator[bytes]:
    """Yield what servers answered, for all offers."""
    for number, stream in enumerate(seeds.streams("s2c")):
        yield bytes((number % len(_OFFERS) | (number & 3) << 6, number % 7)) + stream
    for stream in seeds.compressed():
        yield bytes((1, 1)) + stream
        yield bytes((2, 2)) + stream


# ---------------------------------------------------------------- traced publishes


def run_traced(data: bytes) -> None:
    """The answer to a traced publish, there and back."""
    try:
        traced = decode_traced(data)
    except RemoteProtocolError:
        return
    assert encode_traced(traced) == data
    partition, size = traced.internal_id >> PARTITION_SHIFT, traced.raw_size
    right: dict[str, Any] = {"trace_id": traced.trace_id, "partition": partition, "sizes": (30, size)}
    check_traced(traced, **right)
    for name, other in (("trace_id", traced.trace_id ^ 1), ("partition", partition ^ 8), ("sizes", (size ^ 1,))):
        try:
            check_traced(traced, **right | {name: other})
        except RemoteProtocolError:
            continue
        raise AssertionError(f"the answer to another publish is taken: {name} {other}")


def seeds_of_traced() -> Iterator[bytes]:
    """Yield the recorded answers."""
    yield from (frame for frame in seeds.frames("response") if frame.startswith(b"OK"))


TARGETS: Final = (
    Target("frames", "what an nsqd sends, in each state of a connection", run_frames, seeds_of_frames),
    Target("handshake", "what an nsqd sends until AUTH is answered", run_handshake, seeds_of_handshakes),
    Target("traced", "the answer to a traced publish", run_traced, seeds_of_traced, 64),
)
