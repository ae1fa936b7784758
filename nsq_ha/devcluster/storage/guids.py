"""Message ids of an upstream nsqd: time, node id and a sequence.

All nsqds of one host have the same node id unless each is given one, and each topic has a sequence of its own. So two
nsqds give equal ids to messages that come in the same millisecond, and so do two topics of one nsqd.

Source: nsqio/nsq ``nsqd/guid.go``, ``nsqd/options.go``, ``nsqd/topic.go``.
"""

from __future__ import annotations

import hashlib
import socket
import time
import zlib
from collections.abc import Sequence
from typing import Final

NODE_IDS: Final = 1024
_EPOCH: Final = 1288834974288
_SEQUENCES: Final = 4096
_TIME_SHIFT: Final = 22
_NODE_SHIFT: Final = 12


def default_node_id() -> int:
    """Return the node id of every nsqd on this host that is not given one (``-node-id``)."""
    return zlib.crc32(hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % NODE_IDS


def node_ids_of(given: Sequence[int], nsqds: int) -> list[int]:
    """Return the node id of each nsqd.

    Args:
        given: Those of the first ones; the others have the default.
        nsqds: Number of nsqds.

    Raises:
        ValueError: One has more than 10 bits.
    """
    for number in given:
        if not 0 <= number < NODE_IDS:
            raise ValueError(f"node_ids must be numbers from 0 to {NODE_IDS - 1}, not {number}")
    return [*given[:nsqds], *[default_node_id()] * (nsqds - len(given))]


def now() -> int:
    """Return the time in units of 2^20 ns."""
    return time.time_ns() >> 20


class Guids:
    """Gives the ids of one topic, 16 hexadecimal digits each.

    Args:
        node_id: The nsqd's.
    """

    def __init__(self, node_id: int) -> None:
        self._node = node_id << _NODE_SHIFT
        self._last = 0, 0

    def next(self) -> bytes:
        """Return the next id. Where the real nsqd waits for the clock, this runs ahead of it."""
        tick, sequence = self._last
        present = now()
        if present > tick:
            tick, sequence = present, 0
        elif sequence + 1 < _SEQUENCES:
            sequence += 1
        else:
            tick, sequence = tick + 1, 0
        self._last = tick, sequence
        return b"%016x" % ((tick - _EPOCH) << _TIME_SHIFT | self._node | sequence)
