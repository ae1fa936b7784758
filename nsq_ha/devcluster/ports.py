"""A listening port on the loopback that can close, freeze and come back with the same number.

The invariant: the port belongs to its node for the node's whole life. While the
node is down, a second socket that never listens keeps the number, so that
nobody else gets it and a connection attempt is refused.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable
from typing import Any, Final

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512


class Listener:
    """One port.

    Args:
        factory: Makes the protocol of a new connection.
        port: Its number. 0 for a free one.

    Attributes:
        port: Its number.
    """

    def __init__(self, factory: Callable[[], asyncio.Protocol], port: int = 0) -> None:
        """Reserve the port; nothing listens yet.

        Raises:
            OSError: Somebody else has it.
        """
        self._factory = factory
        self._keeper: socket.socket | None = _bound(port)
        self.port: int = self._keeper.getsockname()[1]
        self._socket: socket.socket | None = None
        self._accepting: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Listen and accept."""
        if self._socket is None:
            self._socket = self._listening()
            self.thaw()

    def close(self) -> None:
        """Stop listening; attempts to connect are refused from now on."""
        if self._socket is not None:
            self.freeze()
            self._socket.close()
            self._socket = None
        for task in self._accepting:
            task.cancel()

    def cut(self) -> None:
        """Close what waits to be accepted, and go on listening."""
        for task in self._accepting:
            task.cancel()
        while (connection := self._next()) is not None:
            connection.close()

    def release(self) -> None:
        """Give up the port for good."""
        self.close()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def freeze(self) -> None:
        """Accept nothing more; the kernel still completes connections, and they wait."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())

    def thaw(self) -> None:
        """Accept what waits, and go on."""
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _listening(self) -> socket.socket:
        try:
            listening = _bound(self.port)
        except OSError:  # Not every system lets two sockets share a bound port.
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            listening = _bound(self.port)
        listening.listen(_BACKLOG)
        return listening

    def _next(self) -> socket.socket | None:
        """A connection that waits. None when there is none."""
        if self._socket is None:
            return None
        try:
            return self._socket.accept()[0]
        except OSError:  # Nothing waits any more, or the peer has gone already.
            return None

    def _accept(self) -> None:
        while (connection := self._next()) is not None:
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            task = loop.create_task(loop.connect_accepted_socket(self._factory, connection))
            self._accepting.add(task)
            task.add_done_callback(functools.partial(self._accepted, connection))

    def _accepted(self, connection: socket.socket, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()


def _bound(port: int) -> socket.socket:
    # Named as TCP, or asyncio would not switch Nagle's algorithm off for what is accepted: answers would wait 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"port {port} of {HOST}: {error.strerror}") from error
    except BaseException:
        bound.close()
        raise
    return bound
