"""The real cluster under test: its control script, its node names, and what it says about itself.

Owns everything that is done to the cluster from outside. Talks to it by the
script and by plain HTTP, and by the library only to make topics, so that a
fault of the library's own lookups cannot hide in the figures.
"""

import asyncio
import dataclasses
import json
import os
import pathlib
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final, Self

from integration.faults.pace import REAL, Pace
from integration.faults.probes import Probes
from integration.faults.waiting import QUESTION, until_true
from nsq_ha.admin import AdminClient

HTTP_LIMIT: Final = 3.0
STABLE_LIMIT: Final = 300.0
WHOLE_FOR: Final = 3.0


class NotReadyError(Exception):
    """The cluster is not in the state that a scenario needs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """Where a partition is: addresses are TCP ports, which name a node on the loopback."""

    leader: int
    replicas: tuple[int, ...]


class Cluster:
    """Controls and questions.

    Args:
        lookupds: Base URLs of all nsqlookupds.
        control: Command of the control script, without sub-command.
        base: Port base of the control script's cluster.

    Attributes:
        names: The cluster's own names of the nsqds, by TCP port, as far as :meth:`partitions` has met them.
        pace: How quickly it goes about its faults.
    """

    pace: Pace = REAL
    is_plain = False

    def __init__(self, lookupds: tuple[str, ...], control: tuple[str, ...], base: int) -> None:
        self.lookupds = lookupds
        self.base = base
        self.names: dict[int, str] = {}
        self._control = control

    @classmethod
    def of_environment(cls) -> Self:
        """Read ``NSQ_HA_TEST_LOOKUPD``, ``NSQ_HA_TEST_CONTROL`` and ``NSQ_HA_TEST_BASE``."""
        lookupds = tuple(url.strip() for url in os.environ.get("NSQ_HA_TEST_LOOKUPD", "").split(",") if url.strip())
        control = tuple(shlex.split(os.environ.get("NSQ_HA_TEST_CONTROL", "")))
        if not lookupds or not control:
            raise SystemExit("set NSQ_HA_TEST_LOOKUPD (URLs) and NSQ_HA_TEST_CONTROL (command), see README.md")
        port = urllib.parse.urlsplit(lookupds[0]).port or 0
        base = int(os.environ.get("NSQ_HA_TEST_BASE", str(port // 1000 * 1000)))
        if port != base + 111:  # a control script may take a name that nobody has for done
            raise NotReadyError(f"the first nsqlookupd has port {port}, not {base + 111}: set NSQ_HA_TEST_BASE")
        return cls(lookupds, control, base)

    # -- names

    def nsqd(self, tcp_port: int) -> str:
        """Return the control script's name of the nsqd at ``tcp_port``."""
        return f"d{(tcp_port - self.base - 300) // 10}"

    def nsqlookupd(self, url: str) -> str:
        """Return the control script's name of the nsqlookupd at ``url``."""
        return f"l{((urllib.parse.urlsplit(url).port or 0) - self.base - 101) // 10}"

    def name_of(self, tcp_port: int) -> str:
        """Return the cluster's own name of an nsqd (``ip:rpc:tcp:id``), guessed from another one's where none is known.

        Raises:
            NotReadyError: No name of any node is known.
        """
        if tcp_port in self.names:
            return self.names[tcp_port]
        if not self.names:
            raise NotReadyError("no name of a node is known")
        host, rpc, tcp, number = next(iter(self.names.values())).split(":")
        return f"{host}:{int(rpc) - int(tcp) + tcp_port}:{tcp_port}:{number}"

    # -- control

    async def kill(self, name: str, sig: str) -> None:
        """Send a signal to a node."""
        await self._run("kill", name, sig)

    async def start(self, name: str) -> None:
        """Start a node; nothing happens when it runs."""
        await self._run("start", name)

    async def _run(self, *words: str) -> None:
        # No pipes: a node that is started would inherit them and keep them open for ever.
        process = await asyncio.create_subprocess_exec(
            *self._control, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        if await process.wait():
            raise NotReadyError(f"{' '.join(words)} failed")

    async def create_topic(self, topic: str, partitions: int, replicas: int, *, is_ordered: bool) -> None:
        """Create a topic, several partitions of which may share a node."""
        async with AdminClient(self.lookupds) as admin:
            await admin.create_topic(topic, partitions, replicas, ordered=is_ordered, multi_part=True)

    # -- watching

    def probes(self, say: Callable[[str], None]) -> Probes:
        """Return what tells when each partition took a publish."""
        return Probes(say, self.nsqd)

    def sockets(self) -> int:
        """Count the sockets of this process that are the library's."""
        count = 0
        for entry in pathlib.Path("/proc/self/fd").iterdir():
            try:
                count += str(entry.readlink()).startswith("socket:")
            except FileNotFoundError:
                continue
        return count

    # -- questions

    async def leading(self) -> str | None:
        """Return the URL of the nsqlookupd that leads and says so itself."""
        for url in self.lookupds:
            status, answer = await get(url + "/listlookup")
            leader = (answer.get("lookupdleader") or {}) if status == 200 else {}
            if leader.get("HttpPort"):
                found = f"http://{leader['NodeIP']}:{leader['HttpPort']}"
                if (await get(found + "/cluster/stats"))[0] == 200:
                    return found
        return None

    async def partitions(self, topic: str) -> dict[int, Partition]:
        """Return leader and in-sync replicas of each partition that has a leader."""
        leading = await self.leading()
        if leading is None:
            return {}
        status, answer = await get(f"{leading}/lookup?topic={topic}&access=r&metainfo=true")
        found: dict[int, Partition] = {}
        for number, node in ((answer.get("partitions") or {}) if status == 200 else {}).items():
            http = f"http://{node['broadcast_address']}:{node['http_port']}"
            _, stats = await get(f"{http}/coordinator/stats?topic={topic}&partition={number}")
            listed = [entry for entry in stats.get("topic_coord_stats") or [] if entry.get("name") == topic]
            names = [str(peer["node_id"]) for entry in listed for peer in entry["isr_stats"] or []]
            replicas = {int(name.split(":")[2]): name for name in names}
            self.names |= replicas
            found[int(number)] = Partition(int(node["tcp_port"]), tuple(replicas))
        return found

    async def nodes(self) -> tuple[int, ...]:
        """Return the TCP ports of all nsqds that are registered."""
        leading = await self.leading()
        if leading is None:
            return ()
        _, answer = await get(leading + "/nodes")
        return tuple(sorted(int(node["tcp_port"]) for node in answer.get("producers") or []))

    async def obstacle(self, topics: dict[str, int], *, stable: bool, replicas: int = 3) -> str:
        """Say what is missing until every partition of ``topics`` is led, writable and has all its replicas in sync.

        Args:
            topics: Number of partitions by topic.
            stable: The cluster must call itself stable, too. It finds that out in a check each one to two
                minutes, and refuses the operator's changes until then; faults do not depend on it.
            replicas: Copies of each partition.

        Returns:
            Empty when nothing is missing.
        """
        leading = await self.leading()
        if leading is None:
            return "no nsqlookupd leads"
        for topic, number in topics.items():
            found = await self.partitions(topic)
            if len(found) != number:
                return f"{topic}: {len(found)} partitions of {number} are led"
            few = [one for one, partition in found.items() if len(partition.replicas) < replicas]
            if few:
                return f"{topic}-{few[0]}: replicas in sync are {found[few[0]].replicas}"
            for url in self.lookupds:
                _, answer = await get(f"{url}/lookup?topic={topic}&access=w&metainfo=true")
                if len(answer.get("partitions") or {}) != number:
                    return f"{url} does not list all of {topic} for writing"
        if stable and not (await get(leading + "/cluster/stats"))[1].get("stable"):
            return "the cluster does not call itself stable yet"
        return ""

    async def wait_whole(
        self, topics: dict[str, int], say: Callable[[str], None], *, stable: bool, limit: float = STABLE_LIMIT
    ) -> float:
        """Wait until there has been no :meth:`obstacle` for a while; return the seconds it took.

        Raises:
            NotReadyError: Not within ``limit``.
        """
        clock = asyncio.get_running_loop().time
        began = whole_since = clock()
        said = ""

        async def is_whole_for_long() -> bool:
            nonlocal whole_since, said
            now = clock()
            obstacle = await self.obstacle(topics, stable=stable)
            if obstacle:
                whole_since = clock()
            if obstacle != said:
                said = obstacle
                say(f"waiting: {obstacle or 'for it to last'}")
            return not obstacle and now - whole_since >= WHOLE_FOR * self.pace.cluster

        if not await until_true(is_whole_for_long, limit, QUESTION * self.pace.cluster):
            raise NotReadyError(f"the cluster is not whole after {limit:g} s: {said or 'it does not last'}")
        return clock() - began

    async def start_all(self) -> None:
        """Wake and start everything that may be down."""
        names = [self.nsqlookupd(url) for url in self.lookupds] + [f"d{number}" for number in range(1, 10)]
        known = [name for name in names if name[0] == "l" or await self._exists(name)]
        for name in known:
            await self.kill(name, "SIGCONT")
            await self.start(name)

    async def _exists(self, name: str) -> bool:
        count = int(os.environ.get("NSQ_HA_TEST_NSQDS", "4"))
        return int(name[1:]) <= count


async def get(url: str, limit: float = HTTP_LIMIT) -> tuple[int, dict[str, Any]]:
    """Ask by HTTP; status -1 and an empty answer when nobody answers, or not with a JSON object."""
    return await asyncio.to_thread(_get, url, limit)


def _get(url: str, limit: float) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(  # noqa: S310 - the scheme is the user's own
        url, headers={"Accept": "application/vnd.nsq; version=1.0"}
    )
    try:
        with urllib.request.urlopen(request, timeout=limit) as response:  # noqa: S310
            answer = json.load(response)
            return response.status, answer if isinstance(answer, dict) else {}
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, {}
    except (OSError, ValueError):
        return -1, {}
