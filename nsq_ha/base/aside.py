"""A thread that logs and reports for the background event loops.

A thread of the application may wait for a loop while it holds a lock, such as that of a log handler which publishes.
If the loop needed that lock, both would wait for ever.

The invariant: no background loop calls a handler of logging, or the application's ``on_event``; this thread does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from typing import Final

log: logging.Logger = logging.getLogger("nsq_ha")

MOST: Final = 10_000
"""Calls that wait at most; later ones are dropped, and counted."""

_LOGGERS: Final = frozenset(("nsq_ha", "asyncio", "concurrent", "httpcore", "httpx", "py"))
"""First parts of the names of the loggers that a loop uses; ``py.warnings`` is one."""


class _Aside:
    """The thread of this process, with what it has to do."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.dropped = 0


_here = _Aside()
_loops: Final[set[int]] = set()
"""Identifiers of the threads of background loops."""


class _Filter(logging.Filter):
    """Hands the records of background loops over."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record may be handled in this thread."""
        if not is_loop():
            return True
        hand_over(partial(_handle, record))
        return False


_filter: Final = _Filter()


def _handle(record: logging.LogRecord) -> None:
    logging.getLogger(record.name).handle(record)


def serve_this_thread() -> None:
    """Log and report for the background loop that this thread is about to run."""
    if _here.thread is None:
        _here.thread = threading.Thread(target=_work, args=(_here,), name="nsq_ha logs and reports", daemon=True)
        _here.thread.start()
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in _LOGGERS:
            logger.addFilter(_filter)
    _loops.add(get_ident())


def leave_this_thread() -> None:
    """Log in this thread again, as its loop has ended."""
    _loops.discard(get_ident())


def is_loop() -> bool:
    """Return whether this thread runs a background loop."""
    return get_ident() in _loops


def hand_over(job: Callable[[], object]) -> None:
    """Have ``job`` called soon, in order; return at once."""
    if _here.jobs.qsize() < MOST:
        _here.jobs.put(job)
    else:
        _here.dropped += 1


def runs_elsewhere() -> bool:
    """Return whether the thread that logs and reports runs, and is not this one."""
    return _here.thread not in {None, threading.current_thread()}


def wait_handled(timeout: float) -> None:
    """Wait until all that was handed over is done, but no longer than ``timeout`` seconds."""
    if runs_elsewhere():
        done = allocate_lock()
        done.acquire()
        _here.jobs.put(done.release)
        done.acquire(timeout=timeout)


def _work(aside: _Aside) -> None:
    while True:
        job = aside.jobs.get()
        try:
            job()
        except BaseException:  # noqa: BLE001 - a filter of the application may raise anything
            if logging.raiseExceptions and sys.stderr is not None:
                traceback.print_exc()  # as logging does for a handler
        del job
        if aside.dropped:
            aside.dropped, count = 0, aside.dropped
            log.warning("%d log records and events were dropped: their handlers are too slow", count)


def _after_fork() -> None:
    """Begin without a thread and without what the parent's has to do."""
    global _here  # noqa: PLW0603 - one for each process
    _here = _Aside()
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
