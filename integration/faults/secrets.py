"""Secrets for AUTH that change while clients run: the current one is in a file, where other processes read it, too."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import tempfile
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

FILE_VARIABLE: Final = "NSQ_HA_TEST_AUTH_FILE"
VALID: Final = 3
"""So many secrets are valid at a time: nsqd asks again with the one that a connection has sent."""
TTL: Final = 30.0
"""Seconds for which nsqd relies on an answer."""


def current_secret() -> str:
    """Return the secret of now; for ``auth_secret=`` of a client in any process of a run."""
    return pathlib.Path(os.environ[FILE_VARIABLE]).read_text()


class Secrets:
    """The secrets of a run. Use it with ``with``.

    Args:
        accept: Makes a secret valid.
        forget: Makes it invalid.
    """

    def __init__(self, accept: Callable[[str], object], forget: Callable[[str], object]) -> None:
        self._accept = accept
        self._forget = forget
        self._valid: collections.deque[str] = collections.deque()
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        os.environ[FILE_VARIABLE] = str(pathlib.Path(self._folder.name) / "secret")
        self.rotate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del os.environ[FILE_VARIABLE]
        self._folder.cleanup()

    def rotate(self) -> None:
        """Let a new secret follow the current one, which stays valid for a while."""
        secret = uuid.uuid4().hex
        self._accept(secret)
        self._valid.append(secret)
        file = pathlib.Path(os.environ[FILE_VARIABLE])
        new = file.with_suffix(".new")
        new.write_text(secret)
        new.replace(file)
        if len(self._valid) > VALID:
            self._forget(self._valid.popleft())


class AuthServer:
    """What ``nsqd -auth-http-address`` asks, on the loopback. Use it with ``with``.

    Args:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self.valid: set[str] = set()
        valid = self.valid

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                allowed = bool(valid.intersection(asked.get("secret", ())))
                rule = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
                body = json.dumps({"ttl": int(TTL), "authorizations": [rule] if allowed else []}).encode()
                self.send_response(200 if allowed else 403)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
