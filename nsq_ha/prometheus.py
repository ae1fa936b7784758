"""Metrics of all open clients in Prometheus' text format, for a page of your own or one that this module serves.

It needs no other package: the values are in ``stats()``, and the text format takes few lines. A service that has a page
with ``prometheus_client`` appends :func:`text` to it.

The server has a thread of its own, so it answers even if the event loop is blocked, and in programs without one.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import ClassVar, Final, Self

from nsq_ha.errors import ConfigError
from nsq_ha.process import metrics

__all__ = ["CONTENT_TYPE", "MetricsServer", "serve", "text"]

log: logging.Logger = logging.getLogger("nsq_ha.prometheus")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of :func:`text`."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text() -> str:
    """Return the metrics of all open producers and consumers of the process. Any thread may call it."""
    return page((each.prometheus_name, each.kind, each.text, samples) for each, samples in metrics.read())


def page(found: Iterable[tuple[str, str, str, Sequence[metrics.Sample]]]) -> str:
    """Return some metrics in the text format: the name of each, its kind, its text and its values."""
    lines: list[str] = []
    for name, kind, text, samples in found:
        lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}") if samples else ()
        for labels, value in samples:
            shown = ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in labels.items())
            lines.append(f"{name}{{{shown}}} {value}")
    return "".join(f"{line}\n" for line in lines)


def serve(port: int = 9464, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics at ``/metrics`` until :meth:`MetricsServer.close`, from a background thread.

    Args:
        port: The port; 0 takes a free one. The default is the one that OpenTelemetry's exporters use.
        host: The address to listen on. The default is the loopback: the page has no password and shows names of topics,
            so give another address only if nobody else can reach it.

    Returns:
        The server, which is also a context manager.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    return MetricsServer(port, host)


class MetricsServer:
    """Serves the metrics of the process; create it with :func:`serve`.

    Attributes:
        url: The address of the page.
    """

    def __init__(self, port: int, host: str) -> None:
        try:
            self._server = _PageServer(host, port)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"the metrics cannot be served at {host}:{port}: {error}; choose another port") from error
        self._process = os.getpid()
        shown = f"[{host}]" if ":" in host else host
        self.url: str = f"http://{shown}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="nsq_ha metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving. May be called again; in a forked child it only closes the child's copy of the socket."""
        if os.getpid() == self._process:  # the thread runs only there
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self.close()


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Page)

    def server_bind(self) -> None:
        # That of HTTPServer looks for the name of the address, which may wait for DNS.
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("serving metrics to %s failed", client_address)


class _Page(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = 10.0  # of silence, after which it is closed
    server_version = "nsq_ha"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "the metrics are at /metrics\n", "text/plain; charset=utf-8")
        else:
            self._answer(200, text(), CONTENT_TYPE)

    def _answer(self, status: int, page: str, content_type: str) -> None:
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        log.debug(format, *args)
