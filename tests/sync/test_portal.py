"""The background event loop: calls that come while it closes."""

import threading
from functools import partial

from nsq_ha import ClosedError
from nsq_ha.process.loop_thread import Portal
from tests.support.nsqd import LIMIT
from tests.support.threads import in_thread
from tests.support.waiting import turn


async def double(number: int) -> int:
    await turn()
    return 2 * number


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
