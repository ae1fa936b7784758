"""Messages that the client finishes unhandled, by their headers."""

import logging

import pytest

from nsq_ha import ConfigError, ExtFilter
from nsq_ha.protocol import Finish, Layout
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import message_id
from tests.support.stage import Stage

EXT = Layout.EXT_DETAIL


async def test_messages_with_the_header_are_finished_unhandled(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    caplog.set_level(logging.DEBUG, "nsq_ha.consumer")
    async with stage.consumer(skip_header="test") as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"a", message_id(2), layout=EXT, ext=b'{"test":true}')
        peer.message(b"b", message_id(3), layout=EXT, ext=b'{"other":true}')
        peer.message(b"c", message_id(4), layout=EXT)
        assert [(await anext(consumer)).body for _ in range(2)] == [b"b", b"c"]
        await stage.nsqd.until(lambda: peer.of(Finish) == [Finish(message_id(2))])
        assert consumer.stats().skipped == 1
        assert consumer_machine_of(consumer).flow.in_flight == 2
    line = next(record.getMessage() for record in caplog.records if "unhandled" in record.getMessage())
    assert line.startswith("orders-0: finished <Message orders-0 id=0x2 ")
    assert line.endswith("unhandled: it has the header 'test' of skip_header")


async def test_a_header_to_skip_on_a_topic_without_headers_is_warned_about(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.consumer(skip_header="test") as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"a", message_id(2))
        assert (await anext(consumer)).body == b"a"
    [line] = [record.getMessage() for record in caplog.records if "skip_header" in record.getMessage()]
    assert line.startswith("orders/ch: messages of this topic have no headers, so skip_header= skips none of them: ")


async def test_a_filter_that_nsqd_ignores_is_applied_here(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True, ordered=True)
    async with stage.consumer(ext_filter=ExtFilter.equals("k", "v")) as consumer:
        peer = await stage.nsqd.subscriber()
        for number, ext in ((2, b'{"k":"w"}'), (2, b'{"k":"w"}'), (3, None), (4, b'{"k":"v"}')):
            peer.message(b"%d" % number, message_id(number), layout=EXT, ext=ext)
        assert (await anext(consumer)).body == b"4"
        # The copy of the first message has a FIN of its own: without one, it would block the channel.
        await stage.nsqd.until(lambda: peer.of(Finish) == [Finish(message_id(number)) for number in (2, 2, 3)])
        assert consumer.stats().skipped == 3


async def test_a_filter_on_a_topic_without_headers_is_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"messages of topic 'orders' have no headers, so nsqd would ignore ext_fil"):
        await stage.consumer(ext_filter=ExtFilter.equals("k", "v")).__aenter__()
