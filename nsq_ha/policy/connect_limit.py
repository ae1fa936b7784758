"""How often a client connects to an nsqd that fails: about once a second, whatever the number of its partitions.

Each partition has a connection and a backoff of its own, so an nsqd that ends each connection would be connected to as
often as all its partitions together may retry.

An nsqd fails if it cannot be connected to, or ends a connection within ``SETTLED`` seconds. It works again when it has
been connected to, without a fault, for twice as long as the connection that it ended; then all may connect at once. So
one that restarts gets all its connections back a quarter of a second after the first one. What the client closes by
itself is no fault. All times come from one clock.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import QUICK_GAP

GAP: Final = Backoff().maximum
"""Seconds between two attempts at an nsqd that fails, as of one partition by default; the first three need not wait."""

PROOF: Final = QUICK_GAP
"""Least seconds for which an nsqd that failed must be connected to before it counts as working."""

SETTLED: Final = 10.0
"""Seconds after which the loss of a connection is no sign of a bad nsqd."""


class _Failing(msgspec.Struct):
    proof: float
    next_at: float
    well_since: float = math.inf


class ConnectLimit:
    """The nsqds of one client that fail, by address."""

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}

    def wait(self, address: str, now: float) -> float:
        """Return the seconds until an attempt may begin: 0 for now. It may be sooner if another one succeeds."""
        nsqd = self._failing.get(address)
        if nsqd is None:
            return 0.0
        if now >= nsqd.well_since + nsqd.proof:
            del self._failing[address]
            return 0.0
        return max(0.0, nsqd.next_at - now)

    def begin(self, address: str, now: float) -> None:
        """Record that an attempt begins."""
        if (nsqd := self._failing.get(address)) is not None:
            nsqd.next_at = max(nsqd.next_at, now - 2 * GAP) + GAP

    def opened(self, address: str, now: float) -> None:
        """Record that an attempt succeeded."""
        if (nsqd := self._failing.get(address)) is not None:
            nsqd.well_since = min(nsqd.well_since, now)

    def failed(self, address: str, lasted: float) -> None:
        """Record that an attempt failed, or that the nsqd ended a connection.

        Args:
            address: Of the nsqd.
            lasted: Seconds from the handshake to the end; 0 without a handshake.
        """
        if lasted < SETTLED:
            before = self._failing.get(address)
            next_at = -math.inf if before is None else before.next_at
            self._failing[address] = _Failing(max(PROOF, 2 * lasted), next_at)
