"""Secrets for AUTH that change while clients run: the current one is in a file, where other processes read it, too."""

import asyncio
import collections
import json
import os
import pathlib
import tempfile
import uuid
from collections.abc import Callable
from typing import Final, Self

from tests.engine.lookups.loopback import Fake, http_answer

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

    def __exit__(self, *_: object) -> None:
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


class AuthServer(Fake):
    """What ``nsqd -auth-http-address`` asks, on the loopback.

    Attributes:
        valid: The secrets that are let in.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.valid: set[str] = set()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        self.note(head)
        _, _, asked = self.requests.pop()
        allowed = asked.get("secret") in self.valid
        rule = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        body = json.dumps({"ttl": int(TTL), "authorizations": [rule] if allowed else []}).encode()
        writer.write(http_answer(body, 200 if allowed else 403))
        await writer.drain()
