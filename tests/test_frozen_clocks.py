"""Tests of an application may freeze its time, and set it by years: the clients go on."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable

import pytest

from tests.support.nsqd import LIMIT, message_id
from tests.support.stage import TOPIC, Stage

FROZEN = 1_577_836_800.0
"""The start of 2020."""


def freeze(patch: pytest.MonkeyPatch) -> None:
    """Freeze time as freezegun does with ``real_asyncio=True``: wherever a module holds a function of ``time``."""
    real: Callable[[], float] = time.monotonic
    patch.setattr(asyncio.BaseEventLoop, "time", lambda _: real())
    for name, frozen in (("monotonic", FROZEN), ("time", FROZEN), ("time_ns", int(FROZEN * 1e9))):
        function = getattr(time, name)
        for module in [*sys.modules.values()]:
            if not module.__name__.startswith(("asyncio", "threading", "queue", "_pytest", "pytest")):
                for attribute in [key for key, value in vars(module).items() if value is function]:
                    patch.setattr(module, attribute, lambda frozen=frozen: frozen)


async def test_a_consumer_that_was_opened_before_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with (
        asyncio.timeout(LIMIT),
        Stage() as stage,
        stage.producer(publish_timeout=LIMIT) as producer,
        stage.consumer() as consumer,
    ):
        peer = await stage.nsqd.subscriber()
        for number in range(2, 5):
            with pytest.MonkeyPatch.context() as patch:
                freeze(patch)
                assert (time.monotonic(), time.time()) == (FROZEN, FROZEN)
                await producer.publish(TOPIC, b"x", key="k")
                for each in range(3):
                    peer.message(b"%d" % each, message_id(10 * number + each))
                    (await anext(consumer)).finish()
        assert (producer.is_healthy, consumer.is_healthy) == (True, True)
    assert "blocked" not in caplog.text
