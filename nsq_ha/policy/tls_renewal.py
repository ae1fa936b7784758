"""How to work with an nsqd whose TLS connections can be written to for five seconds only.

The partitioned nsqd sets a deadline of 5 s before the TLS handshake and never
removes its half for writing. When it is over, each write of nsqd fails: no
heartbeat, answer or message comes any more, and nsqd does not close. It goes on
*reading*, so FIN, REQ and TOUCH, which have no answer, still work for as long
as the client sends something from time to time.

So a connection is replaced before that, and the one before it is kept until
what is outstanding on it is done. ``ACTS`` says what to do with a connection at
each age; ``VERDICTS`` says what is known of an nsqd, and from what.

The invariants:

* Nothing that has an answer is sent over a connection when too little of its
  time is left for the answer.
* A connection in use is left only when another one has taken its place, or when
  its time is over.
* An nsqd is called defective only after it was silent beyond the limit, and its
  connections are not replaced any more once it was heard beyond the limit.

Source: protocol reference 3; ``nsqd/client_v2.go``, ``UpgradeTLS``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES_FOR: Final = 5.0
"""Seconds from IDENTIFY for which the partitioned nsqd can write to a TLS connection."""

JITTER: Final = 0.05
"""Share of the time that chance takes away from the age of a replacement: connections that were opened together are
not replaced together."""


class Phase(enum.Enum):
    """How old a connection is. The values are shares of the time that nsqd can write."""

    FRESH = 0.0
    """Nothing is to be done."""
    DUE = 0.6
    """Time enough is left to open another one."""
    LATE = 0.8
    """What is asked now may still be answered; what is asked later may not."""
    STALE = 0.95
    """Nothing comes over it any more."""


class Use(enum.Enum):
    """What a connection is for at the moment."""

    UNUSED = enum.auto()
    """A producer's: nothing was published over it, and nothing waits."""
    PUBLISHING = enum.auto()
    """A producer's: publishes are written to it."""
    ANSWERING = enum.auto()
    """A producer's that was replaced: answers are outstanding."""
    READING = enum.auto()
    """A consumer's: messages come over it."""
    FINISHING = enum.auto()
    """A consumer's that was replaced: messages that came over it are not answered yet."""
    DONE = enum.auto()
    """Nothing is outstanding, and another one has taken its place."""


class Act(enum.Enum):
    """What is to be done with a connection now."""

    USE = enum.auto()
    """Go on."""
    REPLACE = enum.auto()
    """Open another one, and go on meanwhile; then use that one."""
    SETTLE = enum.auto()
    """Ask for nothing more over it, and wait for what is outstanding; connect again after that."""
    KEEP = enum.auto()
    """Take what still comes, answer what came, and show nsqd that the client lives."""
    LEAVE = enum.auto()
    """Close it. What is outstanding is in doubt, or comes again."""
    CLOSE = enum.auto()
    """Close it: nothing is outstanding."""


_P = Phase
_U = Use
_A = Act

ACTS: Final[Mapping[tuple[Use, Phase], Act]] = MappingProxyType(
    {
        # Another one is opened for the next publish: who does not publish needs no handshake every three seconds.
        (_U.UNUSED, _P.FRESH): _A.USE,
        (_U.UNUSED, _P.DUE): _A.CLOSE,
        (_U.UNUSED, _P.LATE): _A.CLOSE,
        (_U.UNUSED, _P.STALE): _A.CLOSE,
        (_U.PUBLISHING, _P.FRESH): _A.USE,
        (_U.PUBLISHING, _P.DUE): _A.REPLACE,
        (_U.PUBLISHING, _P.LATE): _A.SETTLE,
        (_U.PUBLISHING, _P.STALE): _A.LEAVE,
        (_U.ANSWERING, _P.FRESH): _A.KEEP,
        (_U.ANSWERING, _P.DUE): _A.KEEP,
        (_U.ANSWERING, _P.LATE): _A.KEEP,
        (_U.ANSWERING, _P.STALE): _A.LEAVE,
        (_U.READING, _P.FRESH): _A.USE,
        (_U.READING, _P.DUE): _A.REPLACE,
        (_U.READING, _P.LATE): _A.SETTLE,
        # What nsqd sends now is lost, but what came before can still be answered.
        (_U.READING, _P.STALE): _A.SETTLE,
        # FIN, REQ and TOUCH have no answer, so they need no time; whoever keeps it bounds it by the message timeout.
        **{(_U.FINISHING, phase): _A.KEEP for phase in _P},
        **{(_U.DONE, phase): _A.CLOSE for phase in _P},
    }
)
"""What a connection is for and how old it is, to what is done with it."""


