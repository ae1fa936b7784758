"""Build and run the program on the Go client."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).parent / "go"
DOWNLOAD_LIMIT: Final = 60.0
"""Seconds to fetch the client's module, if it is not in Go's cache."""
BUILD_LIMIT: Final = 600.0
"""Seconds to build. It takes a few once Go has built its own libraries, and minutes before that on a busy machine."""
LIMIT: Final = 60.0
"""Seconds for one run, which takes less than one on an idle machine."""

# The toolchain is never downloaded, nor is go.sum changed.
_ENVIRONMENT: Final = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}


def missing() -> str | None:
    """Return why the program cannot be built. None if it can."""
    if shutil.which("go") is None:
        return "Go is not installed"
    try:
        fetched = _go("mod", "download", limit=DOWNLOAD_LIMIT)
    except subprocess.TimeoutExpired:
        return "the Go client's module could not be fetched in time"
    if fetched.returncode:
        return f"the Go client's module cannot be fetched: {fetched.stderr.strip().splitlines()[-1:]}"
    return None


def build(folder: Path) -> Path:
    """Build the program, and return its path.

    Raises:
        RuntimeError: It does not compile.
    """
    program = folder / "interop"
    built = _go("build", "-o", str(program), ".", limit=BUILD_LIMIT)
    if built.returncode:
        raise RuntimeError(f"go build failed: {built.stderr}")
    return program


def _go(*arguments: str, limit: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=SOURCE,
        env=os.environ | _ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )


class GoClient:
    """The program, for one cluster.

    Attributes:
        lookupd: Base URLs of the nsqlookupds.

    Args:
        program: The built program.
        lookupd: Base URLs of the nsqlookupds.
    """

    def __init__(self, program: Path, lookupd: Sequence[str]) -> None:
        self._program = program
        self.lookupd = tuple(lookupd)

    async def publish(self, topic: str, messages: Iterable[Mapping[str, Any]], *options: str) -> list[dict[str, Any]]:
        """Publish messages one by one, each with the fields of ``Outgoing``; return their receipts."""
        lines = [json.dumps({**message, "body": base64.b64encode(message["body"]).decode()}) for message in messages]
        receipts = await self._run("publish", topic, options, "\n".join(lines))
        assert [receipt for receipt in receipts if receipt["error"]] == []
        assert len(receipts) == len(lines)
        return receipts

    async def consume(self, topic: str, channel: str, count: int, *options: str) -> list[dict[str, Any]]:
        """Return the next messages of a channel, in the order of their delivery."""
        found = await self._run("consume", topic, (f"-channel={channel}", f"-count={count}", *options), "")
        for message in found:
            message["body"] = base64.b64decode(message["body"])
        return found

    async def _run(self, work: str, topic: str, options: Sequence[str], given: str) -> list[dict[str, Any]]:
        process = await asyncio.create_subprocess_exec(
            self._program,
            work,
            f"-lookupd={','.join(url.removeprefix('http://') for url in self.lookupd)}",
            f"-topic={topic}",
            *options,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            async with asyncio.timeout(LIMIT):
                output, errors = await process.communicate(given.encode())
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode == 0, errors.decode()
        return [json.loads(line) for line in output.splitlines()]
