"""Waits that end early: a pause until an event, and an attempt to connect that may become unnecessary."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.policy.topology import Node


class Opened(Protocol):
    """A connection, or a share of one."""

    def abort(self, reason: NsqError) -> None:
        """End it at once."""

    async def ended(self) -> NsqError:
        """Wait for the end and return its reason."""


C = TypeVar("C", bound=Opened)


async def pause(news: asyncio.Event, timeout: float | None) -> None:
    """Wait until ``news`` is set and clear it, but at most for ``timeout`` seconds. If cancelled, do not clear it.

    Args:
        news: Set if there is a reason to check again.
        timeout: None for no limit.
    """
    try:
        async with asyncio.timeout(timeout):
            await news.wait()
    except TimeoutError:
        return
    news.clear()


async def uninterrupted(work: asyncio.Future[None]) -> None:
    """Wait for the end of ``work``, which takes a bounded time; a cancellation takes effect after it."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    work.result()


def is_foreign(error: BaseException) -> bool:
    """Return whether to handle ``error`` here: an ``Exception``, or a CancelledError without a request to cancel.

    A future that was cancelled elsewhere, as by an executor's shutdown, raises CancelledError in a task that is not
    being cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)


async def open_while(
    opening: Coroutine[Any, Any, C], node: Node, *, news: asyncio.Event, is_wanted: Callable[[], bool]
) -> C:
    """Open a connection, but give up when it is no longer needed.

    A frozen node accepts connections and never answers: without this, the attempt would block its partition until
    ``connect_timeout``, although the new leader is known.

    Args:
        opening: Opens the connection.
        node: The nsqd.
        news: Set when ``is_wanted`` may have changed; cleared here.
        is_wanted: Returns whether to continue.

    If it fails or is cancelled, even repeatedly, neither a task nor a socket remains.

    Raises:
        ConnectError: As for :meth:`Connection.open`, or it was given up.
        ServerError: nsqd refused IDENTIFY or AUTH.
        RemoteProtocolError: The answers are not valid.
    """
    loop = asyncio.get_running_loop()
    attempt = loop.create_task(opening)
    try:
        while not attempt.done():
            heard = loop.create_task(news.wait())
            try:
                await asyncio.wait({attempt, heard}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                heard.cancel()
            if attempt.done():
                break
            news.clear()
            if not is_wanted():
                raise ConnectError(f"stopped connecting to {node.address}: the connection is no longer needed")  # noqa: TRY301 - cleaned up below
        return attempt.result()
    except BaseException:
        attempt.cancel()
        # A callback, because this call can be cancelled a second time while it waits below.
        attempt.add_done_callback(abort_opened)
        await asyncio.wait({attempt})
        if (connection := _opened(attempt)) is not None:
            await connection.ended()
        raise


def _opened(attempt: asyncio.Future[C]) -> C | None:
    return None if attempt.cancelled() or attempt.exception() is not None else attempt.result()


def abort_opened(attempt: asyncio.Future[C]) -> None:
    """Close the connection if the attempt ended before it could be cancelled."""
    if (connection := _opened(attempt)) is not None:
        connection.abort(ConnectionLostError("given up"))
