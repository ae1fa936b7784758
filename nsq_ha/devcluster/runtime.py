"""The running cluster: its thread, its nodes, and how other threads reach them.

The invariant: the whole cluster runs on its own loop. A control passes a function
to that loop and waits for its result, so any thread may call it, even from inside
another running loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from nsq_ha._portal import Portal
from nsq_ha.devcluster.auth import AuthTable
from nsq_ha.devcluster.control.coordinator import Coordinator
from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd
from nsq_ha.devcluster.control.plain_control import PlainControl
from nsq_ha.devcluster.control.plain_lookupd import PlainNsqlookupd
from nsq_ha.devcluster.host import Host, Timing
from nsq_ha.devcluster.http.nsqd import nsqd_app
from nsq_ha.devcluster.http.nsqlookupd import lookupd_app
from nsq_ha.devcluster.http.plain_nsqd import plain_nsqd_app
from nsq_ha.devcluster.http.plain_nsqlookupd import plain_lookupd_app
from nsq_ha.devcluster.nodes import HOST
from nsq_ha.devcluster.nsqd.node import Nsqd
from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
from nsq_ha.devcluster.security import Security
from nsq_ha.devcluster.storage.guids import node_ids_of
from nsq_ha.protocol.server.identify import HA_LIMITS, PLAIN_LIMITS

if TYPE_CHECKING:
    import ssl

    from nsq_ha.devcluster.auth import AuthGrant
    from nsq_ha.devcluster.control.placement import Partition
    from nsq_ha.devcluster.nodes import Node
    from nsq_ha.devcluster.security import App
    from nsq_ha.protocol.server.stream import Limits

TICK: Final = 0.05
"""Seconds between two checks of timeouts and heartbeats; the real server checks every 0.5 s."""
_POLL: Final = 0.002
_LIMIT: Final = 30.0
"""Seconds for one control; each takes milliseconds unless the cluster's thread hangs."""
_Result = TypeVar("_Result")
_NOT_RUNNING: Final = "the cluster is not running: use it as a context manager (with DevCluster() as cluster: ...)"


