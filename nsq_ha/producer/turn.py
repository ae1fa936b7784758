"""The line in front of a topic: what cannot be queued at once stands in it, so that no later publish passes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError, NsqError, PublishError, ResponseTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsq_ha.producer.topic import TopicPublisher


@contextlib.asynccontextmanager
async def turn_of(publisher: TopicPublisher, deadline: float) -> AsyncIterator[None]:
    """Wait for the front of the topic's line, and hold it.

    There is one line, whatever is waited for (no look-up yet, no room): a later
    publish of the same key must not pass.

    Args:
        publisher: The topic's.
        deadline: When the wait, and what is done at the front, must be over, in the loop's time.

    Raises:
        PublishError: It could not be queued; nothing was sent.
    """
    publisher.queued += 1
    try:
        async with asyncio.timeout_at(deadline), publisher.queue:
            yield
    except TimeoutError:
        # Others may wait in line while one cuts a large batch: what they meet changes nothing that it goes by.
        reason = publisher.trouble or ResponseTimeoutError(
            "no turn within the time limit: a large batch is queued to the topic before it"
        )
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
