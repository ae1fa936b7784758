"""The trace log: one JSON line for each publish, delivery, finish and requeue of the selected topics.

A line goes to the logger ``nsq_ha.trace`` at level INFO; :func:`write_to` sends it to a file. Its keys:
``event`` (``publish``, ``delivery``, ``finish``, ``requeue``), ``time_ns``
(this machine's clock; for a publish, the time of the call, and
``acknowledged_ns`` the time of its answer), ``topic``, ``partition``, ``channel``
(not for a publish), ``internal_id``, ``trace_id``, ``offset``, ``attempt``,
``nsqd``.

A publish is logged only if it was traced, since otherwise the server returns no id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nsq_ha.base.forks import Mutex
from nsq_ha.message import Message, Receipt

__all__ = ["TraceSwitch", "switch", "write_to"]

log: Final = logging.getLogger("nsq_ha.trace")

_ALL: Final = ""
"""Stands for all topics."""


class TraceSwitch:
    """Selects the topics for which lines are written; may be changed at any time, from any thread.

    Attributes:
        is_any: Whether any topic is switched on, or something else watches; makes the check for each message cheap.
    """

    def __init__(self) -> None:
        self._lock = Mutex()
        self._topics: frozenset[str] = frozenset()  # switched on
        self._held: Counter[str] = Counter()
        self._on: frozenset[str] = frozenset()  # both
        self._is_watched = False
        self.is_any: bool = False

    def enable(self, *topics: str) -> None:
        """Switch on ``topics``, or all topics if none is given."""
        with self._lock:
            self._topics |= set(topics or (_ALL,))
            self._look()

    def disable(self, *topics: str) -> None:
        """Switch off ``topics``, or all topics if none is given."""
        with self._lock:
            self._topics = self._topics.difference(topics) if topics else frozenset()
            self._look()

    def hold(self, topics: Iterable[str]) -> None:
        """Keep ``topics`` (all if empty) on until :meth:`release` is called as often, even after :meth:`disable`."""
        with self._lock:
            self._held.update(topics or (_ALL,))
            self._look()

    def release(self, topics: Iterable[str]) -> None:
        """Undo one :meth:`hold`."""
        with self._lock:
            self._held -= Counter(topics or (_ALL,))
            self._look()

    def watch(self, *, is_on: bool) -> None:
        """Set whether something else than the log, such as a tracer of spans, watches the messages of all topics."""
        with self._lock:
            self._is_watched = is_on
            self._look()

    def _look(self) -> None:
        self._on = self._topics.union(self._held)
        self.is_any = self._is_watched or bool(self._on)

    def is_on(self, topic: str) -> bool:
        """Return whether lines of ``topic`` are written: it is switched on and the logger is enabled for INFO."""
        return (topic in self._on or _ALL in self._on) and log.isEnabledFor(logging.INFO)


switch: Final = TraceSwitch()
"""The process's switch. ``nsq_ha.tracelog.switch.enable("orders")``."""


def log_publish(receipt: Receipt, began_ns: int) -> None:
    """Write the line of an acknowledged, traced publish; the caller has checked the switch.

    Args:
        receipt: The receipt.
        began_ns: When the publish was called, in nanoseconds since the epoch. The answer may be
            processed after the delivery, so its time would give a negative latency.
    """
    _write("publish", receipt, began_ns, "acknowledged_ns", time.time_ns())


def log_message(event: str, message: Message) -> None:
    """Write the line of a ``delivery``, ``finish`` or ``requeue``; the caller has checked the switch."""
    _write(event, message, time.time_ns(), "channel", message.source.channel)


@contextlib.contextmanager
def write_to(path: Path | str, *topics: str) -> Iterator[None]:
    """Write the trace lines of ``topics`` (all if none is given) to a file while the block runs.

    Lines are appended to the file, one JSON object per line, and do not go to other
    loggers. A last line that a killed process has left unfinished is ended first.

    Several such blocks may run at once; topics that are switched on otherwise stay on.

    Args:
        path: The file; its folder must exist.
        *topics: The topics.

    Raises:
        OSError: The file cannot be opened.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    if handler.stream is not None and ends_within_line(Path(path)):
        handler.stream.write(handler.terminator)
    handler.setFormatter(logging.Formatter("%(message)s"))
    if topics:
        handler.addFilter(lambda record: getattr(record, "topic", None) in topics)
    _files.begin(handler, topics)
    try:
        yield
    finally:
        _files.end(handler, topics)
        handler.close()


def ends_within_line(file: Path) -> bool:
    """Return whether a process that was killed, or a full disk, has left the last line of a file unfinished."""
    with contextlib.suppress(OSError):  # it may be for writing only
        if file.is_file() and file.stat().st_size:
            with file.open("rb") as read:
                read.seek(-1, os.SEEK_END)
                return read.read(1) != b"\n"
    return False


class _Files:
    """The open files; the first one changes the logger's settings, the last one restores them."""

    def __init__(self) -> None:
        self._lock = Mutex()
        self._open = 0
        self._before = (logging.NOTSET, True)

    def begin(self, handler: logging.Handler, topics: Iterable[str]) -> None:
        with self._lock:
            if not self._open:
                self._before = (log.level, log.propagate)
                log.setLevel(logging.INFO)
                log.propagate = False
            self._open += 1
            log.addHandler(handler)
            switch.hold(topics)

    def end(self, handler: logging.Handler, topics: Iterable[str]) -> None:
        with self._lock:
            switch.release(topics)
            log.removeHandler(handler)
            self._open -= 1
            if not self._open:
                level, log.propagate = self._before
                log.setLevel(level)


_files: Final = _Files()


def _write(event: str, found: Receipt | Message, time_ns: int, key: str, value: object) -> None:
    line = {
        "event": event,
        "time_ns": time_ns,
        key: value,
        "topic": found.topic,
        "partition": found.partition,
        "internal_id": found.internal_id,
        "trace_id": found.trace_id,
        "offset": found.offset,
        "attempt": found.attempts,
        "nsqd": found.nsqd,
    }
    log.info("%s", json.dumps(line, separators=(",", ":")), extra={"topic": found.topic})
