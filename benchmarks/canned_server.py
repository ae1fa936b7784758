"""A process that plays a subscribed nsqd: it greets, then sends the same frames as fast as they are taken."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import select
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD: Final = struct.Struct(">iiqH16s")
CLOSE_WAIT: Final = b"\x00\x00\x00\x0e\x00\x00\x00\x00CLOSE_WAIT"
OK: Final = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def frames(messages: int, body_bytes: int) -> bytes:
    """Return the bytes of ``messages`` message frames of the plain layout, ids 1, 2, 3..."""
    body = b"x" * body_bytes
    return b"".join(
        HEAD.pack(4 + 26 + body_bytes, 2, 1_700_000_000_000_000_000, 1, struct.pack(">QQ", number, 0)) + body
        for number in range(1, messages + 1)
    )


@contextmanager
def serving(messages: int, body_bytes: int) -> Iterator[int]:
    """Serve on the loopback from a process of its own; gives the port.

    Each connection gets ``messages`` frames after its first RDY, then nothing
    but silence; whatever it sends is read and thrown away.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, messages, body_bytes), daemon=True)
    process.start()
    theirs.close()  # or a process that dies at its start would be waited for for ever
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(pipe: multiprocessing.connection.Connection, messages: int, body_bytes: int) -> None:
    stream = frames(messages, body_bytes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        while True:
            client, _ = listener.accept()
            with client:
                _play(client, stream)


def _play(client: socket.socket, stream: bytes) -> None:
    seen = b""
    while b"\nRDY " not in seen:
        data = client.recv(65536)
        if not data:
            return
        before = seen.count(b"IDENTIFY\n") + seen.count(b"SUB ")
        seen += data
        client.sendall(OK * (seen.count(b"IDENTIFY\n") + seen.count(b"SUB ") - before))
    client.setblocking(False)
    left = memoryview(stream)
    while True:
        readable, writable, _ = select.select([client], [client] if left else [], [])
        try:
            if writable:
                left = left[client.send(left[: 1 << 18]) :]
            if readable:
                data = client.recv(1 << 18)
                if data.endswith(b"CLS\n"):
                    client.send(CLOSE_WAIT)
                elif not data:
                    return
        except OSError:
            return
