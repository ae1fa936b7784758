"""Wait until a new topic, or new partitions, can be used.

The cluster accepts a change before it works. Its first check of the new partitions may be skipped, so another one is
requested after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.leading import PAUSE
from nsq_ha.discovery.http import ask
from nsq_ha.errors import NoLeaderError, NsqError

if TYPE_CHECKING:
    from nsq_ha.admin.leading import Bounded, Leading
    from nsq_ha.policy.topology import TopicView

_NUDGE_INTERVAL: Final = 7.0
"""Seconds between two requests for another check."""


async def until_usable(
    leading: Leading, topic: str, partitions: int, call: Bounded, *, needs_channels: bool = True
) -> TopicView:
    """Wait for all leaders; after a while ask the cluster for another check, since it may have skipped one."""
    loop = asyncio.get_running_loop()
    nudge_at = loop.time() + _NUDGE_INTERVAL
    while True:
        usable = await leading.view(topic, "r", call)
        if needs_channels:
            writable = await leading.view(topic, "w", call)
            # A nsqlookupd with default settings hides a topic without channel from publishers.
            usable = usable if "no channel" in writable.note.lower() else writable
        if usable.complete and usable.partition_num == partitions:
            if await _all_serve(leading, topic, usable):
                return usable
            call.last = NoLeaderError(f"{topic}: the nsqds that nsqlookupd names as leaders do not serve it yet")
        else:
            call.last = unled(usable, partitions)
        if loop.time() >= nudge_at:
            nudge_at = loop.time() + _NUDGE_INTERVAL
            await _nudge(leading, topic, call)
        await asyncio.sleep(PAUSE)


async def _all_serve(leading: Leading, topic: str, view: TopicView) -> bool:
    """Return whether all leaders agree that they lead; a look-up may be a minute ahead of the nsqd.

    An nsqd whose HTTP does not answer counts as agreeing.
    """
    for node in set(view.leaders.values()):
        try:
            found = await leading.nsqd(node).stats(topic)
        except NsqError:
            continue
        leads = {entry.partition for entry in found if entry.is_leader}
        if not leads.issuperset(p for p, leader in view.leaders.items() if leader == node):
            return False
    return True


async def _nudge(leading: Leading, topic: str, call: Bounded) -> None:
    leader = await leading.leader(call)
    with contextlib.suppress(NsqError):
        url = leader + "/topic/meta/update"
        await ask(leading.http, "POST", url, timeout=leading.timeout, params={"topic": topic})


def unled(view: TopicView, partitions: int) -> NoLeaderError:
    """Return the error for a topic of which not every partition has a leader."""
    missing = ", ".join(str(number) for number in range(partitions) if number not in view.leaders)
    note = f" ({view.note})" if view.note else ""
    if missing:
        return NoLeaderError(f"topic {view.topic!r}: no leader for partition {missing}{note}")
    return NoLeaderError(f"topic {view.topic!r}: the nsqlookupds name different leaders or partition counts{note}")
