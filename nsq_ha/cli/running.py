"""Run a command's coroutine in an event loop, and turn its errors into one line and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import click

from nsq_ha.cli import INTERRUPTED, TERMINATED
from nsq_ha.cli.output import drop_output, explained
from nsq_ha.errors import NsqError

_ALIKE: Final = 60.0
"""Seconds for which warnings that differ only in numbers are not shown again."""
_NUMBERS: Final = re.compile(r"[0-9]+")

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result], *, stopped: _Result | None = None, has_end: bool = False) -> _Result:
    """Run a command's coroutine to its end; SIGINT and SIGTERM cancel it once, so that it can clean up.

    Args:
        work: The command.
        stopped: The value to return if the command is normally ended by a signal, or by the reader of its output.
            None to exit with 130, 143 or 141.
        has_end: Whether the user gave the command an end, such as a count. A signal then interrupts it, even if
            ``stopped`` is given.

    Raises:
        click.ClickException: The command failed, but not because of a bug. Prints one line; exit code 1.
        click.exceptions.Exit: It was interrupted.
        BrokenPipeError: The reader of the output has ended, and ``stopped`` is None.
    """
    signals: list[int] = []
    try:
        with failures(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                return runner.run(_stoppable(work, signals))
            except (KeyboardInterrupt, asyncio.CancelledError):
                if stopped is not None and not has_end:
                    return stopped
                raise click.exceptions.Exit(TERMINATED if signals else INTERRUPTED) from None
    except BrokenPipeError:
        if stopped is None:
            raise
        drop_output()
        return stopped


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn errors that are not bugs of this program into one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # the group of all commands ends quietly if the reader of our output has ended
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
    """Show the library's log lines of ``level`` and above, one line each.

    What ends a consumer is left out, unless more was asked for: the command reports it.
    """
    logger = logging.getLogger("nsq_ha")
    logger.setLevel(level)
    for handler in [each for each in logger.handlers if isinstance(each, _Lines)]:
        logger.removeHandler(handler)
    lines = _Lines()
    if level >= logging.WARNING:
        lines.addFilter(lambda record: (record.name, record.levelno) != ("nsq_ha.consumer", logging.ERROR))
        lines.addFilter(OnlyOnce())
    logger.addHandler(lines)


class _Lines(logging.Handler):
    """Writes to the current standard error, which a live display may replace."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.name.removeprefix('nsq_ha.')}: {record.getMessage()}"
        _note(explained(text))


def _note(text: str) -> None:
    """Print a line to standard error; if it is full or closed, the client that logs must not end because of that."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(text, err=True)


class OnlyOnce(logging.Filter):
    """Keeps warnings that differ only in numbers from the one before within a time: other partitions, nsqds, attempts.

    One cause, such as a wrong certificate, is otherwise reported by each partition.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._shown: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to show a line; say once that there are others like it."""
        now = self._clock()
        kind = f"{record.name} {_NUMBERS.sub('0', record.getMessage())}"
        at, others = self._shown.get(kind, (-math.inf, 0))
        if now - at >= _ALIKE:
            self._shown[kind] = (now, 0)
            return True
        self._shown[kind] = (at, others + 1)
        if not others:
            _note("warning: the same for other partitions or nsqds, or again; -v shows each")
        return False


async def _stoppable(work: Coroutine[Any, Any, _Result], signals: list[int]) -> _Result:
    task = asyncio.current_task()

    def stop() -> None:
        if task is not None and not signals:  # `timeout` sends it twice
            task.cancel()
        signals.append(signal.SIGTERM)

    # Not possible on Windows, or outside the main thread.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await work


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop if it is installed; applications may choose it, the library never does."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _line(error: BaseException) -> str:
    return explained(str(error) or type(error).__name__)
