"""Inputs to start from, made of what was recorded from real servers (``tests/vectors``)."""

import json
from functools import cache
from pathlib import Path
from typing import Final

from tests.golden import TCP_FILES, conversations, load

KEPT: Final = Path(__file__).parent / "kept"
"""Small inputs that a run found, of which each runs code that no seed runs: ``{"inputs": [hex, ...]}`` by target."""

_ANSWERS: Final = ("lookup_http", "lookup_leadership", "nsqd_http", "plain/lookupd_http", "plain/nsqd_http")


@cache
def streams(direction: str) -> tuple[bytes, ...]:
    """Return what each recorded connection sent in a direction, ``c2s`` or ``s2c``."""
    found = (
        b"".join(step.data for step in conversation.steps if step.direction == direction)
        for conversation in conversations(*TCP_FILES, "plain/tcp")
    )
    return tuple(dict.fromkeys(stream for stream in found if 0 < len(stream) <= 4096))


@cache
def frames(kind: str) -> tuple[bytes, ...]:
    """Return the data of each recorded frame of a kind: ``response``, ``error`` or ``message``."""
    found = (
        step.data[8:]
        for conversation in conversations(*TCP_FILES)
        for step in conversation.steps
        if step.fields.get("frame") == kind
    )
    return tuple(dict.fromkeys(found))


@cache
def ext_headers() -> tuple[bytes, ...]:
    """Return the recorded extension headers."""
    found = (
        step.fields.get("fields", {}).get("ext_json")
        for conversation in conversations(*TCP_FILES)
        for step in conversation.steps
        if isinstance(step.fields.get("fields"), dict)
    )
    return tuple(dict.fromkeys(text.encode() for text in found if text))


@cache
def compressed() -> tuple[bytes, ...]:
    """Return the recorded bytes below a compression layer, of one connection each."""
    found = (
        b"".join(step.data for step in conversation.steps if step.fields.get("raw") and step.direction == "s2c")
        for conversation in conversations("upgrade", "server_flags")
    )
    return tuple(dict.fromkeys(filter(None, found)))


@cache
def http_answers() -> tuple[tuple[int, str, bytes], ...]:
    """Return status, path and body of the recorded HTTP answers."""
    found: list[tuple[int, str, bytes]] = []
    for file in _ANSWERS:
        for exchange in load(file)["exchanges"]:
            for step in exchange["steps"]:
                if "status" in step:
                    text = step.get("body_text")
                    body = json.dumps(step.get("body")) if text is None else str(text)
                    found.append((int(step["status"]), str(step["path"]), body.encode()))
    return tuple(dict.fromkeys(found))


def kept(name: str) -> tuple[bytes, ...]:
    """Return the inputs that earlier runs found for a target."""
    path = KEPT / f"{name}.json"
    return tuple(map(bytes.fromhex, json.loads(path.read_text("utf-8"))["inputs"])) if path.exists() else ()
