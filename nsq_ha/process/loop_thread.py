"""An event loop in a background thread, and how other threads use it.

Each process has one that all synchronous clients share (:func:`shared`). It starts
with the first client and ends when the interpreter exits. The embedded cluster has
loops of its own, so that neither side holds up the other. anyio's blocking portal cannot take its place: a
KeyboardInterrupt in a thread that waits would leave its call running, one that a task raises would end the calls of all
clients, and a fork would find the loop's thread with whatever locks it holds.

The invariants:

* A thread that waits for a call always continues: with the result, with an error,
  or at once if a signal handler raises an exception in it. Then the call is cancelled.
* Posting takes no lock, so a signal handler may do it at any moment.
* The loop never waits for a lock of the application: see ``nsq_ha.base.aside``.
* After a fork the child process never touches a loop of its parent: the two would
  share its descriptors. The child starts loops of its own. While a process is forked, the
  loops stand still between two callbacks, where they hold no lock that the child may need.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from nsq_ha.base import aside
from nsq_ha.base.clock import monotonic
from nsq_ha.base.forks import Mutex
from nsq_ha.errors import ClosedError

_Result = TypeVar("_Result")

AsyncCall = Callable[[], Coroutine[Any, Any, _Result]]
"""A coroutine function. It is called in the loop: what is interrupted before that leaves no coroutine behind."""

GRACE: Final = 1.0
"""Seconds that the interpreter's exit waits beyond the time limits of the clients that it closes."""

LONGEST_FORK: Final = 1.0
"""Seconds that a fork waits for the loops to stand still. A loop that is blocked for longer is forked as it is."""

LONGEST_HALT: Final = 10.0
"""Seconds that a loop stands still for a fork: what the application does before a fork may wait for the loop."""

_ROUNDS: Final = 3


class Portal:
    """An event loop in a daemon thread. Any other thread may call the methods.

    Attributes:
        loop: The loop.
        thread: Identifier of the loop's thread.
        is_inherited: A parent process started it, before it forked this one. It does not run here.
        is_closing: It ends, or has ended.
        is_over: It starts no calls any more.
    """

    def __init__(self, name: str) -> None:
        """Start the thread; ``name`` is its name."""
        was_loop = aside.is_loop()
        aside.serve_this_thread()  # asyncio logs a line, whose handler may use the client that is about to start
        try:
            self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        finally:
            if not was_loop:
                aside.leave_this_thread()
        self.is_inherited: bool = False
        self.is_closing: bool = False
        self._posted: deque[Callable[[], object]] = deque()
        self._is_woken = False
        self.is_over: bool = False
        self._closers: dict[object, tuple[Callable[[], AsyncCall[object]], float]] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread: int = 0
        _portals[id(self)] = self
        self._thread.start()
        self.thread = self._thread.ident or 0

    def _run(self) -> None:
        aside.serve_this_thread()
        try:
            self._run_loop()
        finally:
            aside.leave_this_thread()

    def _run_loop(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):  # a task raised it; its caller gets it, the others go on
                continue
            break
        self.is_over = True
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self.loop.run_until_complete(_cancel_all())

    # ------------------------------------------------------------ calls

    def post(self, function: Callable[[], object]) -> None:
        """Run ``function``, which must not raise, in the loop; return at once.

        Functions run in the order in which they were posted. Those that are posted while the loop is busy wake it once.

        Raises:
            ClosedError: The loop was closed, or a parent process runs it.
        """
        if self.is_inherited:
            raise closed()
        self._posted.append(function)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._run_posted)
            except BaseException as error:  # KeyboardInterrupt comes at any moment: the next call wakes the loop
                self._is_woken = False
                if isinstance(error, RuntimeError):
                    raise closed() from None
                raise

    def _run_posted(self) -> None:
        self._is_woken = False  # before the look into the queue: what comes later wakes the loop again
        posted = self._posted
        while posted:
            posted.popleft()()

    def submit(self, function: AsyncCall[_Result]) -> CallFuture[_Result]:
        """Run a coroutine function in the loop and return the future of its result; see :meth:`post`."""
        future = CallFuture(self, function)
        self.post(future.begin)
        return future

    def wait(
        self,
        function: AsyncCall[_Result],
        timeout: float | None = None,
        late: Callable[[], Exception] | None = None,
    ) -> _Result:
        """Run a coroutine function in the loop and return what it returns; see :meth:`post`.

        If an exception such as KeyboardInterrupt ends the wait, the coroutine is cancelled.

        Raises:
            RuntimeError: The loop's own thread asks, which would wait for itself.
            TimeoutError: It did not end within ``timeout`` seconds; it is cancelled. ``late`` returns another error.
        """
        if get_ident() == self.thread:
            raise RuntimeError("a call from the event loop's own thread would wait for itself")
        call = WaitingCall(self, function)
        try:
            self.post(call.begin)
            is_over = call.over.acquire(timeout=-1 if timeout is None else timeout)
        except BaseException:
            call.abandon()
            raise
        if not is_over:
            call.abandon()
            if late is not None:
                raise late()
            raise TimeoutError(f"a call of the background event loop did not end within {timeout:g} s")
        return call.outcome()

    def call(self, function: Callable[[], _Result], timeout: float | None = None) -> _Result:
        """Run a function in the loop and return what it returns; see :meth:`wait`.

        What the function leaves to the next turn of the loop, such as closing the socket of a transport, is done, too.
        """

        async def run() -> _Result:
            result = function()
            await asyncio.sleep(0)
            return result

        return self.wait(run, timeout)

    # ------------------------------------------------------------ end

    def runs_elsewhere(self) -> bool:
        """Return whether the loop runs, in another thread of this process."""
        return not (self.is_inherited or self.is_closing) and get_ident() != self.thread and self._thread.is_alive()

    def close_at_exit(self, key: object, close: Callable[[], AsyncCall[object]], limit: float) -> None:
        """Run ``close`` when the interpreter exits, unless :meth:`forget` is called before.

        Args:
            key: Names it for :meth:`forget`.
            close: Returns a coroutine function; called in the thread that exits.
            limit: Seconds that it may take.
        """
        self._closers[key] = close, limit

    def forget(self, key: object) -> None:
        """Run nothing for ``key`` at the interpreter's exit."""
        self._closers.pop(key, None)

    def close_clients(self) -> None:
        """Run all that :meth:`close_at_exit` has, at the same time, within the longest of the limits."""
        closers = [*self._closers.values()]
        if closers:
            limit = max(limit for _, limit in closers) + GRACE
            with contextlib.suppress(TimeoutError):
                self.wait(partial(_all_of, [close() for close, _ in closers]), limit)

    def close(self, timeout: float = 30.0) -> None:
        """Cancel all tasks and end the thread. Does nothing if a parent process started it, or when called again.

        Args:
            timeout: Seconds for both. A loop that is blocked for longer is left behind in its daemon thread.
        """
        if self.is_inherited or self.is_closing:
            return
        self.is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self.loop.close()
            self._run_posted()  # calls that came too late end with an error


