"""One nsqd process: its ports, its replicas, its connections.

When the process dies, it loses its connections and channels; logs and positions
stay, as files would.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nsqd.session import Session
from nsq_ha.devcluster.ports import HOST, Listener, WebServer
from nsq_ha.devcluster.storage.replicas import StorageNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.security import App


class Nsqd(StorageNode):
    """One nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        host: Its environment.
        app: Creates the application that answers its HTTP.

    Attributes:
        connections: Open TCP connections.
        started: How often the process was started.
        overdue: The node should have been removed, but no nsqlookupd led.
    """

    def __init__(self, name: str, host: Host, app: Callable[[Nsqd], App]) -> None:
        super().__init__(name, host)
        self.connections: set[Connection] = set()
        self.overdue = False
        self.started: int = 0
        self.start_time: float = time.time()
        self._client_ids = itertools.count(1)
        self._tcp = Listener(self._connection)
        self._web = WebServer(app(self), lambda: self.delay)
        self._rpc = Listener(asyncio.Protocol)  # never opened: its number is part of the node's id
        self.tcp_port: int = self._tcp.port
        self.http_port: int = self._web.port
        self.registration_port: int = self._rpc.port
        self.distributed_id: str = f"{HOST}:{self._rpc.port}:{self.tcp_port}:1"

    def __repr__(self) -> str:
        return f"<{self.name} {HOST}:{self.tcp_port}>"

    @property
    def linked(self) -> bool:
        """Whether the node is registered at the nsqlookupds."""
        return self.reachable and self.absence is None

    def _connection(self) -> Connection:
        return Session(self, self.connections, next(self._client_ids)).connection

    def start(self) -> None:
        """Start the process."""
        super().start()
        self.started += 1
        self.start_clock()
        self.start_time = time.time()
        self._tcp.open()
        self._web.open()

    def leave(self) -> None:
        """Begin a clean shutdown: disconnect consumers, refuse publishers."""
        super().leave()
        for replica in self.replicas.values():
            replica.drop_consumers()

    def kill(self) -> None:
        """End the process at once and reset its connections."""
        super().kill()
        self._tcp.close()
        self._web.abort()
        self.cut()
        for replica in self.replicas.values():
            replica.forget()

    def freeze(self) -> None:
        """Stop doing anything, as on a hanging machine."""
        super().freeze()
        self._tcp.freeze()
        self._web.freeze()
        for connection in self.connections:
            connection.freeze()

    def thaw(self) -> None:
        """Continue, starting with waiting connections."""
        super().thaw()
        self._tcp.thaw()
        self._web.thaw()
        for connection in tuple(self.connections):
            connection.thaw()

    def cut(self) -> None:
        """Reset all client connections, also those that wait to be accepted."""
        self._tcp.cut()
        for connection in tuple(self.connections):
            connection.abort()

    def release(self) -> None:
        """Stop and release the ports."""
        self.kill()
        for port in (self._tcp, self._web, self._rpc):
            port.release()

    def tick(self, now: float) -> None:
        """Let time pass: heartbeats of connections, flushes, timeouts of messages."""
        if not self.reachable:
            return
        for connection in tuple(self.connections):
            connection.tick(now)
        super().tick(now)
