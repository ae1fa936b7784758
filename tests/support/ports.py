"""Ports that a test names: nobody else gets them in the meantime."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def fixed_ports(count: int = 1) -> int:
    """Return the first of ``count`` ports in a row that are free, for a program that is started later.

    The kernel gives none of them to a connection or to a server that takes any port.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768
    while True:
        port = random.randrange(10_000, first - count)
        with contextlib.ExitStack() as stack:
            try:
                for number in range(port, port + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", number)))
            except OSError:
                continue
        return port


@contextlib.contextmanager
def nobody_listens() -> Iterator[int]:
    """Hold a port at which connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
