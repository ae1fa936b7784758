"""An upstream nsqd, reached by its address: what it takes and refuses at IDENTIFY."""

import json
from collections.abc import AsyncIterator

import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.errors import MessageRefusedError, PublishError
from nsq_ha.protocol import Command
from nsq_ha.protocol.commands import Identify
from tests.support.nsqd import FakeNsqd, Peer, error

LEAST = 25
"""Milliseconds: ``--min-output-buffer-timeout`` by default."""


def refusing(peer: Peer, command: Command) -> bool:
    """Refuse to gather for less, as upstream does, and close."""
    if not isinstance(command, Identify):
        return False
    asked = json.loads(command.body)["output_buffer_timeout"]
    if asked >= LEAST:
        return False
    peer.write(error(f"E_BAD_BODY IDENTIFY output buffer timeout ({asked}) is invalid"))
    peer.close()
    return True


@pytest.fixture
async def upstream(nsqd: FakeNsqd) -> AsyncIterator[FakeNsqd]:
    nsqd.script = refusing
    yield nsqd
    await nsqd.until(lambda: not nsqd.open_peers)


async def test_default_settings_are_taken(upstream: FakeNsqd) -> None:
    address = upstream.node.address
    async with Consumer("t", "c", nsqd=address) as consumer, Producer(nsqd=address) as producer:
        await producer.publish("t", b"x")
        await consumer.wait_subscribed()


async def test_a_setting_that_is_refused_is_named(upstream: FakeNsqd) -> None:
    address = upstream.node.address
    with pytest.raises(MessageRefusedError, match="the option output_buffer_timeout"):
        await Consumer("t", "c", nsqd=address, output_buffer_timeout=0.01).__aenter__()
    async with Producer(nsqd=address, output_buffer_timeout=0.01) as producer:
        with pytest.raises(PublishError, match="the option output_buffer_timeout") as caught:
            await producer.publish("t", b"x", timeout=2.0)
        assert not caught.value.maybe_stored
