"""When a client may open one more connection to an address, so that no peer and no lookup answer makes it a hammer.

Each partition has a connection and a backoff of its own. So an answer that names a stranger's port as the leader of
1,024 partitions would open as many connections there, and an nsqd that ends each connection would be connected to as
often as all its partitions together may retry.

==========  =================================================  =====================================================
an address  one more attempt may begin                         it becomes
==========  =================================================  =====================================================
unknown     if fewer than ``FEW`` attempts at unknown          good when a handshake succeeds,
            addresses of this host, and ``FEW_ALTOGETHER``     doubted when an attempt fails
            of all hosts, are running
good        at once                                            doubted when an attempt fails, or a connection is lost
                                                               within ``SETTLED`` seconds
doubted     ``BURST`` of all doubted addresses at once, then   good when a connection, or several in turn without a
            ``RATE`` a second                                  fault, have lasted for as long as ``PROOFS`` says, and
                                                               the last is answered; a relapse is a doubt less than
                                                               ``SETTLED`` seconds after that
==========  =================================================  =====================================================

A doubted address that is good again lets ``BURST`` attempts at others begin at once: what all of them met, such as a
network that was down, may be over. So all nsqds are back soon after that; one that restarts gets all its connections
back a quarter of a second after the first one, and one that is bad in turns gets few. What the client closes by itself
is no fault: TLS connections may live for 3 s (``tls_renewal``), which is shorter than the last proof. All times come
from one clock.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import Final

import msgspec

FEW: Final = 8
FEW_ALTOGETHER: Final = 32
BURST: Final = 3
RATE: Final = 1.0

SETTLED: Final = 10.0
"""Seconds after which a loss is no sign of a bad peer; as ``consumer.subscriptions.LONGEST_SETTLING``."""

PROOFS: Final = (0.25, 2.5, SETTLED)
"""Seconds that a connection lasts to a doubted address that is well again: at first, and after each relapse."""

MOST_ADDRESSES: Final = 4096
"""Addresses that are remembered."""

_TINY: Final = 1e-6
"""Sums of floats may fall short of 1 by so much, and a wait of no length would never end."""


class Trust(enum.Enum):
    """What is known of an address."""

    UNKNOWN = enum.auto()
    GOOD = enum.auto()
    DOUBTED = enum.auto()


class Address(msgspec.Struct, eq=False):
    """One address.

    Attributes:
        host: Its host.
        trust: What is known of it.
        good_at: When it became good again.
        relapses: Times in a row that it was good again, and not for long.
        well_since: When the first handshake after the last fault succeeded. None while there was none.
        running: Number of its connections, and of attempts.
    """

    host: str
    trust: Trust = Trust.UNKNOWN
    good_at: float = float("-inf")
    relapses: int = 0
    well_since: float | None = None
    running: int = 0


class Attempt(msgspec.Struct, eq=False):
    """An attempt to connect, and the connection that comes of it.

    Attributes:
        address: Where to.
        is_first: It counts as an attempt at an unknown address.
        opened_at: When its handshake succeeded. None before that.
    """

    address: Address
    is_first: bool
    opened_at: float | None = None


class Approaches:
    """The addresses of one client."""

    __slots__ = ("_addresses", "_firsts", "_tokens", "_tokens_at")

    def __init__(self) -> None:
        self._addresses: dict[str, Address] = {}
        self._firsts: Counter[str] = Counter()  # attempts at unknown addresses, by host
        self._tokens = float(BURST)
        self._tokens_at = float("-inf")

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._addresses)

    def trust(self, name: str) -> Trust:
        """Return what is known of an address."""
        found = self._addresses.get(name)
        return Trust.UNKNOWN if found is None else found.trust

    def wait(self, name: str, host: str, now: float) -> float | None:
        """Return the seconds until an attempt may begin: 0 for now, None for when another one has ended."""
        trust = self.trust(name)
        if trust is Trust.GOOD:
            return 0.0
        if trust is Trust.UNKNOWN:
            return 0.0 if self._firsts[host] < FEW and self._firsts.total() < FEW_ALTOGETHER else None
        missing = 1.0 - self._filled(now)
        return 0.0 if missing < _TINY else missing / RATE

    def begin(self, name: str, host: str, now: float) -> Attempt:
        """Record that an attempt begins."""
        address = self._addresses.pop(name, None) or Address(host)
        self._addresses[name] = address  # the latest one is the last
        address.running += 1
        if address.trust is Trust.DOUBTED:
            self._tokens = self._filled(now) - 1.0
            self._tokens_at = now
        is_first = address.trust is Trust.UNKNOWN
        if is_first:
            self._firsts[host] += 1
        self._forget()
        return Attempt(address, is_first)

    def opened(self, attempt: Attempt, now: float) -> float | None:
        """Record a handshake; return after how many seconds to call :meth:`proven`. None for never."""
        self._ended_first(attempt)
        attempt.opened_at = now
        address = attempt.address
        if address.trust is Trust.UNKNOWN:
            address.trust = Trust.GOOD
        if address.well_since is None:
            address.well_since = now
        if address.trust is not Trust.DOUBTED:
            return None
        return max(self._missing(attempt, now), PROOFS[0])

    def proven(self, attempt: Attempt, now: float) -> float | None:
        """Record that a connection is open, and leaves no request unanswered.

        Returns:
            The seconds after which to call again, since others have failed meanwhile. None when there is no need.
        """
        address = attempt.address
        if address.trust is not Trust.DOUBTED:
            return None
        if (missing := self._missing(attempt, now)) > _TINY:
            return missing
        address.trust = Trust.GOOD
        address.good_at = now
        self._tokens, self._tokens_at = float(BURST), now
        return None

    @staticmethod
    def _missing(attempt: Attempt, now: float) -> float:
        """Return the seconds for which an open connection, or its address, still has to be well."""
        begins = (attempt.opened_at, attempt.address.well_since)
        return PROOFS[attempt.address.relapses] - (now - min(begin for begin in begins if begin is not None))

    def ended(self, attempt: Attempt, now: float, *, is_fault: bool) -> None:
        """Record that an attempt failed or was given up, or that its connection has ended.

        Args:
            attempt: Which one.
            now: The time.
            is_fault: The client did not end it by itself.
        """
        self._ended_first(attempt)
        address = attempt.address
        address.running -= 1
        if is_fault:
            address.well_since = None
        lasted = 0.0 if attempt.opened_at is None else now - attempt.opened_at
        if not is_fault or lasted >= SETTLED or address.trust is Trust.DOUBTED:
            return
        has_relapsed = now - address.good_at < SETTLED
        address.relapses = min(address.relapses + 1, len(PROOFS) - 1) if has_relapsed else 0
        address.trust = Trust.DOUBTED

    def _filled(self, now: float) -> float:
        return min(self._tokens + (now - self._tokens_at) * RATE, float(BURST))

    def _ended_first(self, attempt: Attempt) -> None:
        if attempt.is_first:
            attempt.is_first = False
            host = attempt.address.host
            self._firsts[host] -= 1
            if not self._firsts[host]:
                del self._firsts[host]

    def _forget(self) -> None:
        if len(self._addresses) > MOST_ADDRESSES:
            unused = next((name for name, address in self._addresses.items() if not address.running), None)
            if unused is not None:
                del self._addresses[unused]
