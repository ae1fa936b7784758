"""What somebody may have meant who wrote the name of an option, or a word, that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    if not isinstance(name, str):
        return ""
    known = list(known)
    # Other clients say lookupd_http_addresses, and nsqd_tcp_addresses.
    begun = [each for each in known if name.lower().startswith(f"{each}_")]
    near = begun[-1:] or difflib.get_close_matches(name.lower(), known)
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
