"""An open connection: answers in order, odd messages, subscriptions, back-pressure and the end."""

import asyncio

import pytest

from nsq_ha import ClientConfig
from nsq_ha.errors import (
    ConnectionLostError,
    NotLeaderError,
    NotWritableError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
    SubscribeRefusedError,
)
from nsq_ha.protocol import Close, Command, Finish, Layout, Pub, SubAdvanced, SubOrdered
from nsq_ha.protocol.encoding import NOP, encode_fin, encode_pub, encode_pub_trace, encode_ready
from tests.support.nsqd import LIMIT, OK, FakeNsqd, NoSource, Peer, Publish, error, message_data, message_id, response
from tests.support.recorder import linked, subscribed
from tests.support.waiting import turn

PUB = encode_pub("orders", 0, b"x")


def refuse_bodies(peer: Peer, command: Command) -> bool:
    """Answer each publish by its body: an error text, or OK."""
    if not isinstance(command, Pub):
        return False
    peer.write(OK if command.body == b"x" else error(command.body))
    return True


# ------------------------------------------------------------ answers


async def test_answers_come_in_the_order_of_the_publishes(nsqd: FakeNsqd) -> None:
    nsqd.script = refuse_bodies
    async with linked(nsqd) as link:
        refused = [encode_pub("orders", 0, text) for text in (b"E_FAILED_ON_NOT_LEADER ", b"E_PUB_FAILED exiting")]
        link.connection.write_publishes(b"".join([PUB, refused[0], PUB, refused[1], PUB]), 5)
        await link.recorder.until(lambda: len(link.recorder.answers) == 5)
    assert [answer if isinstance(answer, bytes) else answer.code for answer in link.recorder.answers] == [
        b"OK",
        "E_FAILED_ON_NOT_LEADER",
        b"OK",
        "E_PUB_FAILED",
        b"OK",
    ]


