"""One stored message, shared by all replicas of its partition.

The invariant: a record never changes, so the three replicas of a partition hold
the same object and the body's bytes exist once.
"""

from __future__ import annotations

from typing import Final

import msgspec

HEADER_BYTES: Final = 30
"""Size word (4), timestamp (8), attempts (2) and id (16) of a record in the queue."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message as it stands in a partition's queue.

    Attributes:
        internal_id: ``partition << 50 | sequence``.
        trace_id: The publisher's, 0 for none.
        timestamp_ns: Time of the publish.
        offset: Byte position in the queue; the next record is at ``offset + raw_size``.
        raw_size: Bytes it takes there.
        body: The payload.
        ext: JSON header of an extended topic. None when there is none.
        place: Number within the batch that it was published with, from 0.
    """

    internal_id: int
    trace_id: int
    timestamp_ns: int
    offset: int
    raw_size: int
    body: bytes
    ext: bytes | None = None
    place: int = 0


class Draft(msgspec.Struct, frozen=True, gc=False):
    """What a publisher gives; the leader makes a record of it."""

    body: bytes
    trace_id: int = 0
    ext: bytes | None = None


def raw_size(body: bytes, ext: bytes | None, *, extended: bool) -> int:
    """Bytes that a message takes in the queue.

    An extended topic stores one version byte, and with a header two more for
    its length.

    Source: protocol reference 2 ("raw_size").
    """
    size = HEADER_BYTES + len(body)
    if extended:
        size += 1 if ext is None else 3 + len(ext)
    return size
