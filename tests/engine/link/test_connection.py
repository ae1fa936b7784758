"""An open connection: odd messages, and the end."""

import asyncio

import pytest

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol import Layout
from nsq_ha.protocol.encoding import encode_pub
from tests.support.nsqd import FakeNsqd
from tests.support.recorder import linked, subscribed
from tests.support.waiting import turn


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


async def test_closing_is_bounded(nsqd: FakeNsqd) -> None:
    loop = asyncio.get_running_loop()
    async with linked(nsqd) as link:
        link.peer.pause()
        while link.connection.write_publishes(encode_pub("orders", 0, b"x" * 1_000_000), 1):
            await turn()
        began = loop.time()
        await link.connection.aclose(0.2)
        await link.lost()
        assert loop.time() - began < 3.0
