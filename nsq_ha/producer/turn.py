"""The line in front of a topic: publishes that cannot be queued at once wait in it, so that no later one passes.

The invariant: only the task at the front may queue publishes. Tasks that need no
time there are woken together, since a line that moves one place per iteration of
the event loop would never end on a busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError, NsqError, PublishError, ResponseTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsq_ha.producer.topic import TopicPublisher


class Turns:
    """The places in one topic's line."""

    def __init__(self) -> None:
        """Start with an empty line."""
        self._places: deque[_Place] = deque()

    @contextlib.asynccontextmanager
    async def front(self, *, is_quick: bool) -> AsyncIterator[None]:
        """Wait for the front, and hold it. If cancelled, leave the line.

        Args:
            is_quick: The caller needs no time at the front once the topic is known.
        """
        place = _Place(is_quick)
        self._places.append(place)
        try:
            while self._places[0] is not place:
                place.woken = asyncio.get_running_loop().create_future()
                await place.woken
            yield
        finally:
            self._places.remove(place)
            self._wake()

    def _wake(self) -> None:
        """Wake the task at the front, and the quick ones behind it, in order."""
        for place in self._places:
            if place.woken is None or place.woken.done():
                return  # it was woken with those before it, and so were the quick ones behind it
            place.woken.set_result(None)
            if not place.is_quick:
                return


class _Place:
    """A task in the line."""

    __slots__ = ("is_quick", "woken")

    def __init__(self, is_quick: bool) -> None:
        self.is_quick = is_quick
        self.woken: asyncio.Future[None] | None = None


@contextlib.asynccontextmanager
async def turn_of(publisher: TopicPublisher, deadline: float, *, is_quick: bool) -> AsyncIterator[None]:
    """Wait for the front of the topic's line, and hold it.

    There is one line for every reason to wait (no look-up yet, no space), since a
    later publish of the same key must not pass.

    Args:
        publisher: The topic's.
        deadline: When the wait, and what is done at the front, must be over, in the loop's time.
        is_quick: See :meth:`Turns.front`.

    Raises:
        PublishError: It could not be queued; nothing was sent.
    """
    publisher.queued += 1
    try:
        async with asyncio.timeout_at(deadline), publisher.turns.front(is_quick=is_quick):
            yield
    except TimeoutError:
        # Others may wait in line while one cuts a large batch: what they meet changes nothing that it goes by.
        reason = publisher.trouble or ResponseTimeoutError("timed out behind a large batch to the same topic")
        raise unsent(publisher, reason) from reason
    except (ConfigError, PublishError):
        raise
    except NsqError as error:
        raise unsent(publisher, error) from error
    finally:
        publisher.queued -= 1
        publisher.used_at = asyncio.get_running_loop().time()


def unsent(publisher: TopicPublisher, error: NsqError) -> PublishError:
    """Make the error of a publish that was not even queued."""
    return PublishError(str(error), topic=publisher.watch.topic, partition=None, attempts=0, maybe_stored=False)
