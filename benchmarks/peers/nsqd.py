"""A plain upstream nsqd of our own: started on free ports, filled, asked for its counts, stopped."""

import contextlib
import http.client
import json
import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

BINARY_VARIABLE: Final = "UPSTREAM_NSQD_BIN"
LIMIT: Final = 60.0
_BATCH_BYTES: Final = 512 * 1024


class Nsqd:
    """One running nsqd.

    Attributes:
        address: ``host:port`` of its protocol.
    """

    def __init__(self, tcp_port: int, http_port: int) -> None:
        """Keep the ports; :func:`running` starts one."""
        self.address = f"127.0.0.1:{tcp_port}"
        self._tcp_port = tcp_port
        self._http_port = http_port

    def ask(self, method: str, path: str) -> bytes:
        """Make one HTTP request and return the answer's body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=10)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"nsqd answered {answer.status} to {method} {path}: {body!r}")
            return body
        finally:
            connection.close()

    def create(self, topic: str, channels: Sequence[str]) -> None:
        """Make a topic with its channels."""
        self.ask("POST", f"/topic/create?topic={topic}")
        for channel in channels:
            self.ask("POST", f"/channel/create?topic={topic}&channel={channel}")

    def delete(self, topic: str) -> None:
        """Remove a topic and what is in it."""
        self.ask("POST", f"/topic/delete?topic={topic}")

    def stats(self, topic: str) -> dict[str, Any]:
        """Return what /stats tells of one topic."""
        answer = json.loads(self.ask("GET", f"/stats?format=json&topic={topic}"))
        topics: list[dict[str, Any]] = answer["topics"]
        return topics[0]

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """Return what /stats tells of one channel."""
        for found in self.stats(topic)["channels"]:
            if found["channel_name"] == channel:
                return dict(found)
        raise RuntimeError(f"nsqd knows no channel {topic}/{channel}")

    def fill(self, topic: str, count: int, body: bytes) -> None:
        """Publish ``count`` messages of one body, and wait until they lie in every channel."""
        size = max(1, min(count, _BATCH_BYTES // (len(body) + 4)))
        with socket.create_connection(("127.0.0.1", self._tcp_port)) as connection:
            connection.sendall(b"  V2")
            left = count
            while left:
                some = min(size, left)
                data = struct.pack(">I", some) + (struct.pack(">I", len(body)) + body) * some
                connection.sendall(b"MPUB %b\n" % topic.encode() + struct.pack(">I", len(data)) + data)
                if not connection.recv(64).endswith(b"OK"):
                    raise RuntimeError("nsqd refused a batch")
                left -= some
        self.wait_settled(topic, count)

    def publish_stamped(self, topic: str, count: int, rate: int) -> None:
        """Publish ``count`` messages one by one, ``rate`` a second, each with the time of its publish as its body."""
        with socket.create_connection(("127.0.0.1", self._tcp_port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(b"  V2")
            head = b"PUB %b\n" % topic.encode()
            due = time.perf_counter()
            for _ in range(count):
                due += 1 / rate
                while (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
                body = f"{time.time():020.6f}".encode().ljust(100, b"x")
                connection.sendall(head + struct.pack(">I", len(body)) + body)
                if not connection.recv(64).endswith(b"OK"):
                    raise RuntimeError("nsqd refused a message")

    def check_stored(self, topic: str, count: int) -> None:
        """Check by nsqd's own counts that at least ``count`` messages were stored, and hardly more.

        Raises:
            RuntimeError: They were not.
        """
        stored = self.stats(topic)["message_count"]
        if not count <= stored <= count + 1:
            raise RuntimeError(f"nsqd stored {stored} messages in {topic}, not {count}")

    def wait_settled(self, topic: str, count: int) -> None:
        """Wait until each channel has got ``count`` messages."""
        until = time.monotonic() + LIMIT
        while any(channel["message_count"] < count for channel in self.stats(topic)["channels"]):
            if time.monotonic() > until:
                raise RuntimeError(f"nsqd did not hand {count} messages to the channels of {topic} in time")
            time.sleep(0.02)

    def check_finished(self, topic: str, channel: str, count: int) -> None:
        """Check by nsqd's own counts that ``count`` messages were finished, each at its first delivery.

        Raises:
            RuntimeError: They were not.
        """
        until = time.monotonic() + 5.0
        while True:
            found = self.channel(topic, channel)
            left = {name: found[name] for name in ("depth", "in_flight_count", "requeue_count", "timeout_count")}
            if found["message_count"] == count and not any(left.values()):
                return
            if time.monotonic() > until:
                raise RuntimeError(f"{channel} of {topic}: {found['message_count']} of {count} messages; left: {left}")
            time.sleep(0.02)


@contextmanager
def running() -> Iterator[Nsqd]:
    """Start the nsqd that ``UPSTREAM_NSQD_BIN`` names; its data goes to a temporary folder."""
    binary = os.environ[BINARY_VARIABLE]
    ports = _free_ports()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [
                binary,
                f"-tcp-address=127.0.0.1:{ports[0]}",
                f"-http-address=127.0.0.1:{ports[1]}",
                "-broadcast-address=127.0.0.1",
                f"-data-path={folder}",
                "-mem-queue-size=10000000",
                "-max-msg-size=2097152",
                "-log-level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            server = Nsqd(*ports)
            _wait_up(server, process)
            yield server
        finally:
            process.terminate()
            process.wait(20)


def _wait_up(server: Nsqd, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LIMIT
    while True:
        try:
            server.ask("GET", "/ping")
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the upstream nsqd does not start") from None
            time.sleep(0.05)


def _free_ports() -> tuple[int, int]:
    """Return two free ports, one above the other: a client that knows only the first looks for HTTP there."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0)) as tcp:
            port = tcp.getsockname()[1]
            with socket.create_server(("127.0.0.1", port + 1)):
                return port, port + 1
