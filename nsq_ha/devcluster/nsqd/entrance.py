"""The ports of one nsqd process, of either kind, and the connections of its clients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.host import Node
from nsq_ha.devcluster.ports import HOST, Listener, WebServer

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.security import App


class Entrance:
    """TCP and HTTP of one nsqd. Creating it reserves the ports; :meth:`open` listens.

    Args:
        node: The nsqd.
        connect: Makes a connection from the node's open connections and its number.
        app: Answers the HTTP.
        ports: The ports of TCP and HTTP, 0 for free ones.

    Attributes:
        connections: Open TCP connections.
        tcp_port: The port of TCP.
        http_port: The port of HTTP.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self, node: Node, connect: Callable[[set[Connection], int], Connection], app: App, ports: tuple[int, int]
    ) -> None:
        self.connections: set[Connection] = set()
        self._connect = connect
        self._client_ids = itertools.count(1)
        self._tcp = Listener(self._connection, ports[0])
        try:
            self._web = WebServer(app, lambda: node.delay, ports[1])
        except BaseException:
            self._tcp.release()
            raise
        self.tcp_port: int = self._tcp.port
        self.http_port: int = self._web.port

    def _connection(self) -> Connection:
        return self._connect(self.connections, next(self._client_ids))

    def open(self) -> None:
        """Listen and answer."""
        self._tcp.open()
        self._web.open()

    def close(self) -> None:
        """Refuse attempts, and close the connections after what was written to them."""
        for connection in tuple(self.connections):
            connection.close()
        self._tcp.close()
        self._web.abort()

    def abort(self) -> None:
        """Refuse attempts, and reset the connections."""
        self._tcp.close()
        self._web.abort()
        self.cut()

    def freeze(self) -> None:
        """Accept and read nothing; the kernel still completes connections."""
        self._tcp.freeze()
        self._web.freeze()
        for connection in self.connections:
            connection.freeze()

    def thaw(self) -> None:
        """Continue, beginning with what waits."""
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
        """Stop, and release the ports."""
        self.abort()
        self._tcp.release()
        self._web.release()

    def tick(self, now: float) -> None:
        """Let time pass: heartbeats, and the end of silent connections."""
        for connection in tuple(self.connections):
            connection.tick(now)


class EntranceNode(Node):
    """An nsqd of either kind: what is done to the process is done to its entrance, too."""

    _entrance: Entrance

    def __repr__(self) -> str:
        return f"<{self.name} {HOST}:{self.tcp_port}>"

    def freeze(self) -> None:
        """Stop doing anything, as on a hanging machine."""
        super().freeze()
        self._entrance.freeze()

    def thaw(self) -> None:
        """Continue, beginning with what waits."""
        super().thaw()
        self._entrance.thaw()

    def cut(self) -> None:
        """Reset all client connections, also those that wait to be accepted."""
        self._entrance.cut()
