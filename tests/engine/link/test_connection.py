"""An open connection: answers in order, odd messages, subscriptions, back-pressure and the end."""

import asyncio

import pytest

from nsq_ha import ClientConfig
from nsq_ha.errors import (
    NotLeaderError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.protocol import Layout, SubOrdered
from nsq_ha.protocol.encoding import encode_fin, encode_pub
from tests.support.nsqd import LIMIT, FakeNsqd, NoSource, Publish, error, message_id
from tests.support.recorder import linked, subscribed
from tests.support.waiting import turn

PUB = encode_pub("orders", 0, b"x")


# ------------------------------------------------------------ answers


async def test_an_error_before_a_close_is_reported(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd) as link:
        link.connection.write(encode_fin(message_id(2)))
        link.peer.write(error("E_FAILED_ON_NOT_LEADER "))
        link.peer.close()
        await link.lost()
        assert [type(refusal) for refusal in link.recorder.refusals] == [NotLeaderError]


# ------------------------------------------------------------ messages


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


async def test_a_subscription_that_is_not_answered(nsqd: FakeNsqd) -> None:
    nsqd.script = lambda peer, command: isinstance(command, SubOrdered)
    async with linked(nsqd, ClientConfig(connect_timeout=0.3)) as link:
        with pytest.raises(ResponseTimeoutError, match=r"connect_timeout=0\.3"):
            await link.connection.subscribe(SubOrdered("orders", "ch", 0), NoSource(), Layout.DETAIL)


# ------------------------------------------------------------ back-pressure and the end


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
