"""Connect to the leaders of whole topics, for ``wait_ready()``."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError
from nsq_ha.policy.health import Trouble

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.topic import TopicPublisher


async def connect_all(publishers: Sequence[TopicPublisher], config: ProducerConfig) -> None:
    """Look the topics up, connect to the leaders of all their partitions, and wait until this is done.

    Raises:
        TopicNotFoundError: No nsqlookupd knows a topic.
        ConfigError: More connections are needed than are allowed.
        ClosedError: The producer was closed.
    """
    with contextlib.ExitStack() as stack:
        for publisher in publishers:
            stack.enter_context(publisher.kept())
        views = await asyncio.gather(*(publisher.view() for publisher in publishers))
        each = zip(publishers, views, strict=True)
        senders = [publisher.sender(partition) for publisher, view in each for partition in _partitions(view)]
        nodes = {node.address for view in views for node in view.publishable.values()}
        is_shared = config.tls is None or any(view.is_plain for view in views)
        needed, each_one = (len(nodes), "nsqd") if is_shared else (len(senders), "partition")
        if needed > config.max_connections:
            raise ConfigError(
                f"wait_ready() needs {needed} connections, one for each {each_one}, but"
                f" max_connections={config.max_connections}: raise it, or name fewer topics"
            )
        await asyncio.gather(*(sender.connect() for sender in senders))


def _partitions(view: TopicView) -> Collection[int]:
    """Return the partitions to connect to; the nsqds of a plain cluster may have left for good."""
    is_partitioned = view.meta is None or view.meta.is_partitioned
    return range(view.partition_num) if is_partitioned else view.publishable


def unready(publishers: Sequence[TopicPublisher], troubles: Sequence[Trouble]) -> str:
    """Return what :func:`connect_all` still waits for.

    Args:
        publishers: Of the topics that it was called with.
        troubles: What does not work for the producer.
    """
    waits = []
    for publisher in publishers:
        topic, view = publisher.watch.topic, publisher.watch.view
        if view is None or not view.partition_num:
            waits.append(topic)
            continue
        for partition in _partitions(view):
            sender = publisher.senders.get(partition)
            if sender is None or sender.link.connection is None:
                waits.append(f"{topic}-{partition}")
    known = {trouble.name: trouble.reason for trouble in reversed(troubles)}
    reasons = ((name, known.get(name) or known.get("") or "is not connected yet") for name in waits)
    return "; ".join(Trouble(name, reason, 0.0).text for name, reason in reasons)
