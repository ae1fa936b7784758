"""Wait until a channel of one cluster is empty, by the statistics of its nsqds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.admin import AdminClient, PartitionDescription
from nsq_ha.admin.nsqd_http import Https, NsqdHttp
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from nsq_ha.admin.description import Unfinished
    from nsq_ha.consumer import Consumer
    from nsq_ha.policy.topology import Node

_PAUSE: Final = 0.5
"""Seconds between two looks."""
_LOOKS: Final = 2
"""How often in a row the channel must be empty: the counts of one look are not of one moment."""
_LIMIT: Final = 5.0
"""Seconds for one look."""
_UNKNOWN: Final = "cannot be asked"

log: logging.Logger = logging.getLogger("nsq_ha.migrate")


async def until_empty(consumer: Consumer, closing: asyncio.Event, timeout: float | None) -> None:
    """Wait until the consumer's channel has no message left in any partition, or until ``closing`` is set.

    Raises:
        TimeoutError: It still has messages after ``timeout`` seconds; the text says what is left.
    """
    name = f"{consumer.topic}/{consumer.channel}"
    config, rest, empty = consumer.config, "was not asked yet", 0
    try:
        async with (
            asyncio.timeout(timeout),
            AdminClient(config.lookupd, lookupd_tls=config.lookupd_tls, tls=config.tls) as admin,
            contextlib.aclosing(Https(config.tls)) as https,
        ):
            while empty < _LOOKS and not closing.is_set():
                found = await _rest(admin, https, consumer)
                empty = 0 if found else empty + 1
                if found and found != rest:
                    log.log(_level(found), "%s: the previous cluster %s", name, found)
                rest = found or rest
                if empty < _LOOKS:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(closing.wait(), _PAUSE)
    except TimeoutError as error:
        raise TimeoutError(f"{name}: after {timeout} s the previous cluster {rest}") from error


def _level(rest: str) -> int:
    """Return the level for a reason to wait on: a cluster that does not answer may never do so."""
    return logging.WARNING if rest.startswith(_UNKNOWN) else logging.INFO


async def _rest(admin: AdminClient, https: Https, consumer: Consumer) -> str:
    """Return what the cluster still has of a channel, as the end of a sentence. Empty if it has nothing."""
    topic, channel = consumer.topic, consumer.channel
    try:
        described = await admin.describe(topic, timeout=_LIMIT)
        partitions = described.partitions
        if not (partitions or described.view.is_plain):
            return f"{_UNKNOWN}: the nsqlookupds do not agree how many partitions the topic has"
        for each in partitions:
            _check(each, topic, channel)
        nodes = {each.leader.http_url: each.leader for each in partitions if each.leader is not None}
        if described.view.is_plain:
            nodes |= await _read(admin, consumer)
        found = [await _unfinished(node, https, topic, channel) for node in nodes.values()]
    except NsqError as error:
        return f"{_UNKNOWN}: {error}"
    waiting = sum(each.waiting for each in found)
    held = sum(each.held + each.orphaned for each in found)
    deferred = sum(each.deferred for each in found)  # of the same moment, or a message could change sides in between
    if not (deferred or waiting or held):
        return ""
    return f"has messages of the channel: {waiting} waiting, {held} in work, {deferred} requeued with a delay"


async def _read(admin: AdminClient, consumer: Consumer) -> dict[str, Node]:
    """Return the nsqds of a plain topic that the consumer reads, by the base URL of their HTTP.

    The first answers of nsqlookupds may lack some, and one that was restarted lists each when it registers again.

    Raises:
        NsqError: No nsqlookupd lists one of them now.
    """
    read = {each.leader for each in consumer.stats().partitions if each.state == "connected"}
    listed = {info.node.address: info.node for info in await admin.nodes() if consumer.topic in info.topics}
    if lacking := read - listed.keys():
        names = ", ".join(f"nsqd {address}" if address else "an nsqd" for address in lacking)
        raise NsqError(f"no nsqlookupd lists {names} now, which is still read")
    return {node.http_url: node for address, node in listed.items() if address in read}


def _check(partition: PartitionDescription, topic: str, channel: str) -> None:
    """Check that the leader of a partition has the channel.

    Raises:
        NsqError: Its leader does not answer, or does not have the channel.
    """
    where = f"partition {partition.partition} of {topic}"
    if partition.leader is None or partition.stats is None:
        raise NsqError(f"the leader of {where} does not answer")
    if all(each.name != channel for each in partition.stats.channels):
        raise NsqError(f"{where} has no channel {channel}")


async def _unfinished(node: Node, https: Https, topic: str, channel: str) -> Unfinished:
    """Return what a node has; it includes messages that are stored but not flushed yet.

    Raises:
        NsqError: It does not answer, or does not have the channel.
    """
    async with NsqdHttp(node, timeout=_LIMIT, https=https) as nsqd:
        unfinished = await nsqd.unfinished(topic, channel)
    if unfinished is None:
        raise NsqError(f"{node.address} has no channel {channel}")
    return unfinished
