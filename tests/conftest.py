"""How hypothesis looks for examples, what no test leaves behind, and what a busy machine must not change."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.logging import LogCaptureHandler
from hypothesis import settings

from nsq_ha.base import aside
from tests.spark_host import SparkHost
from tests.support import programs
from tests.support.chance import examples_of_the_tree_alone
from tests.support.chromium import chromium
from tests.support.full import FULL, mark_cases
from tests.support.inside import forget_errors, forget_secrets
from tests.support.loops import LOOPS


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_cases(item for item in items if item.path.is_relative_to(Path(__file__).parent))  # others may have theirs


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    """Forget the secrets of a test, which another one's error messages may hold, and the unexpected errors.

    A test that runs twice in a process would see its error counted, not logged in full.
    """
    yield
    forget_secrets()
    forget_errors()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Return what was logged, with the records that a background loop has handed over to the thread that logs."""
    kept = caplog.handler

    def handler(_: object) -> LogCaptureHandler:
        aside.wait_handled(10.0)
        return kept

    monkeypatch.setattr(pytest.LogCaptureFixture, "handler", property(handler))
    return caplog


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return new folders in one that pytest made, which looks through all others each time it makes one."""
    whole = tmp_path_factory.mktemp("states")
    return (whole / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def state_of_its_own(states: Iterator[Path]) -> Iterator[None]:
    """Commands remember nothing of the clusters of other tests.

    The patch has a context of its own: the fixture ``monkeypatch``, set up for all tests, would undo a test's patches
    after those of the fixtures below them.
    """
    with pytest.MonkeyPatch.context() as patch:
        state = next(states)
        state.mkdir()
        patch.setenv("XDG_STATE_HOME", str(state))
        yield


@pytest.fixture(scope="session")
def spark_host() -> Iterator[SparkHost]:
    """Return the one process in which the Spark programs of all pages run; it starts with the first of them."""
    host = SparkHost()
    yield host
    host.close()


@pytest.fixture(scope="session", autouse=True)
def programs_end() -> Iterator[None]:
    yield
    programs.close()


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    """Start Chromium without a window."""
    async with chromium() as opened:
        yield opened


def is_about_our_code(record: logging.LogRecord) -> bool:
    """Tell whether a record of asyncio's says more than that the machine was slow for a moment."""
    return record.msg != "Executing %s took %.3f seconds"


# Tests look at what was logged; that a turn of the event loop took 0.1 s says nothing about what they test.
logging.getLogger("asyncio").addFilter(is_about_our_code)


# What an example may take is not asserted: that is the machine's. `make test` tries the same few examples on the same
# tree, so that its result is the tree's alone; `make test-full` looks for new ones.
settings.register_profile("nsq_ha", deadline=None, derandomize=not FULL, max_examples=150 if FULL else 20)
settings.load_profile("nsq_ha")
examples_of_the_tree_alone()
