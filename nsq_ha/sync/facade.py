"""Turns an async client into one for threads: its methods wait, and start it when it is first used.

A client for threads lists the methods of the async one, each ``@method(waits(Producer.publish))``. Names, signatures,
types and docstrings come from there; nothing is written twice.

The invariants: any number of threads may use one client at the same time; a client that failed to start leaves
nothing behind and may be started again; one that is not stopped is stopped when the interpreter exits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import get_ident
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_type_hints,
)

from nsq_ha.base import aside
from nsq_ha.base.forks import OfOneProcess
from nsq_ha.errors import ClosedError, ConfigError, NsqError, ResponseTimeoutError
from nsq_ha.process import loop_thread

if TYPE_CHECKING:
    from nsq_ha.process.loop_thread import AsyncCall, Portal

START_LIMIT: Final = 10.0
"""Seconds within which the background event loop must start a client that waits for nothing itself, or close it."""

MOMENT: Final = 2.0
"""Seconds beyond the limit of a call after which its thread no longer waits for the event loop, which watches it."""

_Method = TypeVar("_Method", bound=Callable[..., Any])
_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class AsyncClient(Protocol):
    """What an async client is, for a facade."""

    async def __aenter__(self) -> object:
        """Start."""

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object, /) -> None:
        """Close; the arguments say how the block ended."""


_Client = TypeVar("_Client", bound=AsyncClient)
_Client_co = TypeVar("_Client_co", bound=AsyncClient, covariant=True)


class Begun(NamedTuple):
    """The start of a client.

    Attributes:
        portal: Where it starts.
        future: Done when it has started.
    """

    portal: Portal
    future: Future[None]


class Facade(OfOneProcess, Generic[_Client_co]):
    """What all clients for threads have in common."""

    _close_limit: float = 5.0
    """Seconds that closing may take."""

    _own_limit: float = 0.0
    """Seconds that starting may take besides."""

    _call_limit: float | None = None
    """Seconds that a call without a limit of its own may take. None for no limit."""

    def __init__(self, make: Callable[[], _Client_co]) -> None:
        """Start nothing yet.

        Args:
            make: Creates the async client, and checks its options.
        """
        self._make = make
        self._client: _Client_co = make()
        self._begun: Begun | None = None
        self._portal: Portal | None = None  # once it has started
        self._is_stopped = False

    # ------------------------------------------------------------ life

    def start(self) -> Self:
        """Start, as the block of a ``with`` statement does at its beginning; return the client.

        You need not call it: the first call that needs the client starts it, too. If it is started already, this does
        nothing. If starting fails, it may be called again.

        Raises:
            ClosedError: The client was stopped, or the interpreter exits.
            ConfigError: A parent process started the client, before it forked this one.
            ResponseTimeoutError: It has not started 10 seconds after it should have, since a coroutine blocks the
                background event loop, or the machine is too busy. It goes on starting; another call waits again.
        """
        self._started("start", waits=False)
        return self

    def stop(self) -> None:
        """Close the client within ``close_timeout``, as the end of a ``with`` block does. May be called again.

        A client that was never started is not closed by this. In a forked child this does nothing to the client of the
        parent process.

        Raises:
            ConfigError: Called in the background event loop, by a coroutine or a callback, where it would wait for
                itself.
        """
        self._stop(None)

    def __enter__(self) -> Self:
        """Start, see :meth:`start`."""
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close, see :meth:`stop`."""
        self._stop(error)

    def _started(self, call: str, *, waits: bool = True, limit: float | None = None) -> Portal:
        """Return the event loop of the started client; start it if need be.

        Args:
            call: The method that needs it, for the error.
            waits: Whether the method waits for the loop.
            limit: Seconds to wait for a start, if less than usual.
        """
        portal = self._portal
        if portal is None or portal.is_inherited or self._is_stopped or (waits and get_ident() == portal.thread):
            portal = self._start(call, limit)
        return portal

    def _start(self, call: str, limit: float | None = None) -> Portal:
        name = type(self).__name__
        with loop_thread.mutex:
            if self._is_stopped:
                raise ClosedError(f"the {name} was stopped: create a new one")
            begun = self._begun
            if begun is None:
                portal = loop_thread.shared()
                check_thread(portal, name, call)
                begun = self._begun = Begun(portal, portal.submit(partial(self._open, self._client, portal)))
        check_thread(begun.portal, name, call)
        longest = self._own_limit + (START_LIMIT if limit is None else min(limit, START_LIMIT))
        try:
            begun.future.result(longest)
        except BaseException as error:
            if isinstance(error, TimeoutError) and not begun.future.done():
                raise ResponseTimeoutError(
                    f"the {name} did not start within {longest:g} s: the background event loop does not answer, since a"
                    f" coroutine blocks it or the machine is too busy; it goes on starting, and the next call waits"
                    f" for it"
                ) from None
            future = begun.future  # it may have started meanwhile
            has_failed = future.cancel() or not future.done() or future.exception() is not None
            with loop_thread.mutex:
                if has_failed and self._begun is begun and not self._is_stopped:
                    self._client = self._make()
                    self._begun = None  # last, for a fork in between
            if isinstance(error, CancelledError):  # by stop(), or since another thread that started it was interrupted
                return self._start(call, limit)
            if has_failed or not isinstance(error, TimeoutError):
                raise
        self._portal = begun.portal
        return begun.portal

    async def _open(self, client: AsyncClient, portal: Portal) -> None:
        await client.__aenter__()
        portal.close_at_exit(self, partial(self._closing, None), self._close_limit)

    def _stop(self, error: BaseException | None) -> None:
        with loop_thread.mutex:  # or a start that has begun in the loop might not be noted yet
            begun = self._begun
        if begun is None or begun.portal.is_inherited or begun.portal.is_closing:
            return
        check_thread(begun.portal, type(self).__name__, "stop")
        with loop_thread.mutex:
            self._is_stopped = True
        begun.future.cancel()  # does nothing if it has started
        self._wait(begun.portal, self._closing(error), self._close_limit + START_LIMIT, "stop")
        aside.wait_handled(loop_thread.GRACE)
        begun.portal.forget(self)

    def _wait(
        self, portal: Portal, call: AsyncCall[_Result], limit: float | None, name: str, topic: object = None
    ) -> _Result:
        """Return what a coroutine function returns that ends within ``limit`` seconds, unless the loop is blocked.

        Raises:
            ResponseTimeoutError: It did not end; it is cancelled.
        """
        return portal.wait(call, limit, lambda: self._late(name, limit, topic))

    def _late(self, name: str, limit: float | None, topic: object) -> NsqError:
        """Return the error for a call that did not end: ``topic`` is its first argument."""
        return ResponseTimeoutError(
            f"{type(self).__name__}.{name}() did not end within {limit:g} s: the background event loop does not answer,"
            f" since a coroutine or a callback blocks it, or the machine is too busy"
        )

    def _closing(self, error: BaseException | None) -> AsyncCall[None]:
        """Return what closes the async client for this thread; ``error`` says how the block ended."""
        return partial(self._close, error)

    def _close(self, error: BaseException | None) -> Coroutine[Any, Any, None]:
        return self._client.__aexit__(None if error is None else type(error), error, None)


