"""How long the cluster takes to notice and to act, as measured on the real one.

Owns the figures and the one factor that scales them. What a client asks for
(heartbeats, message timeouts, delays) is never scaled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds between a fault and what follows from it.

    Source: failures reference 3.0 - 3.9.
    """

    link_broken: float = 0.3
    """nsqlookupd sees that the TCP link of a killed nsqd is gone."""
    link_silent: float = 15.0
    """nsqlookupd drops an nsqd that is connected and silent."""
    key_expires: float = 20.0
    """The etcd key of a node that went without goodbye ends."""
    election: float = 2.0
    """From the end of a key to the new leader."""
    handover: float = 0.9
    """From an orderly goodbye to the new leader."""
    exiting: float = 0.3
    """How long a stopping nsqd answers ``E_PUB_FAILED exiting`` before it closes."""
    replica_wait: float = 12.0
    """How long a leader waits for a follower before it refuses to write."""
    replica_reported: float = 13.0
    """From a follower's silence until nsqlookupd leaves the partition out of ``access=w``."""
    move: float = 0.3
    """A leader move within the replicas; writes stop that long."""
    copy: float = 1.5
    """Copying a small partition to a new replica."""
    register: float = 0.7
    """A started nsqd registers; a started nsqlookupd is complete again."""
    rejoin: float = 6.0
    """A started nsqd catches up until it joins the in-sync replicas again."""
    rejoin_stop: float = 0.5
    """Writes stop while a replica joins."""
    waking: float = 0.5
    """How long a deposed leader that wakes up still answers ``NOT_WRITABLE``."""
    leading_lookupd: float = 17.0
    """A new nsqlookupd leads after the leading one went."""
    periodic_check: float = 55.0
    """A new leading nsqlookupd finds partitions without leader."""
    flush: float = 2.0
    """Seconds between the turns of a node's flush clock; a partition waits for at most three."""
    scan: float = 0.5
    """Seconds between two checks of timeouts and delays; at least a tick of the node."""
    scan_refresh: float = 5.0
    """Seconds until a new channel is included in these checks."""
    create: float = 0.3
    """``/topic/create`` to the replicas on their nodes; each later step takes as long again."""
    expand: float = 0.3
    """``/topic/partition/expand`` to the new number, and from there to the new leaders."""
    lookup_lag: float = 0.1
    """Another nsqlookupd learns of a leader later than the leading one."""
    meta_lag: float = 2.0
    """Another nsqlookupd learns later of a new number of partitions, or that a topic is gone."""

    full_check: float = 60.0
    """Seconds after a node came or went until the leading nsqlookupd calls the cluster stable."""
    slow_leader: float = 0.0
    """Seconds during which ``access=r`` names a new leader that does not work yet; 0 to 60 were measured."""

    @classmethod
    def scaled(cls, factor: float, *, slow_leader: float = 0.0) -> Self:
        """Return the measured figures multiplied by ``factor``.

        Args:
            factor: What to multiply with.
            slow_leader: Replaces the measured figure, before it is multiplied.

        Raises:
            ValueError: ``factor`` is not above 0, or ``slow_leader`` is below.
        """
        if not factor > 0:
            raise ValueError(f"time_scale must be above 0, not {factor}")
        if not slow_leader >= 0:
            raise ValueError(f"slow_leaders must not be below 0, not {slow_leader}")
        measured = cls(slow_leader=slow_leader)
        return replace(measured, **{field.name: getattr(measured, field.name) * factor for field in fields(cls)})
