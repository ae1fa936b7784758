"""An open connection: a message is odd, and the connection goes on."""

import pytest

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol import Layout
from tests.support.nsqd import FakeNsqd
from tests.support.recorder import subscribed


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
