"""How much a producer may hold, send in one command and remember.

Bytes: if one partition stops, the others must have space. No partition may hold more than is left free::

    bytes of the partition  <=  limit - bytes of all partitions

One partition alone holds at most half of the limit, two hold a third each, n of them 1/(n + 1) each. A share of that
size always stays free for healthy partitions, which free it again within milliseconds. The rule does not depend on
which partitions are healthy, so it holds before a fault is detected.

A partition that holds nothing accepts one publish of any size, so that it never starves. Therefore the sum can exceed
the limit by at most one publish per partition.

===================  ============================  =======================
the partition holds  its bytes + all bytes + size  the publish
===================  ============================  =======================
nothing              any                           is accepted
something            up to the limit               is accepted
something            more than the limit           waits in the queue of its partition
===================  ============================  =======================

Commands: the server limits the bytes and the messages of one command, so ``publish_many`` sends several.

Topics: a producer forgets an idle topic and ends its lookups, senders and connections, until the next publish.

=================  ==============================  ==========================
the topic          nothing is pending, last used   it is
=================  ==============================  ==========================
has publishes      at any time                     kept
changes its count  at any time                     kept, with the old count
is known           up to ``idle_timeout`` ago      kept
is known           longer ago                      forgotten
is unknown         up to ``UNKNOWN_KEPT`` ago      kept
is unknown         longer ago                      forgotten
=================  ==============================  ==========================

Source: server protocol 3.4, 6.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNKNOWN_KEPT: Final = 10.0
"""Seconds for which an unknown topic is looked up; if it is created in that time, it is found at once."""


def has_room(size: int, held: int, total: int, limit: int) -> bool:
    """Return whether a partition may hold one more publish.

    Args:
        size: Bytes of the publish.
        held: Bytes that its partition holds.
        total: Bytes that all partitions hold, this one included.
        limit: ``max_pending_bytes``.
    """
    return not held or held + total + size <= limit


def fits(size: int, used: int, count: int, max_bytes: int, max_count: int) -> bool:
    """Return whether one more message fits into a command; the first one always does.

    Args:
        size: Bytes of the message in the command.
        used: Bytes of those before it.
        count: Number of those before it.
        max_bytes: Maximum bytes of the command's messages.
        max_count: Maximum number of messages of the command.
    """
    return not count or (used + size <= max_bytes and count < max_count)


def chunks(sizes: Sequence[int], max_bytes: int, max_count: int) -> Iterator[range]:
    """Yield ranges of positions that fit one MPUB each, in order, none empty.

    Args:
        sizes: Bytes of each message in the command, its size prefix included.
        max_bytes: Maximum bytes of one command's messages; a larger single message
            gets its own range (the caller has already refused it).
        max_count: Maximum number of messages of one command.
    """
    start, used = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (used + size > max_bytes or position - start >= max_count):
            yield range(start, position)
            start, used = position, 0
        used += size
    if start < len(sizes):
        yield range(start, len(sizes))


def is_forgotten(unused_for: float, *, is_known: bool, is_needed: bool, idle_timeout: float) -> bool:
    """Return whether to forget a topic.

    Args:
        unused_for: Seconds since its last publish began or ended.
        is_known: Its partitions are known.
        is_needed: Publishes are pending, or its number of partitions is changing.
        idle_timeout: The producer's option.
    """
    return not is_needed and unused_for > (idle_timeout if is_known else min(UNKNOWN_KEPT, idle_timeout))
