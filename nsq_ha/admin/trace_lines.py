"""Find the lines of one message in trace logs, as :mod:`nsq_ha.tracelog` writes them. Other lines are ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nsq_ha.options.checks import MAX_INT64

_EVENTS: Final = ("publish", "delivery", "finish", "requeue")


def trace_lines(log: Path, name: str, number: int, *, most_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines in which a field has a value. Text before the JSON, as of a logger, is skipped.

    Args:
        log: The file.
        name: ``internal_id`` or ``trace_id``.
        number: Its value.
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
            at = entry.get("time_ns")
            if type(at) is int and 0 <= at <= MAX_INT64:  # a damaged one may be none that a clock shows
                yield entry
