"""How a ``publish_many`` is cut into commands the server takes.

Source: protocol reference 3 (5 MiB a body, 1 MiB a message) and 6 (count).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def chunks(sizes: Sequence[int], max_bytes: int, max_count: int) -> Iterator[range]:
    """Yield ranges of positions that fit one MPUB each, in order, none empty.

    Args:
        sizes: Bytes of each message as it stands in the command, its size word included.
        max_bytes: Most bytes of one command's messages; a larger single message
            still gets a range of its own (the caller refused it before).
        max_count: Most messages of one command.
    """
    start, used = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (used + size > max_bytes or position - start >= max_count):
            yield range(start, position)
            start, used = position, 0
        used += size
    if start < len(sizes):
        yield range(start, len(sizes))
