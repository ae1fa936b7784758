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


class ConnectLimit(msgspec.Struct, eq=False):
    """How often one client may connect to one nsqd.

    Attributes:
        proof: Seconds for which it must be connected to before it counts as working; 0 if it works.
        next_at: When the next attempt may begin.
        well_since: Since when it is connected to without a fault.
    """

    proof: float = 0.0
    next_at: float = -math.inf
    well_since: float = math.inf

    def wait(self, now: float) -> float:
        """Return the seconds until an attempt may begin: 0 for now. It may be sooner if another one succeeds."""
        if now >= self.well_since + self.proof:
            self.proof, self.next_at = 0.0, -math.inf
        return max(0.0, self.next_at - now)

    def begin(self, now: float) -> None:
        """Record that an attempt begins."""
        if self.proof:
            self.next_at = max(self.next_at, now - 2 * GAP) + GAP

    def opened(self, now: float) -> None:
        """Record that an attempt succeeded."""
        self.well_since = min(self.well_since, now)

    def failed(self, lasted: float) -> None:
        """Record that an attempt failed, or that the nsqd ended a connection.

        Args:
            lasted: Seconds from the handshake to the end; 0 without a handshake.
        """
        if lasted < SETTLED:
            self.proof, self.well_since = max(PROOF, 2 * lasted), math.inf
