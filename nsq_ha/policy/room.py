"""How the bytes that a producer may hold are shared among partitions.

If one partition stops, the others must have room. No partition may hold more than is left free::

    bytes of the partition  <=  limit - bytes of all partitions

One partition alone holds at most half of the limit, two hold a third each, n of them 1/(n + 1) each. A share of that
size always stays free for healthy partitions, which free it again within milliseconds. The rule does not depend on
which partitions are healthy, so it holds before a fault is noticed.

A partition that holds nothing accepts one publish of any size, so that it is never shut out. The sum can therefore
exceed the limit by at most one publish per partition.

===================  ============================  =======================
the partition holds  its bytes + all bytes + size  the publish
===================  ============================  =======================
nothing              any                           is taken
something            up to the limit               is taken
something            more than the limit           waits in the line of its partition
===================  ============================  =======================
"""

from __future__ import annotations


def has_room(size: int, held: int, total: int, limit: int) -> bool:
    """Return whether a partition may hold one more publish.

    Args:
        size: Bytes of the publish.
        held: Bytes that its partition holds.
        total: Bytes that all partitions hold, this one included.
        limit: ``max_pending_bytes``.
    """
    return not held or held + total + size <= limit
