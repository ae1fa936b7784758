"""Where a channel is told to start: ``type:value`` to an index in the log.

Source: protocol reference 5 ("Start positions"); Spark reference 1.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.devcluster.log import Log

_SECOND_NS: Final = 1_000_000_000
_LARGEST_NS: Final = 2**63 - 1
_FORM: Final = re.compile(r"(timestamp|special|virtual_queue|msgcount):([^:]*)")


def start_index(log: Log, start: str) -> int:
    """Index of the first message to deliver.

    Raises:
        ValueError: With the server's text.
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
            raise ValueError("not supported offset type")
        return log.committed
    if kind == "timestamp":
        if value < 0 or value * _SECOND_NS > _LARGEST_NS:
            raise ValueError(f"Invalid timestamp {value}")
        return log.index_at_time(value * _SECOND_NS)
    if kind == "msgcount":
        return min(max(value - 1, log.start), log.committed)
    return log.index_at_offset(max(value, 0))
