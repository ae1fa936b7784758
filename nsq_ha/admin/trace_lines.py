"""Find the lines of one message in trace logs, as :mod:`nsq_ha.tracelog` writes them. Other lines are ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, Final

from nsq_ha.options.checks import MAX_INT64

_EVENTS: Final = ("publish", "delivery", "finish", "requeue")
_TEXTS: Final = ("topic", "channel", "nsqd")
_NUMBERS: Final = ("partition", "internal_id", "trace_id", "offset", "attempt")


def trace_lines(
    log: Path, name: str, number: int, topic: str | None = None, *, most_bytes: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the lines in which a field has a value. Text before the JSON, as of a logger, is skipped.

    A line in which a field has another type is damaged, and left out.

    Args:
        log: The file.
        name: ``internal_id`` or ``trace_id``.
        number: Its value.
        topic: Only this topic. None for any.
        most_bytes: Read only the end of the file. None reads all.

    Raises:
        OSError: It cannot be read.
    """
    needle = str(number).encode()
    with log.open("rb") as stream:
        if most_bytes is not None:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - most_bytes))
        for line in stream:
            begin = line.find(b"{") if needle in line else -1
            if begin < 0:
                continue
            try:
                entry = json.loads(line[begin:])
            except (ValueError, RecursionError):
                continue
            if not isinstance(entry, dict) or entry.get("event") not in _EVENTS or entry.get(name) != number:
                continue
            at, is_right = entry.get("time_ns"), topic in (None, entry.get("topic"))
            is_right &= all(isinstance(entry.get(each), str | None) for each in _TEXTS)
            is_right &= all(type(entry.get(each)) in (int, NoneType) for each in _NUMBERS)
            if is_right and type(at) is int and 0 <= at <= MAX_INT64:  # a damaged one may be none that a clock shows
                yield entry


def events_of(logs: Iterable[Path], name: str, number: int, topic: str | None) -> list[dict[str, Any]]:
    """Return the lines of :func:`trace_lines` in several logs, by time."""
    return sorted((line for log in logs for line in trace_lines(log, name, number, topic)), key=itemgetter("time_ns"))