def check_thread(portal: Portal, name: str, call: str) -> None:
    """Check that this thread can wait for the event loop.

    Raises:
        ConfigError: It is the loop's own thread, or a parent process runs the loop.
    """
    if portal.is_inherited:
        raise ConfigError(
            f"this {name} was started before the process was forked, and its connections belong to the parent process:"
            f" create it in the child, or start it only after the fork (its first use starts it)"
        )
    if get_ident() == portal.thread:
        raise ConfigError(
            f"{name}.{call}() was called in the background event loop, by a coroutine or a callback, and would wait for"
            f" itself: call it in a thread, such as in a handler that is a plain function"
        )


def client_of(facade: Facade[_Client]) -> _Client:
    """Return the async client."""
    return facade._client  # noqa: SLF001 - the class is this module's


def waits(
    method: Callable[Concatenate[_Client, _P], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Facade[_Client], _P], _Result]:
    """Return a method that calls the async one, and waits for its result.

    An iterator among the arguments is read in the caller's thread: it may be slow, or use a client itself.
    """
    name = method.__name__
    parameters = inspect.signature(method).parameters
    usual = parameters["timeout"].default if "timeout" in parameters else None

    def call(self: Facade[_Client], /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        portal = self._started(name) if self._portal is not None else self._started(name, limit=_limit_of(kwargs))
        bound: Callable[..., Coroutine[Any, Any, _Result]] = getattr(self._client, name)  # its class may override it
        given, named = [_read(each) for each in args], {key: _read(each) for key, each in kwargs.items()}
        limit = _limit_of(kwargs, usual) or self._call_limit
        topic = args[0] if args else kwargs.get("topic")
        return self._wait(portal, lambda: bound(*given, **named), limit and limit + MOMENT, name, topic)

    return described(call, method)


def _limit_of(keywords: dict[str, object], usual: object = None) -> float | None:
    timeout = keywords.get("timeout", usual)
    return timeout if isinstance(timeout, int | float) and timeout > 0 else None


def _read(argument: object) -> object:
    return [*argument] if isinstance(argument, Iterator) else argument


def does(
    method: Callable[Concatenate[_Client, _P], _Result],
) -> Callable[Concatenate[Facade[_Client], _P], _Result]:
    """Return a method that calls one which does not wait, in the event loop once the client has started."""
    name = method.__name__

    def call(self: Facade[_Client], /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        portal = self._portal
        bound: Callable[_P, _Result] = getattr(self._client, name)
        if portal is None or get_ident() == portal.thread:
            return bound(*args, **kwargs)
        return self._started(name).call(lambda: bound(*args, **kwargs), START_LIMIT)

    return described(call, method)


def reads(
    method: Callable[Concatenate[_Client, _P], _Result],
) -> Callable[Concatenate[Facade[_Client], _P], _Result]:
    """Return a method that calls one which any thread may call, at any time: it neither waits nor starts the client."""
    name = method.__name__

    def call(self: Facade[_Client], /, *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        bound: Callable[_P, _Result] = getattr(self._client, name)
        return bound(*args, **kwargs)

    return described(call, method)


def method(function: _Method) -> Callable[[Callable[..., None]], _Method]:
    """Return a decorator that puts ``function`` in the place of a stub, so that type checkers see a method there."""

    def place(stub: Callable[..., None]) -> _Method:
        return function

    return place


def described(
    function: Callable[_P, _Result],
    method: Callable[..., object],
    doc: str | None = None,
    returns: object = None,
) -> Callable[_P, _Result]:
    """Return ``function`` with name and signature of ``method``, and its docstring unless ``doc`` is given.

    Args:
        function: The function to describe.
        method: The async method that it stands for.
        doc: Another docstring.
        returns: The type that it returns, if another one.
    """
    # Not by functools.wraps: from __wrapped__ tools would conclude that the function returns a coroutine.
    for name in ("__name__", "__qualname__"):
        setattr(function, name, getattr(method, name))
    # The types themselves: their names mean nothing in this module.
    hints = get_type_hints(method, include_extras=True)
    if returns is not None:
        hints["return"] = returns
    signature = inspect.signature(method)
    parameters = [each.replace(annotation=hints.get(each.name, each.empty)) for each in signature.parameters.values()]
    function.__annotations__ = hints
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=None if hints["return"] is NoneType else hints["return"]
    )
    function.__module__ = "nsq_ha.sync"
    function.__doc__ = doc or method.__doc__
    return function
