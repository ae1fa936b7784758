"""The one place where a command enters the event loop, and where errors become one line and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import click

from nsq_ha.cli.output import clean
from nsq_ha.errors import NsqError

INTERRUPTED: Final = 130
TERMINATED: Final = 143

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result], *, stopped: _Result | None = None) -> _Result:
    """Run a command's coroutine to its end; SIGINT and SIGTERM cancel it once, so that it can close what it opened.

    Args:
        work: The command.
        stopped: What to return when a signal ends it, where that is the ordinary end. None to exit with 130 or 143.

    Raises:
        click.ClickException: The command failed in a way that is no bug of ours; one line, exit code 1.
        click.exceptions.Exit: It was interrupted.
    """
    signals: list[int] = []
    with failures(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_stoppable(work, signals))
        except (KeyboardInterrupt, asyncio.CancelledError):
            if stopped is not None:
                return stopped
            raise click.exceptions.Exit(TERMINATED if signals else INTERRUPTED) from None


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn what can go wrong outside this program into one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # click ends quietly when whoever reads our output has gone
    except (NsqError, OSError) as error:
        raise click.ClickException(_line(error)) from error
    except BaseExceptionGroup as group:
        expected, bugs = group.split((NsqError, OSError))
        if bugs is not None or expected is None:
            raise
        first = _first(expected)
        if isinstance(first, BrokenPipeError):
            raise first from None
        raise click.ClickException(_line(first)) from group


def log_to_stderr(level: int) -> None:
    """Show the library's log lines of ``level`` and above, one line each."""
    logger = logging.getLogger("nsq_ha")
    logger.setLevel(level)
    if not any(isinstance(handler, _Lines) for handler in logger.handlers):
        logger.addHandler(_Lines())


class _Lines(logging.Handler):
    """Writes to whatever standard error is at the time: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.name.removeprefix('nsq_ha.')}: {record.getMessage()}"
        click.echo(clean(text), err=True)


async def _stoppable(work: Coroutine[Any, Any, _Result], signals: list[int]) -> _Result:
    task = asyncio.current_task()

    def stop() -> None:
        signals.append(signal.SIGTERM)
        if task is not None:
            task.cancel()

    # Not on Windows, and not outside the main thread.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await work


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed; choosing it is an application's right, never the library's."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _line(error: BaseException) -> str:
    return clean(str(error) or type(error).__name__)
