"""One look at a cluster, for all who show it: a :class:`~nsq_ha.admin.reading.Reading` with what is missing.

The invariants: a look ends within its limit, also if servers are slow; a part that fails is that of the look before,
with the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from nsq_ha.admin.cluster import ClusterAdmin
from nsq_ha.admin.description import ClusterStats
from nsq_ha.admin.memory import TopicPartition
from nsq_ha.admin.reading import Reading, Replicas
from nsq_ha.admin.statistics import ANSWERED, StatsAdmin
from nsq_ha.admin.topics import TopicAdmin
from nsq_ha.base.clock import monotonic
from nsq_ha.errors import NsqError
from nsq_ha.policy.topology import tcp_address

MAX_ASKED: Final = 50
"""Topics whose replicas are asked for in one look while an nsqd is missing."""

_AT_ONCE: Final = 8

T = TypeVar("T")


class LookAdmin(TopicAdmin, ClusterAdmin, StatsAdmin):
    """The call that reads everything at once."""

    async def look(
        self, before: Reading | None = None, *, topics: Iterable[str] = (), clients: bool = False, timeout: float = 10.0
    ) -> Reading:
        """Return what the nsqlookupds and nsqds say now; :func:`nsq_ha.admin.incidents` says what is wrong.

        Args:
            before: The look before: rates and memory come from it, and what gets no answer now. A reading that was not
                made by a look gives only its memory. None for the first one.
            topics: Topics to describe, too.
            clients: Read the connections of each channel, too.
            timeout: Seconds for the whole look.

        Raises:
            LookupUnavailableError: No nsqlookupd answers, and there was no look before.
        """
        clock = asyncio.get_running_loop().time
        self._leading.servers.know(() if before is None else before.remembered.lookupds)
        began, old, errors = clock(), before or Reading(time.time()), dict[str, str]()
        limit = timeout * 0.8

        async def part(name: str, ask: Callable[[], Awaitable[T]], known: T) -> T:
            try:
                async with asyncio.timeout(limit):
                    return await ask()
            except NsqError as error:
                if before is None and name == "nsqds":
                    raise
                errors[name] = str(error)
            except TimeoutError:
                errors[name] = f"no answer within {timeout:g} s"
            return known

        stats, infos, listed, cluster, described = await asyncio.gather(
            part("nsqds", partial(self.stats, clients=clients, timeout=limit), old.stats),
            part("nodes", self.nodes, None),
            part("topics", self.topics, None),
            part("cluster", partial(self.cluster, timeout=timeout), old.cluster),
            asyncio.gather(
                *(part("", partial(self.describe, each, timeout=limit), old.details.get(each)) for each in topics)
            ),
        )
        at = time.time()
        found = Reading(
            at,
            took=clock() - began,
            stats=stats,
            infos=old.infos if infos is None else {info.node.address: info for info in infos},
            listed=old.listed if listed is None else {info.name: info for info in listed},
            cluster=cluster,
            details={each.view.topic: each for each in described if each is not None},
            errors={name: text for name, text in errors.items() if name},  # a description that is old is no part
            earlier=None if old.clock is None else old.kept,
            has_clients=clients,
            clock=monotonic(),
            memory=old.remembered,
        )
        left = max(0.1, timeout - (clock() - began))
        try:
            async with asyncio.timeout(left):
                return await self._with_missing(found, clock() + ANSWERED * left)
        except TimeoutError:
            return found

    async def _with_missing(self, reading: Reading, until: float) -> Reading:
        """Return a reading with what is known, until a time of the loop's clock, of nsqds missing or not in sync."""
        unlisted = [
            each.node
            for address, each in reading.memory.nsqds.items()
            if each.node is not None and (address not in reading.nodes or not reading.is_fresh)
        ]
        asked = self._ask_nsqds(unlisted, clients=reading.has_clients, until=until)
        is_missing = reading.is_fresh and bool(unlisted or reading.silent or reading.stable is False)
        replicas, absent = await asyncio.gather(self._replicas(reading) if is_missing else asyncio.sleep(0, {}), asked)
        if not reading.is_fresh:  # those that are known may answer, though nobody says where they are
            if all(each.error for each in absent):
                return reading
            errors = {part: text for part, text in reading.errors.items() if part != "nsqds"}
            reading = replace(reading, stats=ClusterStats(()), errors=errors)
        return replace(reading, absent={each.node.address: each for each in absent}, replicas=replicas)

    async def _replicas(self, reading: Reading) -> Mapping[TopicPartition, Replicas]:
        """Ask the leaders who should hold partitions: first of the topics with the fewest copies."""
        if reading.is_plain:
            return {}
        copies: dict[str, int] = {}
        for (topic, _), holders in reading.holders.items():
            alive = sum(each not in reading.silent for each in holders)
            copies[topic] = min(alive, copies.get(topic, alive))
        chosen = sorted(copies, key=lambda topic: (copies[topic], topic))[:MAX_ASKED]
        places = {
            (topic, leader)
            for (topic, _), leader in reading.leaders.items()
            if topic in chosen and leader not in reading.silent
        }
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(topic: str, address: str) -> dict[TopicPartition, Replicas]:
            async with slots:
                try:
                    members = await self._leading.nsqd(reading.nodes[address].node).members(topic)
                except NsqError:
                    return {}
            return {
                (topic, number): Replicas(_addresses(in_sync), _addresses(behind))
                for number, in_sync, behind in members
                if reading.leaders.get((topic, number)) == address
            }

        found = await asyncio.gather(*(ask(*place) for place in sorted(places)))
        return {partition: replicas for each in found for partition, replicas in each.items()}


def _addresses(names: Iterable[str]) -> frozenset[str]:
    return frozenset(tcp_address(name) or name for name in names)
