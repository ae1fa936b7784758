"""SIGTERM and SIGINT as requests to stop: the first one gently, the second one at once.

The handlers are Python's (``signal.signal``), not the event loop's: those cannot be restored, need a loop in the main
thread, and do not exist on Windows. They run in the main thread and call into the loop.

Python only notes a signal that comes while the main thread is about to wait, and runs the handler after the wait. So a
loop in the main thread is woken through a socket, and a main thread that waits for a loop of another thread looks for
signals twice a second.

The invariants: a signal is never lost. One that comes too late to stop anything is sent again when the previous
handlers are back. A forked child has the previous handlers at once, for what runs here does not run there. It does not
wait for its first signal: in a child forked by a thread, Python 3.13.0 runs no handler before that thread waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from nsq_ha.process.loop_thread import AsyncCall, Portal

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

LONGEST_WAIT: Final = 0.5
"""Seconds after which a main thread that waits for another one looks for signals."""

_Result = TypeVar("_Result")


def check_main_thread() -> None:
    """Check that this thread may install signal handlers.

    Raises:
        ConfigError: It is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"install_signal_handlers=True works only in the main thread, and this is thread"
            f" {threading.current_thread().name!r}: call run() in the main thread, or leave it out and stop from your"
            f" own handlers"
        )


class StopSignals:
    """Handles SIGTERM and SIGINT in its ``with`` block, then restores the previous handlers.

    A third signal has its previous effect, so that a program whose event loop is blocked can be ended, too. If several
    are in their blocks, such as two consumers in one loop, a signal is for all of them.

    Args:
        loop: The event loop in which to call; it may run in another thread.
        stop: Called at the first signal, with its name.
        hurry: Called at the second one.

    Raises:
        ConfigError: This is not the main thread.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, stop: Callable[[str], object], hurry: Callable[[], object]
    ) -> None:
        check_main_thread()
        self._loop = loop
        self._stop = stop
        self._hurry = hurry
        self._previous: dict[signal.Signals, Any] = {}
        self._received: list[int] = []
        self._process = os.getpid()
        self._is_over = False
        self._has_stopped = False
        self._mutex = threading.Lock()  # the loop may be another thread's
        self._wakeup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Install the handlers."""
        with contextlib.suppress(RuntimeError):  # no loop runs in this thread
            if asyncio.get_running_loop() is self._loop:
                self._wakeup.enter_context(_woken(self._loop))
        _installed.append(self)
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers; send a signal again that stopped nothing."""
        self.restore()
        if self in _installed:  # not in a forked child
            _installed.remove(self)
        self._wakeup.close()
        with self._mutex:
            self._is_over = True
            is_unused = self._received and not self._has_stopped
        if is_unused and not any(each._received for each in _installed):  # noqa: SLF001 - they have it already
            signal.raise_signal(self._received[0])

    def restore(self) -> None:
        """Have the previous handlers back."""
        for number in SIGNALS:
            previous = self._previous.pop(number, signal.SIG_DFL)
            if signal.getsignal(number) == self._handle:
                # None: a handler that was not installed from Python, which Python cannot install again.
                signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal, in the main thread between any two steps."""
        if os.getpid() != self._process:  # a forked child that has not restored its handlers yet
            self.restore()
            signal.raise_signal(number)
            return
        for each in reversed(tuple(_installed)):  # so that each restores what it found
            each._take(number)  # noqa: SLF001 - of this class

    def _take(self, number: int) -> None:
        self._received.append(number)
        with contextlib.suppress(RuntimeError):  # the loop is closed: see __exit__
            if len(self._received) == 1:
                self._loop.call_soon_threadsafe(self._stop_now, signal.Signals(number).name)
            else:
                self.restore()
                self._loop.call_soon_threadsafe(self._hurry)

    def _stop_now(self, name: str) -> None:
        with self._mutex:
            if self._is_over:
                return
            self._has_stopped = True
        self._stop(name)


_installed: Final[list[StopSignals]] = []


def _restore_all() -> None:
    while _installed:
        _installed.pop().restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_all)


def wait_here(portal: Portal, function: AsyncCall[_Result], signals: StopSignals | None) -> _Result:
    """Run a coroutine function in the loop of another thread, and return what it returns.

    With ``signals``, they are handled meanwhile in this thread, the main thread. If an exception such as
    KeyboardInterrupt ends the wait, what runs is cancelled.
    """
    if signals is None:
        return portal.wait(function)
    with signals:
        running = portal.submit(function)
        try:
            while not running.done():
                wait([running], LONGEST_WAIT)
            return running.result()
        except BaseException:
            running.cancel()
            raise


@contextlib.contextmanager
def _woken(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have signals wake the loop of this thread."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        previous = signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
        if previous != -1:  # as uvloop and loop.add_signal_handler() set it: then signals wake the loop already
            signal.set_wakeup_fd(previous)
            yield
            return

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                near.recv(4096)

        loop.add_reader(near, drain)
        try:
            yield
        finally:
            loop.remove_reader(near)
            current = signal.set_wakeup_fd(-1)
            if current != far.fileno():  # set by others meanwhile
                signal.set_wakeup_fd(current)
