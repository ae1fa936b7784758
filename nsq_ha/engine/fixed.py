"""nsqds given by address instead of nsqlookupds, for plain servers without partitions.

Each address is one pseudo partition, numbered in the given order, so that
producers and consumers treat both kinds of server alike.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.topology import LookupAnswer, Node, Round, TopicMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.engine.lookupd import Access


class FixedNodes:
    """Answers every lookup with the same nodes, as :class:`~nsq_ha.engine.servers.Servers` does with those it finds.

    Args:
        addresses: ``host:port`` of each nsqd's TCP, as :func:`nsq_ha.options.checks.nsqd_addresses` returns them.
    """

    urls: Final[tuple[str, ...]] = ()
    """There is no nsqlookupd."""

    def __init__(self, addresses: Sequence[str]) -> None:
        nodes = {}
        for number, address in enumerate(addresses):
            host, _, port = address.rpartition(":")
            nodes[number] = Node(host.strip("[]"), int(port), 0, is_plain=True)
        self._answer = LookupAnswer(
            lookupd="",
            leads=True,
            meta=TopicMeta(partition_num=len(nodes), is_partitioned=False),
            partitions=MappingProxyType(nodes),
            exists=True,
        )

    async def look_up(self, topic: str, access: Access) -> Round:
        """Return the fixed answer without asking a server."""
        return Round((self._answer,), None)