class Lifetime(NamedTuple):
    """The time of one connection.

    Attributes:
        identified_at: When IDENTIFY was sent: nsqd's clock starts after that.
        limit: Seconds for which nsqd can write.
        early: Seconds that the replacement is due earlier.
    """

    identified_at: float
    limit: float
    early: float

    @classmethod
    def of(cls, identified_at: float, limit: float, chance: Callable[[], float]) -> Self:
        """Begin; ``chance`` returns 0..1."""
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
        """When nothing comes over the connection any more."""
        return self.identified_at + self.limit * Phase.STALE.value

    def next_phase_at(self, now: float) -> float | None:
        """Return when the phase changes. None when no further change comes."""
        begin, limit = self.identified_at, self.limit
        changes = (
            begin + limit * Phase.DUE.value - self.early,
            begin + limit * Phase.LATE.value,
            begin + limit * Phase.STALE.value,
        )
        return min((at for at in changes if at > now), default=None)


class Verdict(enum.Enum):
    """What is known of how one nsqd writes to TLS connections."""

    TRUSTED = enum.auto()
    """Nothing speaks against it. Its connections are not replaced."""
    SUSPECTED = enum.auto()
    """It may stop. Its connections are replaced, and one that was replaced is kept until it shows what is true."""
    DEFECTIVE = enum.auto()
    """It was silent beyond the limit. Its connections are replaced."""
    SOUND = enum.auto()
    """It was heard beyond the limit. Its connections are not replaced."""


class Evidence(enum.Enum):
    """What tells something of it."""

    HEARD = enum.auto()
    """Bytes came over a connection that was clearly older than the limit."""
    SILENT = enum.auto()
    """Heartbeats ended at the limit, on a connection that lived on."""


_V = Verdict
_E = Evidence

VERDICTS: Final[Mapping[tuple[Verdict, Evidence], Verdict]] = MappingProxyType(
    {
        (_V.TRUSTED, _E.HEARD): _V.SOUND,
        # Anything may fall silent at that age once: the next connections tell.
        (_V.TRUSTED, _E.SILENT): _V.SUSPECTED,
        (_V.SUSPECTED, _E.HEARD): _V.SOUND,
        (_V.SUSPECTED, _E.SILENT): _V.DEFECTIVE,
        # It was started again as another program, or a network held the bytes up.
        (_V.DEFECTIVE, _E.HEARD): _V.SUSPECTED,
        (_V.DEFECTIVE, _E.SILENT): _V.DEFECTIVE,
        (_V.SOUND, _E.HEARD): _V.SOUND,
        (_V.SOUND, _E.SILENT): _V.TRUSTED,
    }
)
"""What is known and what was seen, to what is known then."""

RENEWED: Final = frozenset((_V.SUSPECTED, _V.DEFECTIVE))
"""Verdicts with which connections are replaced."""

_PARTITIONED: Final = "-HA."


def first_verdict(version: str) -> Verdict:
    """Return what to think of an nsqd of which only the version is known, as IDENTIFY's answer tells it."""
    return Verdict.SUSPECTED if _PARTITIONED in version else Verdict.TRUSTED


def evidence(now: float, last_received: float, identified_at: float, limit: float, interval: float) -> Evidence | None:
    """Tell what the times of one TLS connection show. None while they show nothing.

    Args:
        now: The time.
        last_received: When the last byte came.
        identified_at: When IDENTIFY was sent.
        limit: Seconds for which a defective nsqd can write.
        interval: Seconds between two heartbeats: at least so often a sound nsqd writes.
    """
    over = identified_at + limit
    if last_received > over + interval:
        # Not earlier: what was written in time may be read late, where this program was held up.
        return Evidence.HEARD
    if now > max(over, last_received) + 2 * interval and last_received > over - 2 * interval:
        return Evidence.SILENT
    return None