async def _all_of(closes: list[AsyncCall[object]]) -> None:
    await asyncio.gather(*(close() for close in closes), return_exceptions=True)


async def _cancel_all() -> None:
    for _ in range(_ROUNDS):  # a task that ends may have started another one
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets aborted transports close their sockets


class Call(Generic[_Result]):
    """One call of a coroutine function that runs in the loop for another thread."""

    def __init__(self, portal: Portal, function: AsyncCall[_Result]) -> None:
        """Start nothing yet; the coroutine will run with the context variables of this thread."""
        super().__init__()
        self._function = function
        self._portal = portal
        self._context = contextvars.copy_context()
        self._is_abandoned = False
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the coroutine (in the loop)."""
        if self._is_abandoned or self._portal.is_over:
            self.failed(closed())
        else:
            self._task = self._portal.loop.create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        # What it raises goes to the caller, also if it would end a program; and at once: the callback of a task would
        # come a turn of the loop later.
        try:
            coroutine = self._function()
            del self._function  # it may hold large arguments
            result = await coroutine
        except asyncio.CancelledError:
            self.failed(closed())
        except BaseException as error:  # noqa: BLE001 - see above
            self.failed(error)
        else:
            self.succeeded(result)

    def succeeded(self, result: _Result) -> None:
        """Take what the coroutine returned (in the loop)."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """Take what the coroutine raised (in the loop)."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Cancel the coroutine; may be called in any thread and at any time."""
        self._is_abandoned = True
        with contextlib.suppress(ClosedError):
            self._portal.post(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._portal.loop.call_soon(self._task.cancel)  # after its first step: without that it would tell nobody


class WaitingCall(Call[_Result]):
    """A call whose thread waits for the outcome.

    Attributes:
        over: Released when there is an outcome.
    """

    def __init__(self, portal: Portal, function: AsyncCall[_Result]) -> None:
        """Start nothing yet."""
        super().__init__(portal, function)
        self._error: BaseException | None = None
        self._result: list[_Result] = []
        # A bare lock: half the price of an Event, and signal handlers can interrupt the wait for it as well.
        self.over: LockType = allocate_lock()
        self.over.acquire()

    def succeeded(self, result: _Result) -> None:
        """Wake the thread."""
        self._result.append(result)
        self.over.release()

    def failed(self, error: BaseException) -> None:
        """Wake the thread."""
        self._error = error
        self.over.release()

    def outcome(self) -> _Result:
        """Return what the coroutine returned, or raise what it raised."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return self._result[0]


class CallFuture(Call[_Result], Future[_Result]):
    """A call whose outcome is a future's; to cancel the future cancels the coroutine."""

    def succeeded(self, result: _Result) -> None:
        """Set the result."""
        if self.set_running_or_notify_cancel():
            self.set_result(result)

    def failed(self, error: BaseException) -> None:
        """Set the error."""
        if self.set_running_or_notify_cancel():
            self.set_exception(error)

    def cancel(self) -> bool:
        """Cancel the coroutine unless it has ended; return whether it was cancelled."""
        was_cancelled = self.cancelled()
        if super().cancel() and not was_cancelled:
            self.abandon()
        return self.cancelled()


def closed() -> ClosedError:
    """Return the error for calls that come when the loop has ended, or is about to."""
    return ClosedError("the background event loop has ended: the interpreter exits, or this process was forked")


# ---------------------------------------------------------------- the loop that all clients of a process share

_portals: Final[WeakValueDictionary[int, Portal]] = WeakValueDictionary()
_inherited: Final[list[Portal]] = []
"""Loops of parent processes. They are kept: closing one would change what the parent's loop listens to."""
_shared: Portal | None = None
_is_exiting: bool = False
mutex: Final = Mutex()
"""The lock under which clients begin to start; never wait for anything while you hold it."""
_gates: Final[dict[int, LockType]] = {}
"""Where the loops wait while a thread forks, by the identifier of the thread."""


def shared() -> Portal:
    """Return the loop that all synchronous clients of this process share; start it if it does not run.

    Raises:
        ClosedError: The interpreter exits.
    """
    global _shared  # noqa: PLW0603 - one for each process
    with mutex:
        if _is_exiting:
            raise closed()
        if _shared is None:
            _shared = Portal("nsq_ha")
        return _shared


def _exit() -> None:
    """Close all clients within their time limits, then the loop."""
    global _is_exiting, _shared  # noqa: PLW0603 - one for each process
    with mutex:
        _is_exiting = True
        portal, _shared = _shared, None
    if portal is not None:
        try:
            portal.close_clients()
        finally:
            portal.close(GRACE)
            aside.wait_handled(GRACE)


def _before_fork() -> None:
    """Wait until each loop stands still, or the time is up.

    Otherwise its thread might just then hold a lock of a module that it imports, of logging or of OpenSSL, which stays
    locked in the child for ever.
    """
    gate = allocate_lock()
    gate.acquire()
    _gates[get_ident()] = gate
    deadline = monotonic() + LONGEST_FORK
    halts = []
    for reference in _portals.valuerefs():
        portal = reference()
        if portal is not None and portal.runs_elsewhere():
            halt = allocate_lock()
            halt.acquire()
            with contextlib.suppress(ClosedError):
                portal.post(partial(_halt, halt, gate))
                halts.append(halt)
    if aside.runs_elsewhere():  # the thread that logs may hold such locks, too
        halts.append(halt := allocate_lock())
        halt.acquire()
        aside.hand_over(partial(_halt, halt, gate))
    for halt in halts:
        halt.acquire(timeout=max(0.0, deadline - monotonic()))


def _halt(halt: LockType, gate: LockType) -> None:
    """Stand still (in the loop) until the process has been forked."""
    halt.release()
    if gate.acquire(timeout=LONGEST_HALT):
        gate.release()


def _after_fork_in_parent() -> None:
    _gates.pop(get_ident()).release()


def _after_fork() -> None:
    """Let the child process begin without a loop."""
    global _shared  # noqa: PLW0603 - one for each process
    _shared = None
    _gates.clear()
    for portal in _portals.values():
        portal.is_inherited = True
        _inherited.append(portal)


# Registered when this is imported: handlers that a program registers later run earlier, and may still publish.
atexit.register(_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
