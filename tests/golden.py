"""Reads ``tests/vectors``: what was sent to real servers, and what they answered."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).parent / "vectors"

TCP_FILES = (
    "auth",
    "consume",
    "consume_offset",
    "handshake",
    "leadership",
    "ordered",
    "publish",
    "server_flags",
    "subscribe",
    "tag_filter",
    "upgrade",
)
"""Files with exchanges over nsqd's TCP protocol."""


class Step(NamedTuple):
    """One step: ``fields`` is the record, ``data`` its bytes (empty when it has none)."""

    fields: dict[str, Any]
    data: bytes

    @property
    def direction(self) -> str:
        """``c2s``, ``s2c``, ``event`` or ``http``."""
        return str(self.fields["dir"])


class Conversation(NamedTuple):
    """The steps of one connection, in order; ``name`` is ``file/exchange[/connection]``."""

    name: str
    steps: tuple[Step, ...]


@cache
def load(file: str) -> dict[str, Any]:
    """Return the JSON of one file."""
    content: dict[str, Any] = json.loads((VECTORS / f"{file}.json").read_text(encoding="utf-8"))
    return content


def conversations(*files: str) -> Iterator[Conversation]:
    """Yield every TCP connection of the files, those of one exchange apart from each other."""
    for file in files:
        for exchange in load(file)["exchanges"]:
            steps = exchange["steps"]
            by_connection: dict[str, list[Step]] = {}
            for step in steps:
                if step["dir"] != "http":
                    by_connection.setdefault(step.get("conn", ""), []).append(
                        Step(step, bytes.fromhex(step.get("hex", "")))
                    )
            for connection, own in by_connection.items():
                yield Conversation("/".join(filter(None, (file, exchange["name"], connection))), tuple(own))