async def test_a_traced_answer_is_passed_on_whole(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        link.connection.write_publishes(encode_pub_trace("orders", 0, 7, b"x"), 1)
        await link.recorder.until(lambda: link.recorder.answers)
        (answer,) = link.recorder.answers
        assert isinstance(answer, bytes)
        assert len(answer) == 30


async def test_what_is_written_in_one_turn_leaves_in_one_write(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        before = len(link.peer.reads)
        for number in range(1, 51):
            link.connection.write(encode_fin(message_id(number)))
        await nsqd.until(lambda: len(link.peer.of(Finish)) == 50)
        assert len(link.peer.reads) == before + 1


async def test_publishes_leave_behind_what_was_written_before(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        link.connection.write(NOP)
        before = len(link.peer.reads)
        link.connection.write_publishes(PUB * 2, 2)
        await link.recorder.until(lambda: len(link.recorder.answers) == 2)
        assert link.peer.reads[before:] == [NOP + PUB * 2]


async def test_an_error_without_code_that_answers_nothing_ends_the_connection(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        link.peer.write(error("too much client connections: 3"))
        assert "too much client connections" in str(await link.lost())


@pytest.mark.parametrize("code", ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"])
async def test_a_refused_answer_answers_no_publish(nsqd: FakeNsqd, code: str) -> None:
    async with subscribed(nsqd) as link:
        nsqd.script = lambda *_: True
        link.connection.write_publishes(PUB, 1)
        link.peer.write(error(f"{code} FIN [0 0] failed") + OK)
        await link.recorder.until(lambda: link.recorder.answers)
        assert [refusal.code for refusal in link.recorder.refusals] == [code]
        assert link.recorder.answers == [b"OK"]
        assert link.connection.is_open


async def test_an_error_before_a_close_is_reported(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        link.connection.write(encode_fin(message_id(2)))
        link.peer.write(error("E_FAILED_ON_NOT_LEADER "))
        link.peer.close()
        await link.lost()
        assert [type(refusal) for refusal in link.recorder.refusals] == [NotLeaderError]


# ------------------------------------------------------------ messages

ODD = {
    "empty body": {"body": b""},
    "no text": {"body": bytes(range(256))},
    "attempts 0": {"body": b"x", "attempts": 0},
    "attempts 65535": {"body": b"x", "attempts": 65535},
    "before the epoch": {"body": b"x", "timestamp_ns": -(2**63)},
    "end of time": {"body": b"x", "timestamp_ns": 2**63 - 1},
    "id of zeros": {"body": b"x", "id": bytes(16)},
    "id of ones": {"body": b"x", "id": b"\xff" * 16},
    "id with newlines": {"body": b"x", "id": b"\n\r \n" * 4},
    "looks like a frame": {"body": OK * 3},
}


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("fields", ODD.values(), ids=ODD)
async def test_an_odd_message_is_a_message(nsqd: FakeNsqd, layout: Layout, fields: dict[str, object]) -> None:
    async with subscribed(nsqd, layout=layout) as link:
        for _ in range(2):
            link.peer.message(**fields, layout=layout)  # type: ignore[arg-type]
        await link.recorder.until(lambda: len(link.recorder.messages) == 2)
        for message in link.recorder.messages:
            assert message.body == fields["body"]
            assert message.attempts == fields.get("attempts", 1)
            assert message.timestamp_ns == fields.get("timestamp_ns", 1)
            assert message.id == fields.get("id", message_id(2))
            assert message.offset == (0 if layout.detail else None)
        assert link.recorder.damaged == []


async def test_the_same_id_two_hundred_times(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        link.connection.write(encode_ready(1))
        for _ in range(200):
            link.peer.message(b"x")
        await link.recorder.until(lambda: len(link.recorder.messages) == 200)


@pytest.mark.parametrize(
    ("layout", "tail"),
    [
        (Layout.DETAIL, b""),
        (Layout.DETAIL, b"11 bytes..."),
        (Layout.EXT, b""),
        (Layout.EXT, b"\x04"),
        (Layout.EXT, b"\x04\x00"),
        (Layout.EXT, b"\x04\x00\x05{}"),
        (Layout.EXT, b"\xff\xff\xff{}"),
        (Layout.EXT_DETAIL, b"\x04\x00\x02{}" + bytes(11)),
    ],
)
async def test_a_cut_message_is_reported_and_the_next_one_comes(nsqd: FakeNsqd, layout: Layout, tail: bytes) -> None:
    head = message_data(b"", message_id(5), layout=Layout.PLAIN, attempts=3)
    async with subscribed(nsqd, layout=layout) as link:
        link.peer.write((8 - 4 + len(head + tail)).to_bytes(4, "big") + b"\0\0\0\x02" + head + tail)
        link.peer.message(b"good", message_id(6), layout=layout)
        await link.recorder.until(lambda: link.recorder.messages and link.recorder.damaged)
        assert [message.body for message in link.recorder.messages] == [b"good"]
        (damaged,) = link.recorder.damaged
        assert (damaged.message_id, damaged.attempts) == (message_id(5), 3)
        assert link.connection.is_open


async def test_a_message_shorter_than_its_head_ends_the_connection(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        link.peer.write((4 + 25).to_bytes(4, "big") + b"\0\0\0\x02" + bytes(25))
        assert isinstance(await link.lost(), RemoteProtocolError)


@pytest.mark.parametrize(
    "ext", [b"{", b"[]", b"7", b'"text"', b"null", b"\xff\xfe", b'{"a":' + b"[" * 30_000, b"{}" + b"\0"]
)
async def test_a_header_that_is_no_object_spoils_only_itself(nsqd: FakeNsqd, ext: bytes) -> None:
    async with subscribed(nsqd, layout=Layout.EXT) as link:
        link.peer.message(b"x", layout=Layout.EXT, ext=ext)
        await link.recorder.until(lambda: link.recorder.messages)
        (message,) = link.recorder.messages
        assert (message.body, message.ext) == (b"x", ext)
        with pytest.raises(RemoteProtocolError, match="extension header"):
            assert message.headers
        with pytest.raises(RemoteProtocolError, match="extension header"):
            assert message.tag


# ------------------------------------------------------------ subscriptions


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("E_FAILED_ON_NOT_LEADER ", NotLeaderError),
        ("E_FAILED_ON_NOT_WRITABLE ", NotWritableError),
        ("E_SUB_ORDER_IS_MUST ordered", SubscribeRefusedError),
        ("E_SOMETHING_NEW of a later server", ServerError),
    ],
)
async def test_a_subscription_is_refused(nsqd: FakeNsqd, text: str, kind: type[ServerError]) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, SubAdvanced):
            peer.write(error(text))
            peer.close()
            return True
        return False

    nsqd.script = script
    async with linked(nsqd) as link:
        with pytest.raises(kind) as caught:
            await link.connection.subscribe(SubAdvanced("orders", "ch", 0), NoSource(), Layout.DETAIL)
        assert type(caught.value) is kind
        await link.lost()


async def test_a_subscription_that_is_not_answered(nsqd: FakeNsqd) -> None:
    nsqd.script = lambda peer, command: isinstance(command, SubOrdered)
    async with linked(nsqd, ClientConfig(connect_timeout=0.3)) as link:
        with pytest.raises(ResponseTimeoutError, match=r"connect_timeout=0\.3"):
            await link.connection.subscribe(SubOrdered("orders", "ch", 0), NoSource(), Layout.DETAIL)


async def test_a_subscription_that_is_cut_off(nsqd: FakeNsqd) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, SubAdvanced):
            peer.abort()
            return True
        return False

    nsqd.script = script
    async with linked(nsqd) as link:
        with pytest.raises(ConnectionLostError):
            await link.connection.subscribe(SubAdvanced("orders", "ch", 0), NoSource(), Layout.DETAIL)


async def test_messages_that_come_with_the_answer_are_not_lost(nsqd: FakeNsqd) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, SubAdvanced):
            peer.write(OK)
            peer.message(b"at once")
            return True
        return False

    nsqd.script = script
    async with subscribed(nsqd) as link:
        await link.recorder.until(lambda: link.recorder.messages)


async def test_stopping_the_messages(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        nsqd.script = lambda peer, command: isinstance(command, Close)
        stopping = asyncio.create_task(link.connection.stop_messages())
        await nsqd.until(lambda: link.peer.of(Close))
        link.peer.message(b"on its way")
        link.peer.write(response(b"_heartbeat_") + response(b"CLOSE_WAIT"))
        async with asyncio.timeout(LIMIT):
            await stopping
        assert [message.body for message in link.recorder.messages] == [b"on its way"]
        link.connection.write(encode_fin(message_id(2)))
        await nsqd.until(lambda: link.peer.commands[-1].word == b"FIN")


# ------------------------------------------------------------ back-pressure and the end


async def test_a_socket_that_is_full_pauses(nsqd: FakeNsqd) -> None:
    resumed = asyncio.Event()
    async with linked(nsqd) as link:
        link.connection.on_resume(resumed.set)
        link.peer.pause()
        command = encode_pub("orders", 0, b"x" * 1_000_000)
        written = 0
        while link.connection.takes_more:
            link.connection.write_publishes(command, 1)
            written += 1
            await turn()
            assert written < 100
        assert not resumed.is_set()
        link.peer.resume()
        await asyncio.wait_for(resumed.wait(), LIMIT)
        assert link.connection.takes_more
        await link.recorder.until(lambda: len(link.recorder.answers) == written)


async def test_closing_sends_what_is_buffered(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        nsqd.script = lambda *_: True
        link.connection.write_publishes(PUB * 1000, 1000)
        await link.connection.aclose(LIMIT)
        await link.connection.aclose(LIMIT)
        await link.lost()
        await nsqd.until(lambda: len(link.peer.of(*Publish)) == 1000)
        assert link.recorder.answers == []


async def test_closing_is_bounded(nsqd: FakeNsqd) -> None:
    loop = asyncio.get_running_loop()
    async with linked(nsqd) as link:
        link.peer.pause()
        while link.connection.takes_more:
            link.connection.write_publishes(encode_pub("orders", 0, b"x" * 1_000_000), 1)
            await turn()
        began = loop.time()
        await link.connection.aclose(0.2)
        await link.lost()
        assert loop.time() - began < 3.0


async def test_an_abort_is_reported_with_its_reason(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        reason = ConnectionLostError("left for another node")
        link.connection.abort(reason)
        link.connection.abort(ConnectionLostError("another one"))
        assert await link.lost() is reason
        assert await link.connection.ended() is reason
        link.connection.write(PUB)  # dropped: the end was reported


async def test_nothing_is_reported_after_the_end(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        link.peer.write(response(b"KO"))
        link.peer.message(b"too late")
        link.peer.close()
        await link.lost()
        await nsqd.until(lambda: not link.peer.is_open)
        assert link.recorder.messages == []


async def test_a_reset_connection_is_lost(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        link.peer.abort()
        assert isinstance(await link.lost(), ConnectionLostError)
