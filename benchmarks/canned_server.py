"""A process that plays subscribed nsqds: it greets, then sends the same frames as fast as they are taken."""

import multiprocessing
import multiprocessing.connection
import selectors
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.descriptors import allow_descriptors
from benchmarks.processes import serving_process
from nsq_ha.consumer.machine import ConsumerMachine

HEAD: Final = struct.Struct(">iiqH16s")
CLOSE_WAIT: Final = b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"
OK: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
IDENTITY: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00{}"
"""The answer to IDENTIFY of an nsqd that says nothing of itself. A bare ``OK`` is one of a version that is too old."""
_CHUNK: Final = 1 << 18
_BLOCK: Final = 1 << 24


def frames(messages: int, body_bytes: int) -> bytes:
    """Return the bytes of ``messages`` message frames of the plain layout, ids 1, 2, 3..."""
    body = b"x" * body_bytes
    return b"".join(
        HEAD.pack(4 + 26 + body_bytes, 2, 1_700_000_000_000_000_000, 1, struct.pack(">QQ", number, 0)) + body
        for number in range(1, messages + 1)
    )


@contextmanager
def serving(messages: int, body_bytes: int, ports: int = 1) -> Iterator[list[int]]:
    """Serve on the loopback from a process of its own; gives the ports.

    Each connection gets ``messages`` frames after its first RDY, then nothing
    but silence; whatever it sends is read and thrown away.
    """
    with serving_process(_serve, messages, body_bytes, ports) as served:
        yield served


def allow_floods() -> None:
    """Let this process's consumers accept what a server sends without regard to RDY, as :func:`serving` does."""
    setattr(ConsumerMachine, "end_flood", lambda *_: None)  # noqa: B010 - mypy knows no other way to replace a method


class _Client:
    """One connection that plays its part."""

    def __init__(self, connection: socket.socket, block: memoryview, messages: int, in_block: int) -> None:
        self.connection = connection
        self._block = memoryview(bytearray(block))
        self._frame = len(block) // in_block
        self._number = 0
        self._left = messages * self._frame
        self._at = 0
        self._seen = b""
        self._greeted = 0
        self.sends = False

    @property
    def is_sending(self) -> bool:
        """Whether frames are due."""
        return self.sends and self._left > 0

    def read(self) -> bool:
        """Take what came; tell whether the connection goes on."""
        data = self.connection.recv(_CHUNK)
        if not data:
            return False
        if self.sends:
            if data.endswith(b"CLS\n"):
                self.connection.send(CLOSE_WAIT)
            return True
        self._seen += data
        due = self._seen.count(b"IDENTIFY\n") + self._seen.count(b"SUB ")
        self.connection.send(b"".join(OK if place else IDENTITY for place in range(self._greeted, due)))
        self._greeted = due
        self.sends = b"\nRDY " in self._seen
        return True

    def write(self) -> bool:
        """Send some; tell whether there is more."""
        part = self._block[self._at : self._at + min(_CHUNK, self._left)]
        sent = self.connection.send(part)
        self._at += sent
        self._left -= sent
        if self._at == len(self._block):
            self._number_again()
        return self._left > 0

    def _number_again(self) -> None:
        """Begin the block again, with the next ids: a server gives each one once."""
        self._at = 0
        for frame in range(0, len(self._block), self._frame):
            self._number += 1
            struct.pack_into(">Q", self._block, frame + HEAD.size - 16, self._number << 20)


def _serve(pipe: multiprocessing.connection.Connection, messages: int, body_bytes: int, ports: int) -> None:
    allow_descriptors()
    in_block = max(1, min(messages, _BLOCK // (HEAD.size + body_bytes)))
    block = memoryview(frames(in_block, body_bytes))
    with selectors.DefaultSelector() as selector:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(ports)]
        for listener in listeners:
            selector.register(listener, selectors.EVENT_READ)
        pipe.send([listener.getsockname()[1] for listener in listeners])
        while True:
            for key, events in selector.select():
                if key.data is None and isinstance(key.fileobj, socket.socket):
                    connection, _ = key.fileobj.accept()
                    connection.setblocking(False)
                    selector.register(connection, selectors.EVENT_READ, _Client(connection, block, messages, in_block))
                else:
                    _play(selector, key.data, events)


def _play(selector: selectors.BaseSelector, client: _Client, events: int) -> None:
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    try:
        if events & selectors.EVENT_READ:
            if not client.read():
                raise ConnectionResetError
            if client.is_sending and not events & selectors.EVENT_WRITE:
                selector.modify(client.connection, both, client)
        if events & selectors.EVENT_WRITE and not client.write():
            selector.modify(client.connection, selectors.EVENT_READ, client)
    except BlockingIOError:
        return
    except OSError:
        selector.unregister(client.connection)
        client.connection.close()
