"""DevCluster: a whole cluster in one process, with controls for its topics and faults.

The invariant: the whole cluster runs on its own loop. A control passes a function
to that loop and waits for its result, so any thread may call it, even from inside
another running loop.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self, TypeVar

from nsq_ha.devcluster.auth import AuthGrant, key_of
from nsq_ha.devcluster.control.changes import ChangeRefusedError, Changes
from nsq_ha.devcluster.control.coordinator import Coordinator
from nsq_ha.devcluster.control.placement import ClusterPartition, Nsqlookupd
from nsq_ha.devcluster.control.plain_control import PlainControl, PlainNsqlookupd
from nsq_ha.devcluster.host import App, Host, Security, Timing
from nsq_ha.devcluster.http.nsqd import nsqd_app
from nsq_ha.devcluster.http.nsqlookupd import lookupd_app
from nsq_ha.devcluster.http.plain import plain_lookupd_app, plain_nsqd_app
from nsq_ha.devcluster.nodes import HOST, ClusterNode
from nsq_ha.devcluster.nsqd.node import HaNsqd
from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd, PlainSession
from nsq_ha.devcluster.nsqd.session import Session
from nsq_ha.devcluster.storage.replica import TopicOptions
from nsq_ha.options.checks import check_topic
from nsq_ha.process.loop_thread import Portal
from nsq_ha.protocol.server.identify import HA_LIMITS, PLAIN_LIMITS
from nsq_ha.protocol.server.stream import Limits

USUAL_REPLICAS: Final = 3
SYNC_EVERY: Final = 2500
"""Default of :meth:`DevCluster.create_topic`; the real server's default of ``-sync-every``."""
TICK: Final = 0.05
"""Seconds between two checks of timeouts and heartbeats; the real server checks every 0.5 s."""
_POLL: Final = 0.002
_LIMIT: Final = 30.0
"""Seconds for one control; each takes milliseconds unless the cluster's thread hangs."""
_LONG: Final = 60.0
"""Seconds for what the cluster does by its own delays."""
_Result = TypeVar("_Result")
_NOT_RUNNING: Final = "the cluster is not running: use it as a context manager (with DevCluster() as cluster: ...)"


