"""One upstream nsqd: its ports, its topics and channels, its connections.

A clean exit writes all messages to the backends, so a restart brings them back. A
killed process loses what was in memory, in flight or deferred; topics, channels
and what is paused stay, as its metadata file would.

Source: nsqio/nsq ``nsqd/nsqd.go``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nodes import Listener, WebServer
from nsq_ha.devcluster.nsqd.plain_session import PlainSession
from nsq_ha.devcluster.storage.queue_node import QueueNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.security import App


class PlainNsqd(QueueNode):
    """One upstream nsqd.

    Args:
        name: Its name in controls, ``nsqd-0``.
        node_id: Part of its message ids (``-node-id``).
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        ports: The ports of its TCP and its HTTP, 0 for free ones.

    Attributes:
        connections: Open TCP connections.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self, name: str, node_id: int, host: Host, app: Callable[[PlainNsqd], App], ports: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(name, node_id, host)
        numbers = itertools.count(1)
        tcp = self._reserve(
            lambda: Listener[PlainSession](lambda others: PlainSession(self, others, next(numbers)), ports[0])
        )
        self.connections: set[PlainSession] = tcp.connections
        self.tcp_port: int = tcp.port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, ports[1])).port

    def leave(self) -> None:
        """Exit cleanly, with all messages written to the backends."""
        self.keep_stored(lambda stored: stored.flush())
        for connection in tuple(self.connections):
            connection.close()
        self.connections.clear()  # they end once what was written to them is read
        super().kill()

    def kill(self) -> None:
        """End the process at once and reset its connections; lose what was in memory."""
        self.keep_stored(lambda stored: stored.forget_memory())
        super().kill()
