"""One nsqd process: its ports, its replicas, its connections.

When the process dies, it loses its connections and channels; logs and positions
stay, as files would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nsqd.copies import CopyPort
from nsq_ha.devcluster.nsqd.entrance import Entrance, EntranceNode
from nsq_ha.devcluster.nsqd.session import Session
from nsq_ha.devcluster.ports import HOST
from nsq_ha.devcluster.storage.replicas import StorageNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.security import App


class Nsqd(EntranceNode, StorageNode):
    """One nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        host: Its environment.
        app: Creates the application that answers its HTTP.
        ports: The ports of its TCP and its HTTP, 0 for free ones.

    Attributes:
        connections: Open TCP connections.
        copies: The port for copying partitions; its number is part of the node's id.
        started: How often the process was started.
        overdue: The node should have been removed, but no nsqlookupd led.

    Raises:
        OSError: A port is taken.
    """

    def __init__(self, name: str, host: Host, app: Callable[[Nsqd], App], ports: tuple[int, int] = (0, 0)) -> None:
        super().__init__(name, host)
        self.overdue = False
        self.started: int = 0
        self.start_time: float = time.time()
        self._entrance = Entrance(self, lambda *client: Session(self, *client).connection, app(self), ports)
        self.connections: set[Connection] = self._entrance.connections
        self.copies: CopyPort = CopyPort(self)
        self.tcp_port: int = self._entrance.tcp_port
        self.http_port: int = self._entrance.http_port
        self.registration_port: int = self.copies.port
        self.distributed_id: str = f"{HOST}:{self.copies.port}:{self.tcp_port}:1"

    @property
    def linked(self) -> bool:
        """Whether the node is registered at the nsqlookupds."""
        return self.reachable and self.absence is None

    def start(self) -> None:
        """Start the process."""
        super().start()
        self.started += 1
        self.start_clock()
        self.start_time = time.time()
        self._entrance.open()
        self.copies.open()

    def leave(self) -> None:
        """Begin a clean shutdown: disconnect consumers, refuse publishers."""
        super().leave()
        for replica in self.replicas.values():
            replica.drop_consumers()

    def kill(self) -> None:
        """End the process at once and reset its connections."""
        super().kill()
        self._entrance.abort()
        self.copies.abort()
        for replica in self.replicas.values():
            replica.forget()

    def freeze(self) -> None:
        """Stop doing anything, as on a hanging machine."""
        super().freeze()
        self.copies.freeze()

    def thaw(self) -> None:
        """Continue, beginning with what waits."""
        super().thaw()
        self.copies.thaw()

    def cut(self) -> None:
        """Reset all connections, also those that wait to be accepted."""
        super().cut()
        self.copies.cut()

    def release(self) -> None:
        """Stop and release the ports."""
        self.kill()
        self._entrance.release()
        self.copies.release()

    def tick(self, now: float) -> None:
        """Let time pass: heartbeats of connections, flushes, timeouts of messages."""
        if not self.reachable:
            return
        self._entrance.tick(now)
        super().tick(now)
