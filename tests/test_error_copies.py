"""Errors cross processes and are copied: with their type, their text and what they say."""

import copy
import importlib
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import nsq_ha
from nsq_ha.errors import (
    ChangeIncompleteError,
    ConnectError,
    NsqError,
    PublishError,
    TopicNotFoundError,
    server_error,
)

VALUES = {
    "int": 7,
    "bool": True,
    "str": "some words",
    "str | None": "more words",
    "int | None": 8,
    "object": "anything",
    "tuple[tuple[str, str], ...]": (("a:4161", "refused"),),
    "tuple[str, ...]": ("done",),
    "Message": "a message",
}
"""An argument of each type that the constructors take."""
WAYS: dict[str, Callable[[Exception], Exception]] = {
    "pickle 2": lambda error: pickle.loads(pickle.dumps(error, 2)),  # noqa: S301
    "pickle 5": lambda error: pickle.loads(pickle.dumps(error, 5)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def kinds() -> Iterator[type[Exception]]:
    """Yield every class of an exception in the package."""
    folder = Path(nsq_ha.__file__).parents[1]
    for path in (folder / "nsq_ha").rglob("*.py"):
        if re.search(r"^class \w+\(.*(Error|Exception)\b.*\)", path.read_text("utf-8"), re.MULTILINE):
            module = importlib.import_module(".".join(path.relative_to(folder).with_suffix("").parts))
            for _, kind in inspect.getmembers(module, inspect.isclass):
                if issubclass(kind, Exception) and kind.__module__ == module.__name__:
                    yield kind


KINDS = sorted(set(kinds()), key=lambda kind: kind.__name__)


def made(kind: type[Exception]) -> Exception:
    """Return one with an argument for each parameter."""
    given: list[object] = []
    named: dict[str, object] = {}
    for each in [*inspect.signature(kind.__init__).parameters.values()][1:]:
        if each.kind is each.VAR_POSITIONAL:
            given.append("some words")
        elif each.kind is each.KEYWORD_ONLY:
            named[each.name] = VALUES[each.annotation]
        elif each.kind is each.POSITIONAL_OR_KEYWORD:
            given.append(VALUES[each.annotation])
    return kind(*given, **named)


def check(error: Exception, again: Exception) -> None:
    """Check that both are alike."""
    assert type(again) is type(error)
    assert (str(again), repr(again), again.args) == (str(error), repr(error), error.args)
    assert vars(again) == vars(error)
    shown = [name for name, value in inspect.getmembers(error) if not (name.startswith("_") or callable(value))]
    assert {name: getattr(again, name) for name in shown} == {name: getattr(error, name) for name in shown}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_survives(kind: type[Exception], way: Callable[[Exception], Exception]) -> None:
    error = made(kind)
    error.add_note("a note")
    check(error, way(error))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_errors_as_they_are_made(way: Callable[[Exception], Exception]) -> None:
    for error in (
        TopicNotFoundError.named("orders"),
        server_error(b"E_FIN_FAILED FIN [48 0 0 0 0 0 0 1 0 0 0 0 0 0 0 2] failed Message ID not in flight"),
        ChangeIncompleteError("pausing", (("partition 1", "no leader"),), ("partition 0",)),
    ):
        check(error, way(error))
        check(error, way(way(error)))


def refused() -> PublishError:
    """Return an error with a cause that a retry cures."""
    error = PublishError("refused", topic="orders", partition=3, attempts=2, maybe_stored=False, nsqd="a:4150")
    error.__cause__ = ConnectError("refused")
    return error


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_cause_that_says_whether_to_retry_survives(way: Callable[[Exception], Exception]) -> None:
    again = way(refused())
    assert isinstance(again, PublishError)
    assert again.retriable
    assert isinstance(again.__cause__, ConnectError)


def fails(_: object) -> None:
    """Fail as a job in another process."""
    raise refused()


def test_a_failed_publish_breaks_no_pool_of_processes() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for _ in range(2):
            with pytest.raises(PublishError, match="publish to orders-3 at a:4150 failed") as caught:
                pool.submit(fails, None).result()
            assert (caught.value.partition, caught.value.attempts, caught.value.maybe_stored) == (3, 2, False)
    assert issubclass(PublishError, NsqError)
