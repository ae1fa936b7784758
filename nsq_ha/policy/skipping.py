"""Which delivered messages a consumer finishes without handing them out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.protocol.ext_filter import Filter, rule_of

if TYPE_CHECKING:
    from nsq_ha.options.ext_filter import ExtFilter

MOST_STEPS: Final = 1_000_000
"""Largest effort for one message, which the event loop waits for."""

_ABSENT: Final = object()


class Skipping:
    """Decides by the header of a message.

    nsqd may deliver some messages before it applies a filter, and a server that is too old has no filters. So the
    client applies it again; globs only to ASCII text, since nsqd's library is wrong about some others, and patterns
    only if that takes little time.

    Args:
        skip_header: A name of a header, or names and values; a message that has one of them is skipped.
        ext_filter: The filter that nsqd applies.
    """

    def __init__(self, skip_header: str | Mapping[str, object] | None, ext_filter: ExtFilter | None) -> None:
        self._names = frozenset((skip_header,)) if isinstance(skip_header, str) else frozenset[str]()
        self._values = skip_header if isinstance(skip_header, Mapping) else {}
        self._filter: Filter | None = None
        if ext_filter is not None:
            self._filter = Filter(rule_of(ext_filter))
        self._is_glob = ext_filter is not None and ext_filter.kind == "glob"

    def why(self, header: bytes | None) -> str | None:
        """Return why to finish a message with this header unhandled. None to hand it out."""
        if (self._names or self._values) and header is not None and (name := self._skipped(header)) is not None:
            return f"it has the header {name!r} of skip_header"
        given = self._filter
        if given is None or (self._is_glob and not _is_ascii(header)) or given.effort(header) > MOST_STEPS:
            return None
        if given.passes(header):
            return None
        return "it does not match ext_filter, which nsqd did not apply"

    def _skipped(self, header: bytes) -> str | None:
        try:
            decoded = json.loads(header)
        except (ValueError, RecursionError):
            return None
        if isinstance(decoded, dict):
            for name in self._names & decoded.keys():
                return name
            for name, value in self._values.items():
                found = decoded.get(name, _ABSENT)
                # In JSON, true is not 1.
                if found == value and isinstance(found, bool) is isinstance(value, bool):
                    return name
        return None


def skipping_of(skip_header: str | Mapping[str, object] | None, ext_filter: ExtFilter | None) -> Skipping | None:
    """Return what the options ask for. None if no message is skipped."""
    return None if skip_header is None and ext_filter is None else Skipping(skip_header, ext_filter)


def _is_ascii(header: bytes | None) -> bool:
    return header is None or (header.isascii() and b"\\u" not in header)
