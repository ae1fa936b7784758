"""Progress of commands that take long: count, rate and remaining time, on a terminal.

The invariant: what the command prints meanwhile stands above the progress, on lines of its own.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import Task, TaskID

_NARROW: Final = 72
"""Columns below which the bar itself and the elapsed time are left out."""
_MARGIN: Final = 3
"""Columns that stay free, so that the ``^C`` that a terminal shows does not begin another line."""


class Progress:
    """Shows how many messages are done, while its block runs. Only if standard error is a terminal.

    Args:
        label: What is done, such as "copied".
        total: How many there are. None if that is unknown.

    Attributes:
        done: Number of messages done.
    """

    def __init__(self, label: str, total: int | None = None) -> None:
        self.done: int = 0
        self._label = label
        self._total = total
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and threading.current_thread() is threading.main_thread():
            self._bar = _bar(self._total is not None)
            self._opened.enter_context(_prints_above(self._bar.console))
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
        self._opened.close()

    def advance(self, count: int = 1) -> None:
        """Count messages."""
        self.done += count
        self._update(completed=self.done)

    def expect(self, total: int) -> None:
        """Correct an estimate of how many there are."""
        self._update(total=max(total, self.done))

    def _update(self, **fields: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **fields)  # type: ignore[arg-type]  # numbers


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show what is waited for, and for how long, while the block runs. Only if standard error is a terminal."""
    if not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with _prints_above(console), bar:
        bar.add_task(what, total=None)
        yield


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


def _bar(has_total: bool) -> Any:  # noqa: ANN401 - rich is loaded only on a terminal
    from rich.console import Console
    from rich.constrain import Constrain
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        """Messages per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed or (task.completed / task.elapsed if task.elapsed else 0.0)
            return Text(f"{speed:,.0f}/s")

    class Narrow(Bar):
        """Leaves the last columns of the terminal free."""

        def get_renderables(self) -> Iterator[Constrain]:
            yield Constrain(self.make_tasks_table(self.tasks), max(1, console.width - _MARGIN))

    console = Console(file=sys.stderr)  # this one, also while it is replaced
    is_narrow = console.width < _NARROW
    known = [*([] if is_narrow else [BarColumn()]), TextColumn("{task.completed:,.0f} of {task.total:,.0f}")]
    unknown = [TextColumn("{task.completed:,.0f}")]
    remaining = [TextColumn("remaining"), TimeRemainingColumn()] if has_total else []
    times = remaining if is_narrow and has_total else [TimeElapsedColumn(), *remaining]
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        *(known if has_total else unknown),
        Rate(),
        *times,
    ]
    return Narrow(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        refresh_per_second=4,
    )
