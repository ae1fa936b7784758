"""What stands between the library and the cluster when the network is at fault: TCP and lookup proxies.

The proxies run in the loop of the loads. A lookup proxy rewrites the addresses in
the answers, so that the library finds the TCP proxies where the nsqds are, and the
other lookup proxies where the nsqlookupds are; and it counts the questions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import urllib.parse
from typing import Any, Final, Literal, Self

from integration.faults.cluster import Cluster, NotReadyError, get
from tests.engine.lookups.loopback import Fake, http_answer

Fault = Literal["cut", "silent", "flip", "lose"]
Hole = Literal["both ways", "to the server", "to the client", "a byte a second"]
"""What is swallowed: all, or only one direction; or clients are read so slowly that nothing arrives in time."""
DELAY: Final = 0.05
"""Seconds that a slow network takes for each direction."""
LOSS: Final = 0.01
"""The share of packets that a slow network loses."""
RESENT_AFTER: Final = 0.3
"""Seconds after which TCP sends a lost packet again; what follows it waits."""
TASK: Final = "proxy"
"""Name of the tasks that hold connections, for who counts those of the library."""


class Link:
    """One connection through a proxy; faults hit what the server sends.

    Attributes:
        fault: What happens to the next frame of the server.
        hole: What is swallowed, the end of the stream included. None for nothing.
        is_slow: Bytes arrive late, and some have to be sent again.
    """

    def __init__(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], server: tuple[asyncio.StreamReader, Any]
    ) -> None:
        self.fault: Fault | None = None
        self.hole: Hole | None = None
        self.is_slow = False
        self._arrives: dict[asyncio.StreamWriter, float] = {}
        self._client = client
        self._server = server
        self._is_mute = False

    async def run(self) -> None:
        """Pass bytes until one side ends."""
        tasks = [asyncio.create_task(one, name=TASK) for one in (self._forth(), self._back())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _, writer in (self._client, self._server):
                writer.transport.abort()

    async def _forth(self) -> None:
        reader, writer = self._client[0], self._server[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(1 if self.hole == "a byte a second" else 65536):
                if self.hole not in ("both ways", "to the server"):
                    await self._send(writer, data)
                if self.hole == "a byte a second":
                    await asyncio.sleep(1.0)  # time itself is the fault
        await self._keep_quiet()

    async def _back(self) -> None:
        reader, writer = self._server[0], self._client[1]
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readexactly(4)
                frame = bytearray(head + await reader.readexactly(int.from_bytes(head, "big")))
                if self._is_mute or self.hole in ("both ways", "to the client"):
                    continue
                frame, goes_on = self._hit(frame)
                await self._send(writer, bytes(frame))
                if not goes_on:
                    return
        await self._keep_quiet()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        now, last = loop.time(), self._arrives.get(writer, -math.inf)
        if not self.is_slow and now > last + RESENT_AFTER:
            writer.write(data)
            await writer.drain()
            return
        late = (DELAY + (RESENT_AFTER if random.random() < LOSS else 0.0)) if self.is_slow else 0.0
        # Nothing overtakes what was sent before, and timers of one time have no order.
        at = self._arrives[writer] = max(last + 1e-6, now + late)
        loop.call_at(at, writer.write, data)

    async def _keep_quiet(self) -> None:
        """Do not let one side know that the other one's stream ended, while there is a hole between them."""
        if self.hole is not None:
            await asyncio.Event().wait()

    def _hit(self, frame: bytearray) -> tuple[bytearray, bool]:
        """Do the fault to one frame; tell whether the connection goes on."""
        fault, self.fault = self.fault, None
        if fault == "flip":
            # Not the size's low byte: a body that is one letter shorter is no matter of the protocol.
            place = random.choice([0, 1, 2, 4, 5, 6, 7])
            frame[place] ^= 1 << random.randrange(8)
        elif fault == "cut":
            return frame[: len(frame) // 2 + 1], False
        elif fault == "silent":
            self._is_mute = True
            return frame[: len(frame) // 2 + 1], True
        elif fault == "lose":
            self._is_mute = True
            return bytearray(), True
        return frame, True


class TcpProxy:
    """Stands before one nsqd."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.hole: Hole | None = None
        self.is_slow = False
        self.links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._hole_ended = asyncio.Event()

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hit(self, fault: Fault) -> None:
        """Do a fault to all connections that are open now."""
        for link in self.links:
            link.fault = fault

    def has_hit_all(self) -> bool:
        """Tell whether the last fault has been done to all connections that are still open."""
        return all(link.fault is None for link in self.links)

    def slow_down(self, *, is_slow: bool = True) -> None:
        """Have what is sent from now on arrive late, or no longer."""
        self.is_slow = is_slow
        for link in self.links:
            link.is_slow = is_slow

    def begin_hole(self, hole: Hole) -> None:
        """Accept connections but pass no more data of these, and close none."""
        self.hole = hole
        for link in self.links:
            link.hole = hole

    def end_hole(self) -> None:
        """Pass new connections again; those that were in the hole, of which bytes are missing, are reset."""
        self.hole = None
        # Another hole has another end: connections made from now on wait for that one.
        ended, self._hole_ended = self._hole_ended, asyncio.Event()
        ended.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.set_name(TASK)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await self._pass(reader, writer)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.hole == "both ways":
            await self._hole_ended.wait()
            return
        server = await asyncio.open_connection("127.0.0.1", self.target)
        # The magic comes before the first frame of the server: nothing to distinguish there.
        link = Link((reader, writer), server)
        link.hole, link.is_slow = self.hole, self.is_slow
        self.links.add(link)
        running = asyncio.create_task(link.run(), name=TASK)
        hole_ended = asyncio.create_task(self._hole_ended.wait(), name=TASK)
        try:
            await asyncio.wait({running, hole_ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (running, hole_ended):
                task.cancel()
            await asyncio.gather(running, hole_ended, return_exceptions=True)
            self.links.discard(link)


class LookupProxy(Fake):
    """Stands before one nsqlookupd."""

    def __init__(self, target: str, network: Network) -> None:
        super().__init__()
        self.target = target
        self._network = network

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        self.note(head)
        status, answer = await get(self.target + head.split(b" ", 2)[1].decode())
        if status == -1:
            writer.transport.abort()
            return
        self._network.rewrite(answer)
        writer.write(http_answer(json.dumps(answer).encode(), status))
        await writer.drain()

    def _asked(self, topic: str, access: str) -> list[float]:
        """Return when one client asked for a topic: ``w`` is a producer's question, ``r`` a consumer's."""
        return [
            at
            for at, path, query in self.requests
            if (path, query.get("topic"), query.get("access")) == ("/lookup", topic, access)
        ]

    def most_in_a_second(self, topic: str, access: str, since: float) -> int:
        """Return the most questions of one client for a topic in any second."""
        times = [t for t in self._asked(topic, access) if t >= since]
        return max((sum(t <= other < t + 1.0 for other in times) for t in times), default=0)

    def rate(self, topic: str, access: str, since: float, until: float) -> float:
        """Return the mean number of one client's questions a second for a topic."""
        return sum(since <= t <= until for t in self._asked(topic, access)) / max(until - since, 0.001)


class Network:
    """Proxies before the whole cluster. Use it with ``async with``.

    Args:
        cluster: The cluster.
        is_tcp: Stand before the nsqds, too, not only before the nsqlookupds.
    """

    def __init__(self, cluster: Cluster, *, is_tcp: bool = True) -> None:
        self.tcp: dict[int, TcpProxy] = {}
        self.lookups = [LookupProxy(url, self) for url in cluster.lookupds]
        self._cluster = cluster
        self._is_tcp = is_tcp

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the lookup proxies."""
        return tuple(lookup.url for lookup in self.lookups)

    async def __aenter__(self) -> Self:
        if self._is_tcp:
            self.tcp = {port: TcpProxy(port) for port in await self._cluster.nodes()}
            for proxy in self.tcp.values():
                await proxy.start()
        for lookup in self.lookups:
            await lookup.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for lookup in self.lookups:
            await lookup.stop()
        for proxy in self.tcp.values():
            await proxy.stop()

    def check(self, *ports: int) -> None:
        """Check that a fault meets the clients: they are connected through the proxies of these nsqds, or of any.

        Raises:
            NotReadyError: They go around them.
        """
        if not any(self.tcp[port].links for port in ports or self.tcp):
            raise NotReadyError("no connection goes through the proxies")

    def rewrite(self, answer: dict[str, Any]) -> None:
        """Put the proxies' addresses into an answer."""
        nodes = [*(answer.get("partitions") or {}).values(), *(answer.get("producers") or [])]
        for node in nodes:
            proxy = self.tcp.get(int(node.get("tcp_port", 0)))
            if proxy is not None:
                node["tcp_port"] = proxy.port
        ports = {str(urllib.parse.urlsplit(one.target).port): str(one.port) for one in self.lookups}
        for lookupd in [*(answer.get("lookupdnodes") or []), answer.get("lookupdleader") or {}]:
            if lookupd.get("HttpPort") in ports:
                lookupd["HttpPort"] = ports[lookupd["HttpPort"]]
