"""Work with an nsqd that can write to a TLS connection for only five seconds.

The partitioned nsqd sets a deadline of 5 s before the TLS handshake and never
clears it for writing. From then on each write of nsqd fails: no heartbeat,
answer or message arrives, and nsqd does not close the connection. It continues
to *read*, so FIN, REQ and TOUCH, which have no answer, still work as long as
the client sends something from time to time.

So a connection is replaced before that: a producer switches when all publishes on
the old one are answered, a consumer keeps the old one until its messages are.
``ACTS`` says what to do with a connection at each age; ``VERDICTS`` says what is
known about an nsqd, and why.

The invariants:

* Nothing that needs an answer is sent over a connection with too little time left
  for the answer.
* A connection in use is closed only after another one has replaced it, or when
  its time is over.
* An nsqd counts as defective only after it was silent beyond the limit, and its
  connections are no longer replaced once it wrote beyond the limit.

Source: server protocol 3.3; ``nsqd/client_v2.go``, ``UpgradeTLS``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Self

WRITES_FOR: Final = 5.0
"""Seconds from IDENTIFY for which the partitioned nsqd can write to a TLS connection."""

JITTER: Final = 0.05
"""Jitter as a share of the limit, so that connections that were opened together are not replaced together."""


class Phase(enum.Enum):
    """The age of a connection. The values are shares of the time for which nsqd can write."""

    FRESH = 0.0
    """There is nothing to do."""
    DUE = 0.6
    """There is enough time left to open another one."""
    LATE = 0.8
    """An answer to a command sent now may still arrive; later commands get none."""
    STALE = 0.95
    """Nothing more arrives over it."""


class Use(enum.Enum):
    """What a connection is used for now."""

    UNUSED = enum.auto()
    """By a producer that published nothing over it, with nothing waiting."""
    IN_USE = enum.auto()
    """Publishes are written to it, or messages are read from it."""
    FINISHING = enum.auto()
    """Replaced, and messages that came over it are not answered."""
    DONE = enum.auto()
    """Replaced, with nothing outstanding."""


class Renewal(enum.Enum):
    """What to do with a connection now."""

    USE = enum.auto()
    """Continue to use it."""
    REPLACE = enum.auto()
    """Open another one while using this one; then switch to the new one."""
    SETTLE = enum.auto()
    """Send nothing new over it and wait for outstanding answers; then reconnect. Answers to earlier messages may still
    be sent."""
    KEEP = enum.auto()
    """Answer messages, and send a command from time to time."""
    CLOSE = enum.auto()
    """Close it; nothing is outstanding."""


_P = Phase
_U = Use
_A = Renewal

ACTS: Final[Mapping[tuple[Use, Phase], Renewal]] = MappingProxyType(
    {
        # The next publish opens another one; an idle producer needs no handshake every three seconds.
        (_U.UNUSED, _P.FRESH): _A.USE,
        (_U.UNUSED, _P.DUE): _A.CLOSE,
        (_U.UNUSED, _P.LATE): _A.CLOSE,
        (_U.UNUSED, _P.STALE): _A.CLOSE,
        (_U.IN_USE, _P.FRESH): _A.USE,
        (_U.IN_USE, _P.DUE): _A.REPLACE,
        (_U.IN_USE, _P.LATE): _A.SETTLE,
        (_U.IN_USE, _P.STALE): _A.SETTLE,
        # FIN, REQ and TOUCH have no answer, so they need no time; the owner limits this by the message timeout.
        **{(_U.FINISHING, phase): _A.KEEP for phase in _P},
        **{(_U.DONE, phase): _A.CLOSE for phase in _P},
    }
)
"""Maps the use and age of a connection to what to do with it."""


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
    def of(cls, identified_at: float, limit: float, chance: Callable[[], float]) -> Self:
        """Create one; ``chance`` returns 0..1."""
        return cls(identified_at, limit, limit * JITTER * chance())

    def phase(self, now: float) -> Phase:
        """Return how old the connection is."""
        age = now - self.identified_at
        if age >= self.limit * Phase.STALE.value:
            return Phase.STALE
        if age >= self.limit * Phase.LATE.value:
            return Phase.LATE
        return Phase.DUE if age + self.early >= self.limit * Phase.DUE.value else Phase.FRESH

    @property
    def stale_at(self) -> float:
        """When nothing more arrives over the connection."""
        return self.identified_at + self.limit * Phase.STALE.value

    def next_phase_at(self, now: float) -> float | None:
        """Return when the phase changes next; None if it does not."""
        begin, limit = self.identified_at, self.limit
        changes = (
            begin + limit * Phase.DUE.value - self.early,
            begin + limit * Phase.LATE.value,
            begin + limit * Phase.STALE.value,
        )
        return min((at for at in changes if at > now), default=None)


class Verdict(enum.Enum):
    """What is known about one nsqd's writes to TLS connections."""

    TRUSTED = enum.auto()
    """It shows no sign of the defect. Its connections are not replaced."""
    SUSPECTED = enum.auto()
    """It may have the defect. Its connections are replaced, and one is kept afterwards to find out."""
    DEFECTIVE = enum.auto()
    """It was silent beyond the limit. Its connections are replaced."""
    SOUND = enum.auto()
    """It wrote beyond the limit. Its connections are not replaced."""


class Evidence(enum.Enum):
    """What a connection can show."""

    HEARD = enum.auto()
    """Bytes arrived over a connection that was clearly older than the limit."""
    SILENT = enum.auto()
    """Heartbeats ended at the limit on a connection that stayed open."""


_V = Verdict
_E = Evidence

VERDICTS: Final[Mapping[tuple[Verdict, Evidence], Verdict]] = MappingProxyType(
    {
        (_V.TRUSTED, _E.HEARD): _V.SOUND,
        # A single silence at that age may be chance: the next connections will show.
        (_V.TRUSTED, _E.SILENT): _V.SUSPECTED,
        (_V.SUSPECTED, _E.HEARD): _V.SOUND,
        (_V.SUSPECTED, _E.SILENT): _V.DEFECTIVE,
        # It was restarted as another program, or a network delayed the bytes.
        (_V.DEFECTIVE, _E.HEARD): _V.SUSPECTED,
        (_V.DEFECTIVE, _E.SILENT): _V.DEFECTIVE,
        (_V.SOUND, _E.HEARD): _V.SOUND,
        (_V.SOUND, _E.SILENT): _V.TRUSTED,
    }
)
"""Maps a verdict and new evidence to the next verdict."""

RENEWED: Final = frozenset((_V.SUSPECTED, _V.DEFECTIVE))
"""Verdicts for which connections are replaced."""

_PARTITIONED: Final = "-HA."


def first_verdict(version: str) -> Verdict:
    """Return the verdict on an nsqd of which only the version in IDENTIFY's answer is known."""
    return Verdict.SUSPECTED if _PARTITIONED in version else Verdict.TRUSTED


def evidence(now: float, last_received: float, identified_at: float, limit: float, interval: float) -> Evidence | None:
    """Return what the times of one TLS connection show, or None if nothing yet.

    Args:
        now: The time.
        last_received: When the last byte arrived.
        identified_at: When IDENTIFY was sent.
        limit: Seconds for which a defective nsqd can write.
        interval: Seconds between two heartbeats; a correct nsqd writes at least this often.
    """
    over = identified_at + limit
    if last_received > over + interval:
        # Not earlier: bytes written in time may be read late if this program was blocked.
        return Evidence.HEARD
    if now > max(over, last_received) + 2 * interval and last_received > over - 2 * interval:
        return Evidence.SILENT
    return None
