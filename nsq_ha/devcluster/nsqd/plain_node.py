"""One upstream nsqd: its ports, its topics and channels, its connections.

A clean exit writes all messages to the backends, so a restart brings them back. A
killed process loses what was in memory, in flight or deferred; topics, channels
and what is paused stay, as its metadata file would.

Source: nsqio/nsq ``nsqd/nsqd.go``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nsqd.entrance import Entrance, EntranceNode
from nsq_ha.devcluster.nsqd.plain_session import PlainSession
from nsq_ha.devcluster.storage.queue_node import QueueNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.security import App
    from nsq_ha.devcluster.storage.queues import PlainChannel, Queue


class PlainNsqd(EntranceNode, QueueNode):
    """One upstream nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        node_id: Part of its message ids (``-node-id``).
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        ports: The ports of its TCP and its HTTP, 0 for free ones.

    Attributes:
        connections: Open TCP connections.
        start_time: Seconds since the epoch.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self, name: str, node_id: int, host: Host, app: Callable[[PlainNsqd], App], ports: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(name, node_id, host)
        self.start_time: float = time.time()
        self._entrance = Entrance(self, lambda *client: PlainSession(self, *client).connection, app(self), ports)
        self.connections: set[Connection] = self._entrance.connections
        self.tcp_port: int = self._entrance.tcp_port
        self.http_port: int = self._entrance.http_port

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process."""
        super().start()
        self.start_time = time.time()
        self._entrance.open()

    def leave(self) -> None:
        """Exit cleanly, with all messages written to the backends."""
        self._end(self._entrance.close, lambda stored: stored.flush())

    def kill(self) -> None:
        """End the process at once and reset its connections; lose what was in memory."""
        self._end(self._entrance.abort, lambda stored: stored.forget_memory())

    def _end(self, close: Callable[[], None], act: Callable[[Queue | PlainChannel], None]) -> None:
        super().kill()
        self.keep_stored(act)
        close()

    def release(self) -> None:
        """Stop and release the ports."""
        self.kill()
        self._entrance.release()

    def tick(self, now: float) -> None:
        """Let time pass: heartbeats of connections, timeouts and delays of messages."""
        if not self.reachable:
            return
        self._entrance.tick(now)
        super().tick(now)
