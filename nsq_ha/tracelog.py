"""The trace log: one JSON line for each publish, delivery, finish and requeue of the topics it is switched on for.

Owns the lines' shape and the switch. A line goes to the logger
``nsq_ha.trace`` at level INFO; :func:`write_to` sends it to a file. Keys:
``event`` (``publish``, ``delivery``, ``finish``, ``requeue``), ``time_ns``
(this machine's clock; of a publish, when it was called, with
``acknowledged_ns`` for its answer), ``topic``, ``partition``, ``channel`` (not of a
publish), ``internal_id``, ``trace_id``, ``offset``, ``attempt``, ``nsqd``.
A publish is logged only when it was traced: without that the server names no id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from nsq_ha.message import Message, Receipt

log: Final = logging.getLogger("nsq_ha.trace")


_ALL: Final = ""


class TraceSwitch:
    """For which topics lines are written; may be changed at any time, from any thread.

    Attributes:
        is_any: False if no topic is switched on, so that the check for each message is cheap.
    """

    def __init__(self) -> None:
        """Start switched off."""
        self._lock = threading.Lock()
        self._all = False
        self._topics: frozenset[str] = frozenset()
        self._held: Counter[str] = Counter()
        self.is_any: bool = False

    def enable(self, *topics: str) -> None:
        """Switch on for ``topics``; for all when none is named."""
        with self._lock:
            if topics:
                self._topics |= set(topics)
            else:
                self._all = True
            self._look()

    def disable(self, *topics: str) -> None:
        """Switch off for ``topics``; everything when none is named."""
        with self._lock:
            if topics:
                self._topics -= set(topics)
            else:
                self._all, self._topics = False, frozenset()
            self._look()

    def hold(self, topics: Iterable[str]) -> None:
        """Have ``topics`` on (all, when there are none) until released as often; :meth:`disable` does not end it."""
        with self._lock:
            self._held.update(topics or (_ALL,))
            self._look()

    def release(self, topics: Iterable[str]) -> None:
        """End what :meth:`hold` began."""
        with self._lock:
            self._held.subtract(topics or (_ALL,))
            self._held += Counter()  # what is down to 0 goes
            self._look()

    def _look(self) -> None:
        self.is_any = self._all or bool(self._topics) or bool(self._held)

    def is_on(self, topic: str) -> bool:
        """Return whether lines of ``topic`` are written: switched on, and somebody listens to the logger."""
        held = self._held
        is_on = self._all or topic in self._topics or topic in held or _ALL in held
        return is_on and log.isEnabledFor(logging.INFO)


switch: Final = TraceSwitch()
"""The process's switch. ``nsq_ha.tracelog.switch.enable("orders")``."""


def log_publish(receipt: Receipt, began_ns: int) -> None:
    """Write the line of an acknowledged, traced publish; the caller asked the switch.

    Args:
        receipt: What the server stored.
        began_ns: When the publish was called, nanoseconds since the epoch. The answer may be
            handled after the delivery, so its time would tell a latency below zero.
    """
    _write(
        {
            "event": "publish",
            "time_ns": began_ns,
            "acknowledged_ns": time.time_ns(),
            "topic": receipt.topic,
            "partition": receipt.partition,
            "internal_id": receipt.internal_id,
            "trace_id": receipt.trace_id,
            "offset": receipt.offset,
            "attempt": receipt.attempts,
            "nsqd": receipt.nsqd,
        }
    )


def log_message(event: str, message: Message) -> None:
    """Write the line of a ``delivery``, ``finish`` or ``requeue``; the caller asked the switch."""
    source = message.source
    _write(
        {
            "event": event,
            "time_ns": time.time_ns(),
            "topic": source.topic,
            "partition": source.partition,
            "channel": source.channel,
            "internal_id": message.internal_id,
            "trace_id": message.trace_id,
            "offset": message.offset,
            "attempt": message.attempts,
            "nsqd": source.nsqd,
        }
    )


@contextlib.contextmanager
def write_to(path: Path | str, *topics: str) -> Iterator[None]:
    """Write the trace lines of ``topics`` (all, when none is named) to a file while the block runs.

    The file is appended to, one JSON object a line, and nothing of it goes to
    other loggers.

    Several may run at once; what was switched on besides stays on.

    Args:
        path: The file; its folder must exist.
        *topics: What to write.

    Raises:
        OSError: The file cannot be opened.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    if topics:
        handler.addFilter(lambda record: getattr(record, "topic", None) in topics)
    _files.begin(handler, topics)
    try:
        yield
    finally:
        _files.end(handler, topics)
        handler.close()


class _Files:
    """The files that are written; the first one takes the logger over, the last one gives it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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


def _write(line: dict[str, object]) -> None:
    log.info("%s", json.dumps(line, separators=(",", ":")), extra={"topic": line["topic"]})
