"""Create, delete and describe topics of a plain cluster, as nsqadmin does.

Its nsqlookupds are independent, and none leads: a change goes to each of them, and to the nsqds that it concerns.
``topics`` has the changes of partitioned clusters, ``spread`` those of channels.

The invariant: a change goes to every server, even if another one fails; then the error names those that failed. So
a repeated call completes it.

Source: upstream ``internal/clusterinfo/data.go``, ``nsqlookupd/http.go``, ``nsqd/http.go``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.bounded import PAUSE
from nsq_ha.admin.leading import Leading
from nsq_ha.errors import LookupUnavailableError, NsqError, ServerError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsq_ha.admin.bounded import Bounded
    from nsq_ha.engine.answers import NodeInfo
    from nsq_ha.policy.topology import Node

_NO_TOPIC: Final = "TOPIC_NOT_FOUND"


async def delete_topic(leading: Leading, topic: str, call: Bounded) -> None:
    """Delete a topic at every nsqlookupd and nsqd; wait until no nsqlookupd lists it.

    An nsqd that no nsqlookupd lists for the topic may still have it, after a call that failed there. So all are asked.
    """
    is_found = False
    while True:
        exists = (await leading.view(topic, "r", call)).exists
        nodes = merge_nodes(await leading.collect(lambda client: client.nodes()))
        listed = {info.node for info in nodes if topic in info.topics}
        if is_found and not exists and not listed:
            return
        # First the nsqlookupds, so that consumers do not find the topic again.
        failed = await tell_lookupds(leading, "/topic/delete", {"topic": topic}) if exists or listed else []
        asked = [info.node for info in nodes]
        outcomes = await asyncio.gather(*(delete_at(leading, node, topic) for node in asked))
        errors = {node: outcome for node, outcome in zip(asked, outcomes, strict=True) if isinstance(outcome, NsqError)}
        is_found = is_found or exists or bool(listed) or True in outcomes
        for error in (*failed, *(error for node, error in errors.items() if node in listed or not is_found)):
            raise error
        if not is_found:
            # A silent nsqlookupd may be the only one that lists an nsqd with the topic.
            await asyncio.gather(*(leading.lookupd(url).nodes() for url in leading.servers.urls))
            raise TopicNotFoundError(f"topic {topic!r} does not exist")
        call.last = NsqError(f"topic {topic!r} is listed again: stop its producers and consumers, which create it")
        await asyncio.sleep(PAUSE)


async def delete_at(leading: Leading, node: Node, topic: str) -> bool | NsqError:
    """Delete a topic at one nsqd. Return whether the nsqd had it, or the error."""
    try:
        await leading.nsqd(node).change_topic("delete", topic)
    except NsqError as error:
        return False if isinstance(error, ServerError) and _NO_TOPIC in str(error) else error
    return True


def merge_nodes(lists: Iterable[Iterable[NodeInfo]]) -> tuple[NodeInfo, ...]:
    """Return the nsqds of all lists. A topic is tombstoned if it is at every nsqlookupd that lists it for the nsqd."""
    merged: dict[str, NodeInfo] = {}
    for info in (info for listed in lists for info in listed):
        known = merged.setdefault(info.node.address, info)
        found = {*known.topics} - known.tombstoned | {*info.topics} - info.tombstoned
        merged[info.node.address] = dataclasses.replace(
            known,
            topics=tuple(dict.fromkeys((*known.topics, *info.topics))),
            tombstoned=(known.tombstoned | info.tombstoned) - found,
        )
    return tuple(merged.values())


async def tell_lookupds(leading: Leading, path: str, params: Mapping[str, str]) -> list[BaseException]:
    """Send a change to every nsqlookupd. Return the error that names those that failed, if there are any."""
    causes = tuple((url, text) for url, text in await leading.tell(leading.servers.urls, path, params) if text)
    what = f"not every nsqlookupd confirmed {path} for topic {params['topic']!r}: repeat the call when all answer"
    return [LookupUnavailableError(what, causes)] if causes else []
