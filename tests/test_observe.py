"""How events reach the application, and what the application's function cannot do to the client."""

import asyncio
import inspect
import logging
from typing import get_args

import pytest

from nsq_ha import events
from nsq_ha.engine.observe import Observer
from nsq_ha.events import Event, LookupdRecovered, Repartitioned

A = LookupdRecovered(lookupd="http://a:1")
B = LookupdRecovered(lookupd="http://b:1")


def urls(found: list[Event]) -> list[str]:
    return [event.lookupd for event in found if isinstance(event, LookupdRecovered)]


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
    assert record.getMessage().startswith(f"on_event for LookupdRecovered failed: {error!r}")
    assert record.exc_info is not None


async def test_a_coroutine_of_the_application_is_not_left_unawaited(caplog: pytest.LogCaptureFixture) -> None:
    async def later() -> None:
        raise AssertionError

    observer = Observer(lambda _: later())  # looks like a plain function to the rule of the option
    observer.event(A)
    observer.event(B)
    observer.flush()
    [record] = caplog.records
    assert "returned a coroutine, which is not awaited" in record.getMessage()


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
