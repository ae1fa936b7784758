"""The age of a TLS connection to an nsqd that can write to it for only five seconds.

The partitioned nsqd sets a deadline of 5 s before the TLS handshake and never
clears it for writing. From then on each write of nsqd fails: no heartbeat,
answer or message arrives, and nsqd does not close the connection. It continues
to *read*, so FIN, REQ and TOUCH, which have no answer, still work as long as
the client sends something from time to time.

So a connection is replaced before that: a producer switches when all publishes on
the old one are answered, a consumer keeps the old one until its messages are.

The invariants:

* Nothing that needs an answer is sent over a connection with too little time left
  for the answer.
* A connection in use is closed only after another one has replaced it, or when
  its time is over.

Source: server protocol 3.3; ``nsqd/client_v2.go``, ``UpgradeTLS``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final, NamedTuple, Self

WRITES_FOR: Final = 5.0
"""Seconds from IDENTIFY for which such an nsqd can write to a TLS connection."""

JITTER: Final = 0.05
"""Jitter as a share of the limit, so that connections that were opened together are not replaced together."""

NEWEST_DEFECTIVE: Final = (1, 13, 0)
"""The newest version of the partitioned nsqd that is known, which has the defect."""

_PARTITIONED: Final = re.compile(r"-HA\.(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


class Phase(enum.Enum):
    """The age of a connection. The values are shares of the time for which nsqd can write, so none is above 1."""

    FRESH = 0.0
    """There is nothing to do."""
    DUE = 0.6
    """There is enough time left to open another one: 2 s, for TLS, IDENTIFY and SUB."""
    LATE = 0.8
    """Nothing more is written that needs an answer: those to what was written before have 0.75 s to arrive."""
    STALE = 0.95
    """Nothing more is waited for. Before nsqd's own limit, so that no answer is cut off half-way."""


class Lifetime(NamedTuple):
    """The time for which nsqd can write to one connection.

    Attributes:
        identified_at: When IDENTIFY was sent; nsqd's clock starts after that.
        limit: Seconds for which nsqd can write.
        early: Seconds by which jitter advances the replacement.
    """

    identified_at: float
    limit: float
    early: float

    @classmethod
    def of(cls, version: str, identified_at: float, chance: Callable[[], float]) -> Self | None:
        """Create one for a TLS connection. None if nsqd can write to it without limit.

        Args:
            version: The nsqd's, from its answer to IDENTIFY.
            identified_at: When IDENTIFY was sent.
            chance: Returns 0..1.
        """
        found = _PARTITIONED.search(version)
        if found is None or tuple(map(int, found.groups())) > NEWEST_DEFECTIVE:
            return None
        return cls(identified_at, WRITES_FOR, WRITES_FOR * JITTER * chance())

    def begins(self, phase: Phase) -> float:
        """Return when a phase begins."""
        return self.identified_at + self.limit * phase.value - (self.early if phase is Phase.DUE else 0.0)

    def phase(self, now: float) -> Phase:
        """Return how old the connection is."""
        return next((phase for phase in _LATEST_FIRST if now >= self.begins(phase)), Phase.FRESH)

    @property
    def stale_at(self) -> float:
        """When nothing more arrives over the connection."""
        return self.begins(Phase.STALE)

    def next_phase_at(self, now: float) -> float | None:
        """Return when the phase changes next; None if it does not."""
        return min((at for phase in _LATEST_FIRST if (at := self.begins(phase)) > now), default=None)


_LATEST_FIRST: Final = (Phase.STALE, Phase.LATE, Phase.DUE)
