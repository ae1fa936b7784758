"""How events reach the application, and what the application's function cannot do to the client."""

import asyncio
import inspect
import logging
import time
from typing import get_args

import msgspec
import pytest

from nsq_ha import events
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.events import Event, LookupdRecovered, Repartitioned

A = LookupdRecovered(lookupd="http://a:1")
B = LookupdRecovered(lookupd="http://b:1")


def urls(found: list[Event]) -> list[str]:
    return [event.lookupd for event in found if isinstance(event, LookupdRecovered)]


async def test_events_come_in_order_after_the_code_that_reports() -> None:
    found: list[Event] = []
    observer = Observer(found.append)
    began = time.time()
    observer.event(A)
    observer.event(B)
    assert found == []
    await asyncio.sleep(0)
    assert urls(found) == ["http://a:1", "http://b:1"]
    assert all(began <= event.at <= time.time() for event in found)


async def test_a_flush_does_not_wait_for_the_loop() -> None:
    found: list[Event] = []
    observer = Observer(found.append)
    observer.event(A)
    observer.flush()
    assert urls(found) == ["http://a:1"]
    await asyncio.sleep(0)
    assert len(found) == 1


async def test_an_event_that_a_listener_causes_comes_after_the_others() -> None:
    found: list[Event] = []

    def listen(event: Event) -> None:
        found.append(event)
        if len(found) == 1:
            observer.event(msgspec.structs.replace(A, lookupd="http://c:1"))

    observer = Observer(listen)
    observer.event(A)
    observer.event(B)
    observer.flush()
    assert urls(found) == ["http://a:1", "http://b:1", "http://c:1"]


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError(), ExceptionGroup("many", [OSError()])])
async def test_errors_are_logged_once(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    found: list[Event] = []

    def fail(event: Event) -> None:
        found.append(event)
        raise error

    observer = Observer(fail)
    observer.event(A)
    observer.event(B)
    observer.flush()
    assert urls(found) == ["http://a:1", "http://b:1"]
    [record] = caplog.records
    assert (record.name, record.levelno) == ("nsq_ha.events", logging.ERROR)
    assert record.getMessage().startswith(f"on_event failed for LookupdRecovered: {error!r}")
    assert record.exc_info is not None


async def test_events_go_on_after_an_exit_that_did_not_end_the_program() -> None:
    found: list[Event] = []

    def leave(event: Event) -> None:
        found.append(event)
        if len(found) == 1:
            raise SystemExit

    observer = Observer(leave)
    observer.event(A)
    observer.event(A)
    with pytest.raises(SystemExit):
        observer.flush()
    observer.event(B)
    observer.flush()
    assert urls(found) == ["http://a:1", "http://a:1", "http://b:1"]


def test_a_client_that_is_collected_after_its_loop_reports_nothing() -> None:
    found: list[Event] = []
    Observer(found.append).event(A)
    assert found == []


async def test_a_coroutine_of_the_application_is_not_left_unawaited(caplog: pytest.LogCaptureFixture) -> None:
    async def later() -> None:
        raise AssertionError

    observer = Observer(lambda _: later())  # looks like a plain function to the rule of the option
    observer.event(A)
    observer.event(B)
    observer.flush()
    [record] = caplog.records
    assert "returned a coroutine, which is not awaited" in record.getMessage()


async def test_without_a_listener_nothing_is_kept() -> None:
    SILENT.event(A)
    SILENT.flush()


def test_all_events_are_frozen_slotted_keyword_only_and_described() -> None:
    assert events.__all__ == sorted(events.__all__)
    kinds = [kind for name in events.__all__ if inspect.isclass(kind := getattr(events, name))]
    assert len(kinds) == len(events.__all__) - 1
    assert get_args(events.BackoffState) == ("paused", "testing", "ended")
    for kind in kinds:
        assert issubclass(kind, Event)
        assert inspect.getdoc(kind), kind
        assert "__slots__" in vars(kind), kind
        for name, argument in inspect.signature(kind).parameters.items():
            assert argument.kind is argument.KEYWORD_ONLY, name
            assert f"{name}:" in (inspect.getdoc(kind) or "") or name == "at", name
    with pytest.raises(AttributeError):
        A.lookupd = ""  # type: ignore[misc]
    assert Repartitioned(topic="orders", channel=None, before=1, after=2).at == 0.0
