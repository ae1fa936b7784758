"""The clock of the calendar may step, as after a correction: no limit and no pause goes by it."""

import ast
import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsq_ha
from nsq_ha.consumer import shell
from nsq_ha.events import Event
from tests.support.nsqd import LIMIT, message_id
from tests.support.stage import TOPIC, Stage

PACKAGE = Path(nsq_ha.__file__).parent
SHOWS = {
    "admin/statistics.py",  # for how long a node has been gone, also since another program's look
    "consumer/giving_up.py",  # when a message was given up
    "consumer/shell.py",  # the lag
    "engine/observe.py",  # when an event happened
    "producer/batch.py",  # when a publish began, for the trace log
    "producer/producer.py",
    "tracelog.py",
}
"""What reads that clock to show a time."""
LEFT_OUT = ("cli", "dashboard", "devcluster", "spark", "testing")
"""Folders whose programs show times, or play a server or a client."""
CALENDAR = {"time", "time_ns", "now", "utcnow", "today"}

DAY = 86_400.0


def reads_the_calendar(source: str) -> bool:
    """Tell whether code calls a function of the module ``time`` or of ``datetime`` that steps."""
    if not re.search(r"\b(?:time|datetime|date)\.(?:time|now|utcnow|today)|from time import (?:\(|.*\btime)", source):
        return False  # most have neither, and reading all would take seconds
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="time", names=names) if CALENDAR & {each.name for each in names}:
                return True
            case ast.Attribute(value=ast.Name(id="time" | "datetime" | "date"), attr=name) if name in CALENDAR:
                return True
    return False


def test_only_what_shows_a_time_reads_the_calendar() -> None:
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    found = {
        path.as_posix()
        for path in modules
        if path.parts[0] not in LEFT_OUT and reads_the_calendar((PACKAGE / path).read_text("utf-8"))
    }
    assert found == SHOWS


@pytest.mark.parametrize(
    "source",
    ["import time\ntime.time()", "from time import time_ns", "from datetime import datetime\ndatetime.now(UTC)"],
)
def test_a_module_that_reads_it_is_found(source: str) -> None:
    assert reads_the_calendar(source)
    assert not reads_the_calendar("import time\ntime.monotonic(), loop.time(), self.time")


class Calendar:
    """The clock of the calendar, which a test sets."""

    def __init__(self) -> None:
        self.offset = 0.0
        self._time = time.time

    def time(self) -> float:
        return self._time() + self.offset

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calendar]:
    calendar = Calendar()
    monkeypatch.setattr(time, "time", calendar.time)
    monkeypatch.setattr(time, "time_ns", calendar.time_ns)
    monkeypatch.setattr(shell, "time_ns", calendar.time_ns)
    yield calendar
    monkeypatch.undo()


async def test_messages_pass_whatever_the_calendar_does(calendar: Calendar) -> None:
    events: list[Event] = []
    async with (
        asyncio.timeout(LIMIT),
        Stage() as stage,
        stage.producer(on_event=events.append, publish_timeout=LIMIT) as producer,
        stage.consumer(on_event=events.append) as consumer,
    ):
        peer = await stage.nsqd.subscriber()
        for number, offset in enumerate((0.0, -DAY, DAY, -400 * DAY, 400 * DAY, 0.0), 2):
            calendar.offset = offset
            receipt = await producer.publish(TOPIC, b"x", key="k")
            assert receipt.attempts == 1
            peer.message(b"%d" % number, message_id(number))
            message = await anext(consumer)
            assert message.body == b"%d" % number
            message.finish()
        assert (producer.is_healthy, consumer.is_healthy) == (True, True)
        assert len(stage.nsqd.peers) == 2, "no connection was given up"
    assert events
