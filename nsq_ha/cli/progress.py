"""Progress of commands that take long: count, rate and remaining time, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import Task, TaskID


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

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and threading.current_thread() is threading.main_thread():
            self._bar = _bar(self._total is not None)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()

    def advance(self, count: int = 1) -> None:
        """Count messages."""
        self.done += count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)


def _bar(has_total: bool) -> Any:  # noqa: ANN401 - rich is loaded only on a terminal
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        """Messages per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed or (task.completed / task.elapsed if task.elapsed else 0.0)
            return Text(f"{speed:,.0f}/s")

    known = [BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f}")]
    unknown = [TextColumn("{task.completed:,.0f}")]
    times = [TimeElapsedColumn(), *([TextColumn("remaining"), TimeRemainingColumn()] if has_total else [])]
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        *(known if has_total else unknown),
        Rate(),
        *times,
    ]
    # What is printed meanwhile goes above the bar; a pipe or a file gets it unchanged.
    return Bar(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        refresh_per_second=4,
    )
