"""Run a command's coroutine in an event loop, and turn its errors into one line and an exit code.

Commands that take long show count, rate and remaining time, on a terminal. The invariant: what the command prints
meanwhile stands above the progress, on lines of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, TypeVar

import click

from nsq_ha.cli import INTERRUPTED, TERMINATED
from nsq_ha.cli.output import drop_output, explained
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task


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


_MARGIN: Final = 3
"""Columns that stay free, so that the ``^C`` that a terminal shows does not begin another line."""


class Progress:
    """Shows how many messages are done, while its block runs. Only if standard error is a terminal.

    Args:
        label: What is done, such as "copied".
        total: How many there are. None if that is unknown.
        counts: False shows only for how long it takes already.

    Attributes:
        done: Number of messages done.
    """

    def __init__(self, label: str, total: int | None = None, *, counts: bool = True) -> None:
        self.done: int = 0
        self._label = label
        self._total = total
        self._counts = counts
        self._advance: Callable[[int], None] = lambda _: None
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and threading.current_thread() is threading.main_thread():
            bar = _bar(has_total=self._total is not None, counts=self._counts)
            task = bar.add_task(self._label, total=self._total)
            self._advance = partial(bar.advance, task)
            self._opened.enter_context(_prints_above(bar.console))
            self._opened.enter_context(bar)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._opened.close()

    def advance(self, count: int = 1) -> None:
        """Count messages."""
        self.done += count
        self._advance(count)


@contextlib.contextmanager
def _prints_above(console: Console) -> Iterator[None]:
    """Let what is printed to a terminal appear above the bar; a pipe or a file gets it unchanged."""
    before = sys.stdout, sys.stderr
    above = [_Above(console, stream) for stream in before if stream.isatty()]
    sys.stderr = above[-1]
    if len(above) > 1:
        sys.stdout = above[0]
    try:
        yield
    finally:
        for stream in above:
            stream.end()
        sys.stdout, sys.stderr = before


class _Above(io.TextIOBase):
    """A terminal that prints whole lines through a console, which knows where its bar is.

    ``rich`` has such a class, too, but without an encoding; so click writes around it, onto the bar.
    """

    encoding: str = ""
    errors: str | None = None

    def __init__(self, console: Console, stream: TextIO) -> None:
        self.encoding, self.errors = stream.encoding, stream.errors
        self._console = console
        self._stream = stream
        self._begun = ""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        from rich.text import Text

        whole, newline, self._begun = (self._begun + text).rpartition("\n")
        if newline:
            self._console.print(Text.from_ansi(whole), soft_wrap=True)
        return len(text)

    def end(self) -> None:
        """Print a line that has no end."""
        if self._begun:
            self.write("\n")


def _bar(*, has_total: bool, counts: bool) -> Any:  # noqa: ANN401 - rich is loaded only on a terminal
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        """Messages per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed or (task.completed / task.elapsed if task.elapsed else 0.0)
            return Text(f"{speed:,.0f}/s")

    console = Console(file=sys.stderr)  # this one, also while it is replaced
    console.width = max(1, console.width - _MARGIN)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    if not counts:
        columns = [SpinnerColumn(), *columns]
    elif has_total:
        columns += [BarColumn(None), TextColumn("{task.completed:,.0f} of {task.total:,.0f}"), Rate()]
    else:
        columns += [TextColumn("{task.completed:,.0f}"), Rate()]
    columns.append(TimeElapsedColumn())
    columns += [TextColumn("remaining"), TimeRemainingColumn()] if has_total else []
    return Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
