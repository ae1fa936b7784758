"""Which partition takes a message that has neither key nor partition.

Source: issue of load in the Go client's ``PubRR`` and ``PubDynamicLoad``
(clients reference 1.2); failures reference 4 (Producer 1, 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def round_robin(partitions: Sequence[int], turn: int) -> int:
    """Return the ``turn``-th of ``partitions``, going round.

    Args:
        partitions: At least one, in a fixed order.
        turn: Grows by one for each message.
    """
    return partitions[turn % len(partitions)]


def least_loaded(partitions: Sequence[int], turn: int, load: Callable[[int], int]) -> int:
    """Return the less loaded one of the ``turn``-th partition and the one after it; of equals the first.

    Two consecutive ones, not all: a partition that looks idle because it is
    quick to refuse must not draw everything.

    Args:
        partitions: At least one, in a fixed order.
        turn: Grows by one for each message.
        load: Publishes that wait on a partition or are unanswered there.
    """
    first = round_robin(partitions, turn)
    second = round_robin(partitions, turn + 1)
    return second if load(second) < load(first) else first
