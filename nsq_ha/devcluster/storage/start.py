"""Where a channel is told to start: ``type:value`` to an index in the log.

Source: protocol reference 5 ("Start positions"); Spark reference 1.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.storage.search import SearchError, by_count, by_offset, by_time

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.log import Log

_SECOND_NS: Final = 1_000_000_000
_LARGEST_NS: Final = 2**63 - 1
_FORM: Final = re.compile(r"(timestamp|special|virtual_queue|msgcount):([^:]*)")


def start_index(log: Log, end: int, start: str) -> int:
    """Return the index of the first message to deliver; a channel ignores one behind its end.

    Args:
        log: Where to look.
        end: The channel's end.
        start: ``type:value``.

    Raises:
        ValueError: ``start`` is malformed; the text is the server's.
        SearchError: The position cannot be found; the text is the server's.
    """
    form = _FORM.fullmatch(start)
    if form is None:
        raise ValueError(f"invalid consume offset:{start}")
    kind, text = form.groups()
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    if kind == "special":
        if value != -1:
            raise SearchError("not supported offset type")
        return end
    if kind == "timestamp":
        if value < 0 or value * _SECOND_NS > _LARGEST_NS:
            raise SearchError(f"Invalid timestamp {value}")
        return by_time(log, value * _SECOND_NS)
    return by_count(log, value) if kind == "msgcount" else by_offset(log, value)
