"""What frameworks read of a public callable at run time: the types of its annotations."""

import importlib
import inspect
import typing
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, Protocol, get_type_hints

import pytest

import nsq_ha
from nsq_ha import Batch, Message, OutgoingMessage, PublishError, Receipt, sync

MODULES = (
    "",
    ".admin",
    ".dashboard",
    ".dead_letters",
    ".devcluster",
    ".errors",
    ".events",
    ".prometheus",
    ".protocol",
    ".stats",
    ".sync",
    ".telemetry",
    ".testing",
    ".tracelog",
)


def callables(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public callables of a public module, and the methods of its classes."""
    found = importlib.import_module(f"nsq_ha{module}")
    own = (name for name, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__)
    for name in getattr(found, "__all__", own):
        thing = getattr(found, name)
        if inspect.isclass(thing):
            yield name, thing
            for method, value in inspect.getmembers_static(thing):
                inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                is_ours = (getattr(inner, "__module__", None) or "").startswith("nsq_ha")
                if is_ours and inspect.isfunction(inner) and (method.startswith("__") or not method.startswith("_")):
                    yield f"{name}.{method}", inner
        elif inspect.isfunction(thing):
            yield name, thing


@pytest.mark.parametrize("module", MODULES)
def test_the_types_of_every_public_callable_exist_at_run_time(module: str) -> None:
    found = list(callables(module))
    assert found
    for name, thing in found:
        try:
            get_type_hints(thing, include_extras=True)
        except NameError as error:
            pytest.fail(f"nsq_ha{module}: {name}: {error}")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (owner, name)
        for owner in (sync.Producer, sync.Consumer, sync.AdminClient, sync.Worker)
        for name, value in vars(owner).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_a_call_for_threads_shows_its_real_signature(owner: type, name: str) -> None:
    shown = inspect.signature(getattr(owner, name))
    assert "args" not in shown.parameters
    assert all(each.annotation is not each.empty for each in [*shown.parameters.values()][1:])
    assert get_type_hints(getattr(owner, name)).keys() >= {"return"}


def test_publish_nowait_shows_that_it_returns_a_future() -> None:
    assert get_type_hints(sync.Producer.publish_nowait)["return"] == Future[Receipt]
    assert inspect.signature(sync.Producer.publish_nowait).return_annotation == Future[Receipt]
    assert get_type_hints(sync.Producer.publish)["return"] is Receipt
    assert typing.get_origin(get_type_hints(sync.Consumer.batches)["return"]) is Iterator
    assert typing.get_args(get_type_hints(sync.Consumer.batches)["return"]) == (Batch,)


class Publisher(Protocol):
    """What an application may ask of a producer for threads."""

    def publish(self, topic: str, body: bytes, *, key: str | None = None) -> Receipt:
        """Publish."""

    def publish_many(self, topic: str, messages: list[bytes | OutgoingMessage]) -> list[Receipt | PublishError]:
        """Publish."""


class Counting(sync.Producer):
    """A producer of an application."""

    published = 0

    def publish(self, topic: str, body: bytes, **options: Any) -> Receipt:  # noqa: ANN401
        Counting.published += 1
        return super().publish(topic, body, **options)


def test_methods_for_threads_can_be_overridden_and_match_a_protocol() -> None:
    with sync.Producer(nsqd="127.0.0.1:1") as producer, Counting(nsqd="127.0.0.1:1") as counting:
        publishers: tuple[Publisher, ...] = producer, counting
        for each in publishers:
            with pytest.raises(nsq_ha.ConfigError, match="topic"):
                each.publish("no topic!", b"x")
    assert Counting.published == 1


class Handler(Protocol):
    """What an application may ask of a consumer for threads."""

    def __next__(self) -> Message:
        """Return a message."""

    def health(self) -> object:
        """Tell how it is."""


def test_a_consumer_for_threads_matches_a_protocol() -> None:
    consumer: Handler = sync.Consumer("t", "c", nsqd="127.0.0.1:1")
    assert consumer.health() is not None
