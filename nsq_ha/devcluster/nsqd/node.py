"""One nsqd process of each kind: its ports, what it stores, its connections.

When a partitioned one dies, it loses its connections and channels; logs and positions
stay, as files would.

A clean exit of an upstream one writes all messages to the backends, so a restart brings them back. A
killed process loses what was in memory, in flight or deferred; topics, channels
and what is paused stay, as its metadata file would.

Source: nsqio/nsq ``nsqd/nsqd.go``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nodes import HOST, Listener, WebServer
from nsq_ha.devcluster.nsqd.copies import CopyConnection
from nsq_ha.devcluster.nsqd.plain_session import PlainSession
from nsq_ha.devcluster.nsqd.session import Session
from nsq_ha.devcluster.storage.queue_node import QueueNode
from nsq_ha.devcluster.storage.replicas import StorageNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.security import App


class Nsqd(StorageNode):
    """One nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        host: Its environment.
        app: Creates the application that answers its HTTP.
        port: The port of its TCP, one below that of its HTTP; 0 for free ones.

    Attributes:
        connections: Open TCP connections.
        copy_port: The port for copying partitions; part of the node's id.
        started: How often the process was started.
        overdue: The node should have been removed, but no nsqlookupd led.

    Raises:
        OSError: A port is taken.
    """

    def __init__(self, name: str, host: Host, app: Callable[[Nsqd], App], port: int = 0) -> None:
        super().__init__(name, host)
        self.overdue = False
        self.started: int = 0
        numbers = itertools.count(1)
        tcp = self._reserve(lambda: Listener[Session](lambda others: Session(self, others, next(numbers)), port))
        self.connections: set[Session] = tcp.connections
        self.tcp_port: int = tcp.port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, port and port + 1, needs_tls=True)).port
        copies = self._reserve(lambda: Listener[CopyConnection](lambda others: CopyConnection(self, others)))
        self.copy_port: int = copies.port
        self.distributed_id: str = f"{HOST}:{self.copy_port}:{self.tcp_port}:1"

    @property
    def linked(self) -> bool:
        """Whether the node is registered at the nsqlookupds."""
        return self.reachable and self.absence is None

    def start(self) -> None:
        """Start the process."""
        super().start()
        self.started += 1
        self.start_clock()

    def leave(self) -> None:
        """Begin a clean shutdown: replicate what is finished, disconnect consumers, refuse publishers."""
        super().leave()
        for replica in self.replicas.values():
            replica.replicate_channels()
            replica.drop_consumers()

    def kill(self) -> None:
        """End the process at once and reset its connections."""
        super().kill()
        for replica in self.replicas.values():
            replica.forget()


class PlainNsqd(QueueNode):
    """One upstream nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        node_id: Part of its message ids (``-node-id``).
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        port: The port of its TCP, one below that of its HTTP; 0 for free ones.
        changed: Called when topics and channels are created and deleted, see its base.
        channels_of: Returns the channels of a topic that the nsqlookupds know.

    Attributes:
        connections: Open TCP connections.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self,
        name: str,
        node_id: int,
        host: Host,
        app: Callable[[PlainNsqd], App],
        *,
        port: int,
        changed: Callable[[QueueNode, str, str, bool], None],
        channels_of: Callable[[str], Iterable[str]],
    ) -> None:
        super().__init__(name, node_id, host, changed, channels_of)
        numbers = itertools.count(1)
        tcp = self._reserve(
            lambda: Listener[PlainSession](lambda others: PlainSession(self, others, next(numbers)), port)
        )
        self.connections: set[PlainSession] = tcp.connections
        self.tcp_port: int = tcp.port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, port and port + 1, needs_tls=True)).port

    def leave(self) -> None:
        """Exit cleanly, with all messages written to the backends."""
        self.keep_stored(lambda stored: stored.flush())
        closing = tuple(self.connections)
        for connection in closing:
            connection.close()
        self.connections.clear()  # they are not reset: they end once what was written to them is read
        super().kill()
        self.connections.update(closing)

    def kill(self) -> None:
        """End the process at once and reset its connections; lose what was in memory."""
        self.keep_stored(lambda stored: stored.forget_memory())
        super().kill()
