"""Cancels a coroutine at each of its suspension points, one run after the other.

A program cancels a call at any moment: ``asyncio.wait_for`` around it, Ctrl-C, another task of its group that
failed. What a call leaves half done shows at one of its suspension points only, so each of them gets its turn::

    for cut in every_suspension():
        async with stage.producer() as producer:
            await cut(producer.publish(TOPIC, b"x"))
            ...  # what must hold, whenever it was cancelled
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any, Final, Generic, TypeVar

from tests.support.nsqd import LIMIT

T = TypeVar("T")

ENDS_SOON: Final = 5.0
"""Seconds for a close; far more than one takes when nothing hangs."""

MOST: Final = 200
"""Suspension points that a call may have before it counts as one that never ends."""


class Moment(enum.Enum):
    """When the cancellation comes."""

    AT_ONCE = enum.auto()
    """As soon as the call waits."""
    WITH_THE_RESULT = enum.auto()
    """In the same turn of the event loop as that for which the call waits. Where nothing comes, at the limit."""


class Cut:
    """Cancels calls at one suspension point. :func:`every_suspension` makes it.

    Attributes:
        number: Of the suspension point, from 1.
        moment: When the cancellation comes.
        was_reached: The last call came so far. False: it was over before, and was not cancelled.
        cancelled: The last call ended by the cancellation.
    """

    def __init__(self, number: int, moment: Moment) -> None:
        self.number = number
        self.moment = moment
        self.was_reached = False
        self.cancelled = False

    def __repr__(self) -> str:
        return f"suspension {self.number}, {self.moment.name.lower()}"

    async def __call__(self, call: Coroutine[Any, Any, T], limit: float = LIMIT) -> T | BaseException:
        """Run ``call`` in a task of its own and cancel it at the suspension point.

        Returns:
            What it returned or raised, CancelledError included.

        Raises:
            AssertionError: It did not end within ``limit`` seconds after the cancellation.
        """
        self.was_reached = self.cancelled = False
        task = asyncio.create_task(self._counted(call, limit / 2))
        _, late = await asyncio.wait({task}, timeout=limit * 2)
        if late:
            task.cancel()
            raise AssertionError(f"cancelled at {self}, the call did not end: {task!r}")
        self.cancelled = task.cancelled()
        if task.cancelled():
            return asyncio.CancelledError()
        return task.exception() or task.result()

    async def _counted(self, call: Coroutine[Any, Any, T], limit: float) -> T:
        return await _Counted(call, self, limit)

    def strike(self, waited_for: object, limit: float) -> None:
        """Cancel the running task, which is about to wait for ``waited_for``."""
        self.was_reached = True
        task = asyncio.current_task()
        assert task is not None
        if self.moment is Moment.AT_ONCE or not isinstance(waited_for, asyncio.Future):
            task.cancel()
            return
        timer = asyncio.get_running_loop().call_later(limit, task.cancel)

        def came(_: object) -> None:
            timer.cancel()
            task.cancel()

        # The task adds its own callback later than this, so it is cancelled before it hears of the result.
        waited_for.add_done_callback(came)


class _Counted(Awaitable[T], Generic[T]):
    """Awaits a coroutine and counts how often it waits."""

    def __init__(self, call: Coroutine[Any, Any, T], cut: Cut, limit: float) -> None:
        self._call = call
        self._cut = cut
        self._limit = limit

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._call.__await__()
        step = steps.send
        value: Any = None
        number = 0
        while True:
            try:
                waited_for = step(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # a coroutine's result
            number += 1
            if number == self._cut.number:
                self._cut.strike(waited_for, self._limit)
            try:
                value = yield waited_for
                step = steps.send
            except BaseException as error:  # noqa: BLE001 - whatever the task throws in is the call's to take
                value, step = error, steps.throw


async def closes_again(aclose: Callable[[], Awaitable[None]]) -> None:
    """Check that closing ends soon, each time that it is called.

    Raises:
        TimeoutError: It did not end within ``ENDS_SOON``.
    """
    for _ in range(2):
        async with asyncio.timeout(ENDS_SOON):
            await aclose()


async def closes_twice_at_once(cut: Cut, aclose: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close while another task closes, too, and cancel one of the two calls; the other one ends soon.

    Raises:
        TimeoutError: It did not end within ``ENDS_SOON``.
    """
    other = asyncio.create_task(aclose())
    await cut(aclose())
    async with asyncio.timeout(ENDS_SOON):
        await other


def every_suspension(most: int = MOST) -> Iterator[Cut]:
    """Yield a cut for each suspension point of a call, in both moments, and at last one that the call does not reach.

    Use each for the same call, as the module shows.

    Raises:
        AssertionError: The call still waits after ``most`` suspension points.
    """
    for number in range(1, most + 1):
        reached = False
        for moment in Moment:
            cut = Cut(number, moment)
            yield cut
            reached = reached or cut.was_reached
        if not reached:
            return
    raise AssertionError(f"the call has more than {most} suspension points")
