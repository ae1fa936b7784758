"""One replay connection against a scripted nsqd: what it sends, and what it does about bad answers."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from nsq_ha.errors import (
    AuthError,
    ConnectionLostError,
    NotLeaderError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.message import Message
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Layout
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.spark import connection
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.read.range_reader import UNGATHERED_BYTES, Replay
from tests.spark.logs import PARTITION, log_of
from tests.support.message_frames import encode_message

OPTIONS = ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",))
OK = encode_frame(FrameType.RESPONSE, b"OK")
IDENTIFIED = encode_frame(FrameType.RESPONSE, b"{}")
HEARTBEAT = encode_frame(FrameType.RESPONSE, b"_heartbeat_")


def delivered(*messages: Message) -> bytes:
    return b"".join(encode_frame(FrameType.MESSAGE, encode_message(each, Layout.DETAIL)) for each in messages)


def error(text: bytes) -> bytes:
    return encode_frame(FrameType.ERROR, text)


@dataclass
class ScriptedNsqd:
    """Waits for each text in turn and answers with the bytes beside it, then keeps the connection or closes it."""

    script: list[tuple[bytes, bytes]]
    close: bool = False
    heard: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    @property
    def node(self) -> Node:
        return Node("127.0.0.1", self.listener.getsockname()[1], 4151)

    def serve(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(10)
            position = 0
            for awaited, answer in self.script:
                while (found := self.heard.find(awaited, position)) < 0:
                    data = connection.recv(65536)
                    if not data:
                        return
                    self.heard += data
                position = found + len(awaited)
                connection.sendall(answer)
            if not self.close:
                self.over.wait(10)

    def end(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes a thread that still accepts
        self.listener.close()
        self.thread.join(10)


@dataclass
class Channels:
    """The HTTP side: notes which channels were made and deleted."""

    made: list[tuple[str, int]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refusal: NsqError | None = None
    unanswered: dict[tuple[str, int, Node, str], str] = field(default_factory=dict)

    def open_channel(self, topic: str, partition: int, node: Node, channel: str, offset: int) -> None:
        self.made.append((channel, offset))
        if self.refusal is not None:
            raise self.refusal

    def delete_channel(self, topic: str, partition: int, node: Node, channel: str) -> None:
        self.deleted.append(channel)


Start = Callable[..., tuple[Replay, ScriptedNsqd, Channels]]


@pytest.fixture
def start() -> Iterator[Start]:
    nsqds: list[ScriptedNsqd] = []
    replays: list[Replay] = []

    def begin(
        *script: tuple[bytes, bytes],
        close: bool = False,
        ordered: bool = False,
        extended: bool = False,
        options: ReadOptions = OPTIONS,
        size: int = 1000,
    ) -> tuple[Replay, ScriptedNsqd, Channels]:
        nsqd, channels = ScriptedNsqd(list(script), close), Channels()
        asked = Range("flights", PARTITION, 0, size, nsqd.node, ordered=ordered, extended=extended)
        nsqds.append(nsqd)
        replays.append(Replay(asked, nsqd.node, channels, options))  # type: ignore[arg-type]
        return replays[-1], nsqd, channels

    yield begin
    for replay in replays:
        replay.close()
    for nsqd in nsqds:
        nsqd.end()


HANDSHAKE = (b"}", IDENTIFIED), (b"SUB_ADVANCED", OK)


def soon() -> float:
    return time.monotonic() + 10.0


def received(replay: Replay, count: int) -> list[Message]:
    got: list[Message] = []
    until = soon()
    while len(got) < count:
        got += replay.receive(until)
    return got


def test_a_channel_of_its_own_is_set_and_then_subscribed_without_a_start_position(start: Start) -> None:
    replay, nsqd, channels = start((b"}", IDENTIFIED), (b"RDY", delivered(*log_of([40, 50]))))
    nsqd.script.insert(1, (b"#ephemeral 5\n", OK))
    replay.open(240)
    ((channel, offset),) = channels.made
    assert channel.startswith("spark-")
    assert channel.endswith("#ephemeral")
    assert len(channel) <= 64
    assert offset == 240
    got = received(replay, 2)
    assert [(each.offset, each.raw_size, each.partition) for each in got] == [(0, 40, 5), (40, 50, 5)]
    assert f"SUB_ADVANCED flights {channel} 5\n".encode() in nsqd.heard
    assert not channels.deleted


def test_the_server_hears_what_options_say(start: Start) -> None:
    sent = {"rdy": "7", "msgTimeout": "3s", "outputBufferTimeout": "30ms", "channelPrefix": "mine-"}
    options = ReadOptions.parse({"lookupd": "127.0.0.1:4161", "topic": "flights"} | sent)
    replay, nsqd, channels = start(*HANDSHAKE, (b"RDY 7\n", HEARTBEAT), options=options)
    replay.open(0)
    assert replay.receive(soon()) == [], "RDY is what it should be: the heartbeat answers it"
    assert b'"msg_timeout":3000' in nsqd.heard
    assert b'"output_buffer_timeout":30' in nsqd.heard
    assert channels.made[0][0].startswith("mine-")


@pytest.mark.parametrize(
    ("size", "sent"),
    [(UNGATHERED_BYTES, b'"output_buffer_size":-1,'), (UNGATHERED_BYTES + 1, b'"output_buffer_size":65536,')],
)
def test_the_messages_of_a_small_range_are_not_gathered(start: Start, size: int, sent: bytes) -> None:
    replay, nsqd, _ = start(*HANDSHAKE, (b"RDY", HEARTBEAT), size=size)
    replay.open(0)
    assert replay.receive(soon()) == []
    assert sent in nsqd.heard
    # Without a time what does not fill a buffer would stay in it: with compression there always is one.
    assert b'"output_buffer_timeout":10,' in nsqd.heard


def test_finishes_are_written_together_and_heartbeats_answered(start: Start) -> None:
    log = log_of([40, 50])
    replay, nsqd, _ = start(*HANDSHAKE, (b"RDY", HEARTBEAT + delivered(*log)), (b"NOP\n", b""), (b"FIN ", HEARTBEAT))
    replay.open(0)
    replay.finish_all(received(replay, 2))
    assert replay.receive(soon()) == []
    assert b"NOP\nRDY 2500\nFIN " + log[0].id + b"\nFIN " + log[1].id + b"\n" in nsqd.heard


def test_what_is_under_way_follows_the_size_of_the_messages(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IN_FLIGHT_BYTES", 100)
    large = log_of([90])[0]
    large.body = b"x" * 60
    replay, nsqd, _ = start(*HANDSHAKE, (b"RDY 32\n", delivered(large)), (b"RDY 1\n", b""))
    replay.open(0)
    received(replay, 1)
    nsqd.over.set()
    nsqd.thread.join(10)
    assert [line for line in bytes(nsqd.heard).split(b"\n") if line.startswith(b"RDY")] == [b"RDY 32", b"RDY 1"]


def test_a_failed_finish_is_no_failure(start: Start) -> None:
    late = error(b"E_FIN_FAILED FIN [0 0] failed Message ID not in flight") + delivered(*log_of([40]))
    replay, _, _ = start(*HANDSHAKE, (b"RDY", late))
    replay.open(0)
    assert len(received(replay, 1)) == 1


@pytest.mark.parametrize(
    ("after_ready", "kind"),
    [
        (error(b"E_FAILED_ON_NOT_LEADER "), NotLeaderError),
        (encode_frame(FrameType.MESSAGE, b"short"), RemoteProtocolError),
        (b"\x00\x00\x00\x08\x00\x00\x00\x07what", RemoteProtocolError),
        (b"\x7f\xff\xff\xff", RemoteProtocolError),
    ],
)
def test_what_ends_a_connection_under_way(start: Start, after_ready: bytes, kind: type[NsqError]) -> None:
    replay, _, _ = start(*HANDSHAKE, (b"RDY", after_ready))
    replay.open(0)
    with pytest.raises(kind) as caught:
        received(replay, 1)
    assert caught.value.retriable


def test_a_close_without_a_word_is_a_lost_connection(start: Start) -> None:
    replay, _, _ = start(*HANDSHAKE, (b"RDY", b""), close=True)
    replay.open(0)
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        received(replay, 1)
    replay.close()
    with pytest.raises(ConnectionLostError, match="is closed"):
        replay.finish_all(log_of([40]))


def test_silence_ends_with_the_time_given(start: Start) -> None:
    replay, _, _ = start(*HANDSHAKE, (b"RDY", b""))
    replay.open(0)
    with pytest.raises(ResponseTimeoutError):
        replay.receive(time.monotonic() + 0.05)
    with pytest.raises(ResponseTimeoutError):
        replay.receive(time.monotonic() - 1)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([(b"}", IDENTIFIED), (b"SUB", error(b"E_FAILED_ON_NOT_LEADER "))], NotLeaderError),
        ([(b"}", encode_frame(FrameType.RESPONSE, b'{"auth_required":true}'))], AuthError),
        ([(b"}", encode_frame(FrameType.RESPONSE, b'{"snappy":true}'))], RemoteProtocolError),
        ([(b"}", encode_frame(FrameType.RESPONSE, b"{nonsense"))], RemoteProtocolError),
        ([(b"}", error(b"E_BAD_BODY IDENTIFY"))], NsqError),
        # Not in the time that the answer has, but as soon as there are too many to keep.
        ([(b"}", IDENTIFIED), (b"SUB", delivered(*log_of([30_000] * 600)))], RemoteProtocolError),
    ],
)
def test_a_refused_opening_takes_its_channel_with_it(
    start: Start, script: list[tuple[bytes, bytes]], kind: type[NsqError]
) -> None:
    replay, _, channels = start(*script)
    with pytest.raises(kind):
        replay.open(0)
    assert channels.deleted == [channel for channel, _ in channels.made] != []


@pytest.mark.parametrize(
    ("refusal", "deleted"), [(NotLeaderError("E_FAILED_ON_NOT_LEADER"), 1), (ResponseTimeoutError("silent"), 0)]
)
def test_a_channel_that_was_made_and_not_placed_is_deleted_where_somebody_answers(
    start: Start, refusal: NsqError, deleted: int
) -> None:
    replay, nsqd, channels = start()
    channels.refusal = refusal
    with pytest.raises(type(refusal)):
        replay.open(0)
    assert channels.deleted == [channel for channel, _ in channels.made][:deleted]
    assert not nsqd.heard, "nobody connected"


def test_a_channel_that_an_nsqd_may_create_later_is_taken_by_the_next_read() -> None:
    asked = Range("flights", PARTITION, 0, 1000, None, ordered=False, extended=False)
    node, channels = Node("127.0.0.1", 1, 4151), Channels(refusal=ResponseTimeoutError("frozen"))

    def channel() -> str:
        with pytest.raises(NsqError), contextlib.closing(Replay(asked, node, channels, OPTIONS)) as replay:  # type: ignore[arg-type]
            replay.open(0)
        return replay.channel

    first = channel()
    channels.refusal = None
    assert channel() == first
    assert channels.deleted == [first], "nobody subscribed, since nobody listens"
    assert channel() != first
