"""The background event loop: calls from threads, and everything that may go wrong with them."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import wait as wait_for
from functools import partial

import pytest

from nsq_ha import ClosedError
from nsq_ha.process.loop_thread import Portal
from tests.support.nsqd import LIMIT
from tests.support.threads import in_thread, signal_when, until
from tests.support.waiting import turn


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal("test")
    yield portal
    portal.close()
    assert portal.is_over


async def double(number: int) -> int:
    await turn()
    return 2 * number


class Endless:
    """A coroutine that waits for ever, and says when it was started and cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self) -> None:
        self.began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled.set()


def test_what_a_function_leaves_to_the_next_turn_is_done_when_its_call_returns(portal: Portal) -> None:
    """As a cluster's sockets are closed when ``kill`` returns."""
    for _ in range(50):
        done: list[int] = []
        assert portal.call(lambda done=done: portal.loop.call_soon(done.append, 1)) is not None  # type: ignore[misc]
        assert done == [1]


def test_a_future_that_is_cancelled_before_the_loop_sees_it_never_starts(portal: Portal) -> None:
    free, endless = threading.Event(), Endless()
    portal.post(lambda: free.wait(LIMIT))
    future = portal.submit(endless)
    assert future.cancel()
    free.set()
    assert wait_for([future], LIMIT).done == {future}
    assert not endless.began.is_set()


def test_a_signal_handler_may_make_a_call_while_the_thread_waits_for_one(portal: Portal) -> None:
    answers: list[int] = []
    release = asyncio.Event()
    began = threading.Event()

    async def hold() -> str:
        began.set()
        await release.wait()
        return "released"

    def handle(*_: object) -> None:
        answers.append(portal.wait(partial(double, 6)))
        portal.post(release.set)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        main = threading.get_ident()
        in_thread(lambda: signal_when(began.is_set, main))
        assert portal.wait(hold, 2 * LIMIT) == "released"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [12]


def test_closing_ends_all_calls_that_wait() -> None:
    portal, endless = Portal("test"), Endless()
    waiting = in_thread(lambda: portal.wait(endless))
    future = portal.submit(Endless())
    assert endless.began.wait(LIMIT)
    portal.close()
    for one in (waiting, future):
        assert isinstance(one.exception(LIMIT), ClosedError)
    portal.close()
    for call in (
        lambda: portal.wait(partial(double, 1)),
        lambda: portal.submit(partial(double, 1)),
        lambda: portal.post(print),
    ):
        with pytest.raises(ClosedError, match="has ended"):
            call()


def test_calls_that_come_while_it_closes_end() -> None:
    """Each gets a result or an error, however the moments fall."""
    for _ in range(20):
        portal = Portal("test")
        go = threading.Event()

        def call(portal: Portal = portal, go: threading.Event = go) -> bool:
            go.wait(LIMIT)
            try:
                while True:
                    portal.wait(partial(double, 1))
            except ClosedError:
                return True

        callers = [in_thread(call) for _ in range(4)]
        go.set()
        portal.wait(partial(double, 1))
        portal.close()
        assert [caller.result(LIMIT) for caller in callers] == [True] * 4


def test_a_blocked_loop_does_not_hold_up_the_close() -> None:
    portal, free = Portal("test"), threading.Event()
    portal.post(lambda: free.wait(LIMIT))
    portal.close(timeout=0.05)
    assert portal.is_closing
    assert not portal.is_over
    free.set()
    until(lambda: not portal.loop.is_running())
    portal.loop.close()
