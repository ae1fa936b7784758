"""A real cluster of upstream's servers in the place of the partitioned one: each nsqd is what a partition is there."""

import asyncio
import urllib.parse
import urllib.request

from integration.faults.cluster import HTTP_LIMIT, Cluster, Partition, get


class Plain(Cluster):
    """Controls and questions, as far as a plain cluster has them."""

    is_plain = True

    async def leading(self) -> str | None:
        """Return the first nsqlookupd that answers: all are equal."""
        for url in self.lookupds:
            if (await get(url + "/ping"))[0] != -1 or (await get(url + "/nodes"))[0] == 200:
                return url
        return None

    async def partitions(self, topic: str) -> dict[int, Partition]:
        """Return the nsqds that have the topic."""
        leading = await self.leading()
        _, answer = (0, {}) if leading is None else await get(f"{leading}/lookup?topic={topic}")
        ports = sorted(int(node["tcp_port"]) for node in answer.get("producers") or [])
        return {number: Partition(port, (port,)) for number, port in enumerate(ports)}

    async def obstacle(self, topics: dict[str, int], *, stable: bool, replicas: int = 3) -> str:
        """Say what is missing until each nsqlookupd lists every topic at all nsqds."""
        del stable, replicas
        for topic, number in topics.items():
            for url in self.lookupds:
                _, answer = await get(f"{url}/lookup?topic={topic}")
                if (listed := len(answer.get("producers") or [])) != number:
                    return f"{url} lists {listed} nsqds of {number} for {topic}"
        return ""

    async def create_topic(self, topic: str, partitions: int, replicas: int, *, is_ordered: bool) -> None:
        """Create a topic on all nsqds; there is no order."""
        del partitions, replicas, is_ordered
        leading = await self.leading()
        _, answer = await get(f"{leading}/nodes")
        for node in answer["producers"]:
            url = f"http://{node['broadcast_address']}:{node['http_port']}/topic/create"
            await asyncio.to_thread(_post, f"{url}?{urllib.parse.urlencode({'topic': topic})}")


def _post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=HTTP_LIMIT):  # noqa: S310
        return
