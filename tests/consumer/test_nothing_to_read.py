"""A topic whose last nsqd goes away, or that is deleted: attempts to connect stop then, and warnings go on."""

import logging
from collections.abc import Callable

import pytest

from nsq_ha import Consumer
from nsq_ha.events import Recovered, Stalled
from tests.support.events import Events
from tests.support.nsqd import LIMIT
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually

PLAIN_GONE = {"message": "TOPIC_NOT_FOUND"}, 404
DELETED = {"message": "Key not found"}, 404


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def listed(stage: Stage, *, is_plain: bool) -> None:
    if is_plain:
        stage.list_plain(stage.nsqd)
    else:
        stage.lead({0: stage.nsqd})


def unlisted(stage: Stage) -> None:
    stage.list_plain()


def deleted_plain(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", *PLAIN_GONE)


def deleted(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", *DELETED)


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        pytest.param(unlisted, "no nsqlookupd lists an nsqd for topic 'orders' any more", id="last-nsqd"),
        pytest.param(deleted_plain, "no nsqlookupd lists an nsqd for topic 'orders' any more", id="plain-topic"),
        pytest.param(deleted, "there is no topic 'orders'", id="partitioned-topic"),
    ],
)
async def test_a_topic_that_goes_away_is_warned_about_again_and_again(
    stage: Stage, caplog: pytest.LogCaptureFixture, leave: Callable[[Stage], None], reason: str
) -> None:
    is_plain, events = leave is not deleted, Events()
    listed(stage, is_plain=is_plain)
    async with stage.consumer(on_event=events.append) as consumer:
        await stage.nsqd.subscriber()
        leave(stage)
        await stage.nsqd.stop()
        await dawdle(4.0)
        assert not [line for line in warnings(caplog) if "nothing to read" in line]
        await dawdle(8.0)
        (first,) = [line for line in warnings(caplog) if "nothing to read" in line]
        assert reason in first
        assert reason in consumer.health().reason
        assert not consumer.is_healthy
        assert [event.reason for event in events if isinstance(event, Stalled) and reason in event.reason]
        await dawdle(15.0)
        assert len([line for line in warnings(caplog) if "nothing to read" in line]) == 2
        await stage.nsqd.start()
        listed(stage, is_plain=is_plain)
        await stage.nsqd.subscriber()
        await eventually(lambda: consumer.health(patience=0.0).reason == "ok", LIMIT)
        assert events.of(Recovered)
        assert [line for line in warnings(caplog) if "found the topic after" in line]


async def test_a_topic_that_no_nsqlookupd_lists_is_no_trouble_while_its_nsqd_delivers(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        unlisted(stage)
        await dawdle(30.0)
        assert consumer.health(patience=0.0).reason == "ok"
        await stage.nsqd.stop()
        await dawdle(7.0)
        assert "no nsqlookupd lists an nsqd" in consumer.health().reason
    (line,) = [line for line in warnings(caplog) if "nothing to read" in line]
    assert line.startswith("orders/ch: nothing to read for 5 s: ")


async def test_health_of_a_consumer_that_has_seen_its_topic_go_is_at_once_up_to_date(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        unlisted(stage)
        await stage.nsqd.stop()
        await eventually(lambda: _names(consumer, "no nsqlookupd lists an nsqd for topic 'orders' any more"))


def _names(consumer: Consumer, text: str) -> bool:
    return text in consumer.health(patience=0.0).reason
