"""What one message is, however often and over whatever connection it is delivered.

An id alone is no identity. A partitioned topic gives ids again when it is deleted and created again. A plain nsqd makes
ids of the time, its node id and a sequence, and by default all nsqds of one host have the same node id, so two of them
that receive messages in the same millisecond give equal ids. The invariant: nothing compares bare ids.

Source: youzan/nsq ``consistence/commitlog.go`` (internal ids); nsqio/nsq ``nsqd/guid.go``, ``nsqd/options.go``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PARTITION_SHIFT: Final = 50
PARTITION_MASK: Final = 1023


class MessageIdentity(NamedTuple):
    """The identity of a message: equal for all deliveries of one message, and for no two messages.

    Attributes:
        nsqd: ``host:port`` of a plain nsqd, whose ids mean nothing elsewhere. Empty for a partitioned topic: its
            messages keep their ids when another nsqd leads.
        topic: The topic.
        partition: The partition; 0 for a plain nsqd.
        id: The 16 raw bytes.
        timestamp_ns: Time of the publish, which differs if a topic that was created again gives the same id.
        offset: Byte position in the partition's queue. None where the subscription shows none.
    """

    nsqd: str
    topic: str
    partition: int
    id: bytes
    timestamp_ns: int
    offset: int | None


def partition_of(internal_id: int) -> int:
    """Return the partition in an internal id.

    ``internal id = partition << 50 | sequence``.

    Source: youzan/nsq ``consistence/commitlog.go``.
    """
    return internal_id >> PARTITION_SHIFT & PARTITION_MASK


def is_upstream_id(message_id: bytes) -> bool:
    """Return whether a plain nsqd created the id: 16 hexadecimal digits, so its partition would be above 1023."""
    return message_id[:1] >= b"0" and not message_id.strip(b"0123456789abcdef")