class DevCluster:
    """A cluster of nsqlookupds and nsqds on the loopback: a partitioned one, or with ``plain=True`` an upstream one.

    Use it as a context manager::

        with DevCluster() as cluster:
            cluster.create_topic("orders", 4, ordered=True)
            Producer(lookupd=cluster.lookupd)

    All methods are synchronous. Any thread may call them, even from inside a
    running event loop: the cluster runs in its own thread and never waits for the
    caller.

    Args:
        nsqlookupds: Number of nsqlookupds, ``nsqlookupd-0`` and up.
        nsqds: Number of nsqds, ``nsqd-0`` and up.
        time_scale: Factor for the real cluster's own delays (elections, lookup
            lag ...). Delays that clients request are never scaled. 1.0 is the real pace.
        seed: Seed of all random choices.
        write_without_channels: False makes ``access=w`` refuse topics without a
            channel, as nsqlookupd does by default.
        slow_leaders: Seconds, times ``time_scale``, during which ``access=r`` names a newly elected leader
            that refuses everything as not writable. Real leaders take from 0 seconds to a minute.
        lookupd_ports: HTTP ports of the first nsqlookupds; the others use free ports. In a plain cluster the TCP port
            is one below.
        nsqd_ports: TCP ports of the first nsqds, whose HTTP ports are one above; the others use free ports.
        plain: Imitate upstream's nsqd and nsqlookupd, without partitions, replicas and leaders. The arguments of
            elections (``write_without_channels``, ``slow_leaders``) then mean nothing.
        retain_bytes: Bytes of messages that a partition keeps after all its channels finished them. None keeps all
            of them. A plain nsqd keeps none in any case.
        tls: The server's context. None for a server without TLS.
        tls_required: All commands but IDENTIFY need TLS, and the HTTP of the nsqds refuses everything, as
            with ``-tls-required``.
        tls_write_deadline: Seconds after a TLS handshake at which every write of an nsqd begins to fail:
            messages and heartbeats are silently lost, an answer ends the connection. The real partitioned
            server does this after 5.0 seconds. None for no failures.
        allowed_hosts: Names besides the loopback's that are allowed in ``Host`` and ``Origin`` of HTTP
            requests; others are refused with 403. ``("*",)`` allows all.
        auth: What each secret allows; the nsqds then ask for AUTH, as with ``-auth-http-address``. ``{}`` refuses
            every secret. None for servers without AUTH.
        max_msg_size: Bytes of the largest message that an nsqd accepts. None for the real nsqd's default, as for all
            its limits that follow, which have the names of its flags.
        max_body_size: Bytes of the largest batch.
        max_msg_timeout: Seconds for which a message can stay in flight.
        max_req_timeout: Seconds of the longest delay of a requeue (and in a plain cluster of a deferred message).
        max_heartbeat_interval: Seconds of the longest heartbeat interval.
        max_rdy_count: Largest RDY.

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
        timing = Timing.scaled(time_scale, slow_leader=slow_leaders)
        self._write_without_channels = write_without_channels
        self._lookupd_ports = [*lookupd_ports, *[0] * nsqlookupds][:nsqlookupds]
        self._nsqd_ports = [*nsqd_ports, *[0] * nsqds][:nsqds]
        self._plain = plain
        if retain_bytes is not None and retain_bytes < 0:
            raise ValueError(f"retain_bytes must not be below 0, not {retain_bytes}")
        limits = _changed(
            PLAIN_LIMITS if plain else HA_LIMITS,
            max_message_bytes=max_msg_size,
            max_body_bytes=max_body_size,
            max_msg_timeout=_milliseconds(max_msg_timeout),
            max_delay=_milliseconds(max_req_timeout),
            max_heartbeat=_milliseconds(max_heartbeat_interval),
            max_ready_count=max_rdy_count,
        )
        security = Security(
            tls=tls, required=tls_required, write_deadline=tls_write_deadline, hosts=frozenset(allowed_hosts)
        )
        self._auth = None if auth is None else {key_of(secret): grant for secret, grant in auth.items()}
        self._host: Callable[[], Host] = lambda: Host(
            loop=asyncio.get_running_loop(),
            timing=timing,
            chance=random.Random(seed),  # noqa: S311 - a test cluster's dice
            security=security,
            limits=limits,
            auth=self._auth,
            retain_bytes=retain_bytes,
        )
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
            self._background.wait(self._start, _LIMIT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything; leave no thread, task or socket behind."""
        self.close()

    def close(self) -> None:
        """Stop everything. Idempotent; does nothing in a forked child of the process that started it."""
        background, self._background = self._background, None
        if background is not None and not background.is_inherited:
            background.wait(self._stop, _LIMIT)
            background.close()

    async def _start(self) -> None:
        make = self._make_plain if self._plain else self._make
        make(self._host())
        self._control().begin()
        self._ticker = asyncio.create_task(self._tick())

    def _make(self, host: Host) -> None:
        coordinator = self._running = Coordinator(host)
        placement, answering = coordinator.placement, self._write_without_channels

        def lookupd_http(lookupd: Nsqlookupd) -> App:
            return lookupd_app(lookupd, coordinator, write_without_channels=answering)

        for number, port in enumerate(self._lookupd_ports):
            coordinator.lookupds.append(Nsqlookupd(f"nsqlookupd-{number}", host, placement, lookupd_http, port))
        for number, port in enumerate(self._nsqd_ports):
            coordinator.nsqds.append(
                HaNsqd(f"nsqd-{number}", host, Session, lambda node: nsqd_app(node, placement), port)
            )

    def _make_plain(self, host: Host) -> None:
        control = self._running = PlainControl(host)
        for number, port in enumerate(self._lookupd_ports):
            control.lookupds.append(PlainNsqlookupd(f"nsqlookupd-{number}", host, plain_lookupd_app, port))
        for number, port in enumerate(self._nsqd_ports):
            nsqd = PlainNsqd(
                f"nsqd-{number}",
                host,
                PlainSession,
                plain_nsqd_app,
                port,
                changed=control.changed,
                channels_of=control.channels_of,
            )
            control.nsqds.append(nsqd)

    async def _tick(self) -> None:
        control = self._control()
        while True:
            await asyncio.sleep(TICK)
            control.tick(control.host.now())

    async def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._running is not None:
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

    def _node(self, name: str) -> ClusterNode:
        control = self._control()
        nodes: dict[str, ClusterNode] = {node.name: node for node in (*control.nsqds, *control.lookupds)}
        if name not in nodes:
            raise KeyError(f"no node is called {name!r}; the nodes are {', '.join(nodes)}")
        return nodes[name]

    def _nsqd(self, name: str) -> HaNsqd:
        node = self._node(name)
        if not isinstance(node, HaNsqd):
            raise KeyError(f"{name!r} is not an nsqd; the nsqds are {', '.join(self.nsqds)}")
        return node

    def _partition(self, topic: str, partition: int) -> ClusterPartition:
        found = self._state().placement.partition(topic, partition)
        if found is None:
            raise KeyError(f"the cluster has no partition {topic}-{partition}")
        return found

    def _call(self, function: Callable[[], _Result]) -> _Result:
        if self._background is None:
            raise RuntimeError(_NOT_RUNNING)
        return self._background.call(function, _LIMIT)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait on the cluster's loop until ``condition`` holds."""
        if self._background is None:
            raise RuntimeError(_NOT_RUNNING)
        limit = time.monotonic() + _LONG

        async def wait() -> None:
            while not condition():
                if time.monotonic() > limit:
                    raise TimeoutError(f"timed out after {_LONG:g} s waiting for: {what}")
                await asyncio.sleep(_POLL)

        self._background.wait(wait, _LONG + 5)

    # ------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int | None = None,
        *,
        ordered: bool = False,
        extended: bool = False,
        multi_part: bool | None = None,
        disable_channel_auto_create: bool = False,
        sync_every: int = SYNC_EVERY,
        wait: bool = True,
    ) -> str:
        """Create a topic and wait until every nsqlookupd names all its partitions as writable.

        In a plain cluster every running nsqd creates it. The other arguments must then have their defaults.

        Args:
            name: The name of the topic.
            partitions: Number of partitions.
            replicas: Replicas of each partition; 3 survive the loss of one node quickly. None takes 3, or the number
                of nsqds if there are fewer.
            ordered: Only ordered subscriptions.
            extended: Messages may have JSON headers.
            multi_part: Several partitions may share a node. None allows it if there are too few nodes.
            disable_channel_auto_create: Channels must be registered first.
            sync_every: Number of acknowledged messages that may wait in a buffer, where ``/message/get``
                does not see them (``syncdisk`` of the real server). 0 and 1 flush each message at once.
            wait: False returns at once, like ``/topic/create``.

        Returns:
            The name.

        Raises:
            ChangeRefusedError: The topic exists, or needs more nodes.
            ConfigError: The name is not legal.
            TimeoutError: The topic did not become usable within 60 s.
            ValueError: There is no partition, or a plain cluster has no such options.
        """
        check_topic(name)
        if partitions < 1:
            raise ValueError(f"topic {name!r} needs a partition, not {partitions}")
        control = self._control()
        if isinstance(control, PlainControl):
            if (partitions, ordered, extended, disable_channel_auto_create) != (1, False, False, False):
                raise ValueError("a plain cluster has no partitions, and so no options of topics")
            self._call(lambda: control.create_topic(name))
            return name
        nodes = len(self._state().nsqds)
        replicas = min(USUAL_REPLICAS, nodes) if replicas is None else replicas
        if multi_part is None:
            multi_part = not ordered and partitions * replicas > nodes
        options = TopicOptions(
            partitions=partitions,
            replicas=replicas,
            ordered=ordered,
            multi_part=multi_part,
            extended=extended,
            disable_channel_auto_create=disable_channel_auto_create,
            sync_every=sync_every,
        )
        try:
            self._call(lambda: Changes(self._state()).create(name, options))
        except ChangeRefusedError as error:
            shape = f"{partitions} partitions with {replicas} replicas on {nodes} nsqds"
            raise ChangeRefusedError(f"topic {name!r} was not created with {shape}: {error}") from error
        if wait:
            self._until(lambda: self._is_usable(name, partitions), f"topic {name} is usable")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic; the nsqlookupds forget it after their own delays.

        Raises:
            ChangeRefusedError: There is no such topic.
        """
        control = self._control()
        if isinstance(control, PlainControl):
            self._call(lambda: control.delete_topic(name))
            return
        self._call(lambda: Changes(self._state()).delete(name))

    def expand(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, and return at once, like the real call.

        A topic that is neither ordered nor ``multi_part=True`` has its partitions on
        separate nodes, so it needs partitions x replicas nodes: with 3 replicas on
        the usual 3 nodes such a topic cannot grow.

        Raises:
            ChangeRefusedError: The topic already has more partitions, or needs more nodes
                (``No node is available for topic``).
        """
        self._call(lambda: Changes(self._state()).expand(name, partitions))

    def clean(self, topic: str, partition: int, messages: int) -> None:
        """Delete the oldest messages of a partition on all its replicas, like retention.

        Args:
            topic: The topic.
            partition: The partition.
            messages: Number of the first message to keep, counted from 0 since the topic was created.
        """

        def act() -> None:
            found = self._partition(topic, partition)
            for node in found.replicas:
                node.replica_of(found).clean(messages)

        self._call(act)

    def _is_usable(self, name: str, partitions: int) -> bool:
        for lookupd in self._state().lookupds:
            if not lookupd.reachable:
                continue
            known = [entry for (topic, _), entry in lookupd.registered.items() if topic == name and entry.writable]
            if len(known) < partitions:
                return False
        return True

    # ------------------------------------------------------------ AUTH

    def set_auth(self, secret: str, grant: AuthGrant | None) -> None:
        """Change what a secret allows. None makes it unknown: nsqd refuses it with ``E_AUTH_FAILED``.

        Connections that sent the secret before keep their permissions until their ``ttl`` ends.

        Raises:
            ValueError: The cluster has no AUTH (``auth=``), or the secret is empty.
        """
        table = self._auth
        if table is None:
            raise ValueError("the cluster has no AUTH: create it with DevCluster(auth={...})")
        key = key_of(secret)
        if grant is None:
            self._call(lambda: table.pop(key, None))
        else:
            self._call(lambda: table.update({key: grant}))

    # ------------------------------------------------------------ leaders

    def leader(self, topic: str, partition: int = 0) -> str | None:
        """Return the name of the elected leader. None while there is none."""
        leader = self._call(lambda: self._partition(topic, partition).leader)
        return None if leader is None else leader.name

    def followers(self, topic: str, partition: int = 0) -> list[str]:
        """Return the names of the other nodes that hold the partition."""
        found = self._call(lambda: self._partition(topic, partition))
        return self._call(lambda: [node.name for node in found.replicas if node is not found.leader])

    def move_leader(self, topic: str, partition: int = 0, to: str | None = None) -> str:
        """Move a leader, and wait until it leads and the nsqlookupds know it.

        Args:
            topic: The topic.
            partition: The partition.
            to: Name of the node; one without a replica replaces the leader. None chooses the next in-sync one.

        Returns:
            The name of the new leader.

        Raises:
            ChangeRefusedError: The partition cannot be moved now.
            TimeoutError: The move did not finish within 60 s.
        """

        def begin() -> HaNsqd:
            found = self._partition(topic, partition)
            target = self._nsqd(to) if to is not None else _next_in_sync(found)
            Changes(self._state()).move(found, target)
            return target

        target = self._call(begin)

        def done() -> bool:
            found = self._partition(topic, partition)
            return found.leader is target and self._all_know(found)

        self._until(done, f"{target.name} leads {topic}-{partition}")
        return target.name

    def _all_know(self, partition: ClusterPartition) -> bool:
        for lookupd in self._state().lookupds:
            known = lookupd.registered.get(partition.key)
            if lookupd.reachable and (known is None or known.leader is not partition.leader or not known.writable):
                return False
        return True

    # ------------------------------------------------------------ faults
    #
    # Each makes only the fault itself. The other nodes notice it and react after the cluster's own delays. Repeating a
    # fault on the same node has no effect. Source: server failures 3.

    def kill(self, node: str) -> None:
        """Kill a process: its connections are reset, new ones are refused, its data stays.

        Followers of an nsqd take over once its key has expired. An nsqd of a plain
        cluster loses what it had in memory.
        """
        self._call(lambda: self._control().kill(self._node(node)))

    def stop(self, node: str) -> None:
        """Shut a process down cleanly, and wait until it has ended.

        An nsqd hands over its partitions within about a second (scaled). An nsqd of
        a plain cluster keeps its messages for its next start.
        """
        self._call(lambda: self._control().stop(self._node(node)))
        found = self._node(node)
        self._until(lambda: not found.alive, f"{node} has stopped")

    def start(self, node: str) -> None:
        """Start a process that was killed or stopped; it catches up after the cluster's own delays."""
        self._call(lambda: self._control().start(self._node(node)))

    def freeze(self, node: str) -> None:
        """Freeze a process: connections stay open and silent, and only the kernel accepts new ones."""
        self._call(lambda: self._control().freeze(self._node(node)))

    def thaw(self, node: str) -> None:
        """Continue a frozen process: first it learns what changed, then it processes waiting requests."""
        self._call(lambda: self._control().thaw(self._node(node)))

    def cut(self, node: str) -> None:
        """Reset the connections of all clients; they may reconnect at once."""
        self._call(lambda: self._control().cut(self._node(node)))

    def delay(self, node: str, seconds: float) -> None:
        """Delay everything that a node receives by ``seconds``; 0 ends the delay."""

        def act() -> None:
            self._node(node).delay = seconds

        self._call(act)

    def refuse_writes(self, node: str | None = None, *, refuse: bool = True) -> None:
        """Disable writing, as an operator does: on one nsqd, or on None in the whole cluster.

        nsqd then answers publishes with ``E_FAILED_ON_NOT_LEADER``. With None,
        ``access=w`` answers ``null`` too.

        Raises:
            ValueError: The cluster is a plain one, whose nodes cannot do this.
        """
        target = None if node is None else self._node(node)
        self._call(lambda: self._control().refuse_writes(target, refuse=refuse))

    def is_up(self, node: str) -> bool:
        """Return whether a node runs and is not frozen."""
        return self._call(lambda: self._node(node).reachable)


def _next_in_sync(partition: ClusterPartition) -> HaNsqd:
    others = [node for node in partition.isr if node is not partition.leader and node.reachable]
    if not others:
        raise ChangeRefusedError("no other in-sync replica answers")
    return others[0]


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
