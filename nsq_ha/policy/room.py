"""How the bytes that a producer may hold are shared among partitions.

Whatever stops one partition, the others must have room. No partition holds more than is left free::

    bytes of the partition  <=  limit - bytes of all partitions

One partition alone holds at most a half of the limit, two a third each, n of them the (n + 1)-th part each. A part of
that size always stays free, and those that are well can use it: theirs is answered and free again within
milliseconds. The rule needs to know nothing about health, so it also holds before anybody has noticed a fault.

A partition that holds nothing takes one publish of any size. The sum can therefore exceed the limit, by one publish
for each partition at most; that a partition is never shut out is worth it.

===================  ============================  =======================
the partition holds  its bytes + all bytes + size  the publish
===================  ============================  =======================
nothing              any                           is taken
something            up to the limit               is taken
something            more than the limit           waits in the line of its partition
===================  ============================  =======================
"""

from __future__ import annotations


def has_room(size: int, *, held: int, total: int, limit: int) -> bool:
    """Tell whether a partition may hold one more publish.

    The quick way of ``Producer.publish`` states the same rule in place.

    Args:
        size: Bytes of the publish.
        held: Bytes that its partition holds.
        total: Bytes that all partitions hold, this one included.
        limit: ``max_pending_bytes``.
    """
    return not held or held + total + size <= limit
