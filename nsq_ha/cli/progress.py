"""Progress of commands that take long: count, rate and remaining time, on a terminal.

The invariant: what the command prints meanwhile stands above the progress, on lines of its own.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.progress import Task

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

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream
        self._begun = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # typeshed has an attribute
        return self._stream.errors

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
