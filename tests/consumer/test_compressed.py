"""Bodies that other clients have compressed."""

import logging
from typing import Any

import pytest

from nsq_ha import Backoff, Message
from nsq_ha.protocol import Finish, Layout, Requeue
from nsq_ha.protocol.body_codec import compress_body
from tests.support.nsqd import message_id
from tests.support.stage import Stage

EXT = Layout.EXT_DETAIL
BODY = b"the same again, " * 100
GZIP, _ = compress_body(BODY, "gzip")
HEADER = b'{"a":1,"nsq.client.compress":"1","nsq.msg.size":"1600","##client_dispatch_tag":"t"}'


async def test_a_compressed_body_is_handed_out_as_it_was(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"before", message_id(2), layout=EXT, ext=b'{"a":1}')
        peer.message(GZIP, message_id(3), layout=EXT, ext=HEADER)
        peer.message(b"after", message_id(4), layout=EXT)
        found = [await anext(consumer) for _ in range(3)]
    assert [message.body for message in found] == [b"before", BODY, b"after"]
    assert [message.headers for message in found] == [{"a": 1}, {"a": 1}, {}]
    assert (found[1].tag, found[1].compressed) == ("t", (GZIP, HEADER))
    assert (found[0].compressed, found[2].compressed) == (None, None)


async def test_it_can_be_handed_out_as_it_is_stored(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer(decompress=False) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(GZIP, message_id(3), layout=EXT, ext=HEADER)
        message = await anext(consumer)
    assert (message.body, message.compressed) == (GZIP, None)
    assert message.headers == {"a": 1, "nsq.client.compress": "1", "nsq.msg.size": "1600"}


@pytest.mark.parametrize(
    ("body", "header", "said"),
    [
        (GZIP[:-5], HEADER, "cannot be decompressed: it is not valid gzip data: it is cut off"),
        (GZIP, HEADER.replace(b'"1"', b'"9"'), "it has the header nsq.client.compress='9', which is no known compress"),
        (compress_body(bytes(200_000), "gzip")[0], b'{"nsq.client.compress":"1"}', "max_decompressed_bytes=100000"),
    ],
)
async def test_one_that_cannot_be_decompressed_counts_as_failed(
    stage: Stage, caplog: pytest.LogCaptureFixture, body: bytes, header: bytes, said: str
) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    options: dict[str, Any] = {"max_attempts": 2, "max_decompressed_bytes": 100_000, "handler_backoff": None}
    given_up: list[Message] = []
    async with stage.consumer(
        **options, on_give_up=given_up.append, requeue_backoff=Backoff(initial=3.0, maximum=3.0, jitter=0.0)
    ) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(body, message_id(3), layout=EXT, ext=header)
        peer.message(b"good", message_id(4), layout=EXT)
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.of(Requeue) and peer.of(Finish))
        assert peer.of(Requeue) == [Requeue(message_id(3), 3000)]
        peer.message(body, message_id(3), layout=EXT, ext=header, attempts=2)
        peer.message(b"good too", message_id(5), layout=EXT)
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    # It is given up as it is stored, so that it can be published again.
    assert [(message.body, message.ext) for message in given_up] == [(body, header)]
    lines = [record for record in caplog.records if "not handing out" in record.getMessage()]
    assert [line.levelno for line in lines] == [logging.WARNING] * 2
    assert lines[0].getMessage().startswith("not handing out <Message orders-0 id=0x3 ")
    assert said in lines[0].getMessage()