class Runtime:
    """Starts, holds and stops the nodes; see :class:`nsq_ha.devcluster.DevCluster`.

    Raises:
        ValueError: There are no nodes, a number is out of range, a secret is empty, or TLS is required but not
            configured.
    """

    def __init__(
        self,
        *,
        nsqlookupds: int = 2,
        nsqds: int = 3,
        time_scale: float = 0.1,
        seed: int = 1,
        write_without_channels: bool = True,
        slow_leaders: float = 0.0,
        lookupd_ports: Sequence[int] = (),
        nsqd_ports: Sequence[int] = (),
        plain: bool = False,
        node_ids: Sequence[int] = (),
        retain_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
        tls_required: bool = False,
        tls_write_deadline: float | None = None,
        allowed_hosts: Sequence[str] = (),
        auth: Mapping[str, AuthGrant] | None = None,
        max_msg_size: int | None = None,
        max_body_size: int | None = None,
        max_msg_timeout: float | None = None,
        max_req_timeout: float | None = None,
        max_heartbeat_interval: float | None = None,
        max_rdy_count: int | None = None,
    ) -> None:
        if nsqlookupds < 1 or nsqds < 1:
            raise ValueError(f"a cluster needs at least 1 nsqlookupd and 1 nsqd, not {nsqlookupds} and {nsqds}")
        self._timing = Timing.scaled(time_scale, slow_leader=slow_leaders)
        self._sizes = nsqlookupds, nsqds
        self._seed = seed
        self._write_without_channels = write_without_channels
        self._lookupd_ports = [*lookupd_ports, *[0] * nsqlookupds]
        self._nsqd_ports = [*nsqd_ports, *[0] * nsqds]
        self._plain = plain
        self._node_ids = node_ids_of(node_ids, nsqds)
        if retain_bytes is not None and retain_bytes < 0:
            raise ValueError(f"retain_bytes must not be below 0, not {retain_bytes}")
        self._retain_bytes = retain_bytes
        self._limits = _changed(
            PLAIN_LIMITS if plain else HA_LIMITS,
            max_message_bytes=max_msg_size,
            max_body_bytes=max_body_size,
            max_msg_timeout=_milliseconds(max_msg_timeout),
            max_delay=_milliseconds(max_req_timeout),
            max_heartbeat=_milliseconds(max_heartbeat_interval),
            max_ready_count=max_rdy_count,
        )
        self._security = Security(
            tls=tls, required=tls_required, write_deadline=tls_write_deadline, hosts=frozenset(allowed_hosts)
        )
        self._auth = None if auth is None else AuthTable(auth)
        self._background: Portal | None = None
        self._running: Coordinator | PlainControl | None = None
        self._ticker: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    def __enter__(self) -> Self:
        """Start all nodes, and return when they answer.

        Raises:
            OSError: A port in ``lookupd_ports`` is taken.
        """
        self._background = Portal("nsq_ha-devcluster")
        try:
            self._background.wait(self._start(), _LIMIT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything; leave no thread, task or socket behind."""
        self.close()

    def close(self) -> None:
        """Stop everything. Idempotent; does nothing in a forked child of the process that started it."""
        background, self._background = self._background, None
        if background is not None and not background.is_inherited:
            background.wait(self._stop(), _LIMIT)
            background.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        host = Host(
            loop,
            self._timing,
            self._seed,
            self._security,
            limits=self._limits,
            auth=self._auth,
            retain_bytes=self._retain_bytes,
        )
        if self._plain:
            self._make_plain(host)
        else:
            self._make(host)
        self._control().begin()
        self._ticker = asyncio.create_task(self._tick())

    def _make(self, host: Host) -> None:
        coordinator = self._running = Coordinator(host)
        guarded = self._security.guarded

        def lookupd_http(lookupd: Nsqlookupd) -> App:
            answering = self._write_without_channels
            return guarded(lookupd_app(lookupd, coordinator, write_without_channels=answering))

        def nsqd_http(node: Nsqd) -> App:
            return guarded(nsqd_app(node, coordinator.placement), plain=False)

        for name, port in self._lookupds():
            coordinator.lookupds.append(Nsqlookupd(name, host, coordinator.placement, lookupd_http, port))
        for name, ports in self._nsqds():
            coordinator.nsqds.append(Nsqd(name, host, nsqd_http, ports))

    def _make_plain(self, host: Host) -> None:
        control = self._running = PlainControl(host)
        guarded = self._security.guarded
        for name, port in self._lookupds():
            ports = (port - 1 if port else 0, port)  # as 4160 and 4161 are
            lookupd = PlainNsqlookupd(name, host, lambda lookupd: guarded(plain_lookupd_app(lookupd)), ports)
            control.lookupds.append(lookupd)
        for node_id, (name, ports) in zip(self._node_ids, self._nsqds(), strict=True):
            nsqd = PlainNsqd(name, node_id, host, lambda nsqd: guarded(plain_nsqd_app(nsqd), plain=False), ports)
            control.nsqds.append(nsqd)

    def _lookupds(self) -> list[tuple[str, int]]:
        """Return name and HTTP port of each nsqlookupd."""
        return [(f"nsqlookupd-{number}", port) for number, port in enumerate(self._lookupd_ports[: self._sizes[0]])]

    def _nsqds(self) -> list[tuple[str, tuple[int, int]]]:
        """Return name, TCP port and HTTP port of each nsqd."""
        ports = self._nsqd_ports[: self._sizes[1]]
        return [(f"nsqd-{number}", (port, port + 1 if port else 0)) for number, port in enumerate(ports)]

    async def _tick(self) -> None:
        control = self._control()
        while True:
            await asyncio.sleep(TICK)
            control.tick(control.host.now())

    async def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._running is not None:
            self._running.host.close()
            for node in (*self._running.nsqds, *self._running.lookupds):
                node.release()

    # ------------------------------------------------------------ addresses

    @property
    def lookupd(self) -> list[str]:
        """Base URLs of the nsqlookupds."""
        return [f"http://{HOST}:{lookupd.http_port}" for lookupd in self._control().lookupds]

    @property
    def lookupds(self) -> list[str]:
        """Names of the nsqlookupds."""
        return [lookupd.name for lookupd in self._control().lookupds]

    @property
    def nsqds(self) -> dict[str, str]:
        """Name of each nsqd and its TCP address ``host:port``."""
        return {node.name: f"{HOST}:{node.tcp_port}" for node in self._control().nsqds}

    def http_address(self, node: str) -> str:
        """Base URL of a node's HTTP."""
        return f"http://{HOST}:{self._node(node).http_port}"

    # ------------------------------------------------------------ plumbing

    def _control(self) -> Coordinator | PlainControl:
        if self._running is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._running

    def _state(self) -> Coordinator:
        control = self._control()
        if not isinstance(control, Coordinator):
            raise ValueError("a plain cluster has no partitions, no leaders and no replicas")  # noqa: TRY004
        return control

    def _node(self, name: str) -> Node:
        nodes = self._nodes()
        for node in nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node is called {name!r}; the nodes are {', '.join(node.name for node in nodes)}")

    def _nodes(self) -> list[Node]:
        control = self._control()
        return [*control.nsqds, *control.lookupds]

    def _nsqd(self, name: str) -> Nsqd:
        node = self._node(name)
        if not isinstance(node, Nsqd):
            raise KeyError(f"{name!r} is not an nsqd; the nsqds are {', '.join(self.nsqds)}")
        return node

    def _partition(self, topic: str, partition: int) -> Partition:
        found = self._state().placement.partition(topic, partition)
        if found is None:
            raise KeyError(f"the cluster has no partition {topic}-{partition}")
        return found

    def _call(self, function: Callable[[], _Result]) -> _Result:
        if self._background is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._background.call(function, _LIMIT)

    def _until(self, condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        """Wait on the cluster's loop until ``condition`` holds."""
        if self._background is None:
            raise RuntimeError(_NOT_RUNNING)
        limit = time.monotonic() + timeout

        async def wait() -> None:
            while not condition():
                if time.monotonic() > limit:
                    raise TimeoutError(f"timed out after {timeout:g} s waiting for: {what}")
                await asyncio.sleep(_POLL)

        self._background.wait(wait(), timeout + 5)


def _changed(limits: Limits, **given: int | None) -> Limits:
    """Return the limits of the nsqds; None keeps the default of the real one's flag ``-max-...``.

    Raises:
        ValueError: One is below 1.
    """
    changed = {name: value for name, value in given.items() if value is not None}
    if min(changed.values(), default=1) < 1:
        raise ValueError("a limit of the nsqds (max_...) must be above 0")
    return replace(limits, **changed)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
