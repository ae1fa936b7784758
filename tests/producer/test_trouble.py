"""An outage of a partition is logged, and so is its end."""

import asyncio
import logging

import pytest

from nsq_ha.policy import timing
from tests.engine.lookups.loopback import lookup_body, peer
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "nsq_ha.producer" and record.levelno >= logging.WARNING
    ]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "FIRST_WARNING", 0.3)


@pytest.mark.usefixtures("soon")
async def test_a_partition_without_a_leader_is_warned_about(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.lead({1: stage.nsqds[1]}, 2)
    async with stage.producer() as producer:
        publish = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0))
        await eventually(lambda: warnings(caplog))
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        await asyncio.wait_for(publish, LIMIT)
        first, *_, last = warnings(caplog)
        assert f"{TOPIC}-0: nothing published" in first
        assert "has no leader that accepts writes" in first
        assert f"{TOPIC}-0: publishing works again" in last


@pytest.mark.usefixtures("soon")
async def test_an_address_that_no_client_can_use_is_named(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """The error used to be "has no leader that accepts writes now", although nsqlookupd named one."""
    body = lookup_body({0: stage.nsqd.port})
    body["partitions"] = {"0": peer(stage.nsqd.port) | {"broadcast_address": "nsqd-0..svc"}}
    stage.lookupd.answer("/lookup", body)
    async with stage.producer() as producer:
        publish = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0))
        await eventually(lambda: warnings(caplog))
        publish.cancel()
    assert f"'nsqd-0..svc:{stage.nsqd.port}', which is not valid: set nsqd's -broadcast-address" in warnings(caplog)[0]


@pytest.mark.usefixtures("soon")
async def test_so_is_a_leader_that_does_not_answer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer() as producer:
        publish = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0))
        await eventually(lambda: warnings(caplog))
        holding.release()
        await publish
        first, *_, last = warnings(caplog)
        assert "has not answered" in first
        assert "works again" in last
