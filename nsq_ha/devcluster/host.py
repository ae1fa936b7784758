"""The environment of all nodes: clock, delays, randomness and switches.

Storage, nsqd and HTTP see the rest of the cluster only through :class:`Host`.

The servers listen on the loopback only. The guard of their HTTP rejects requests that another site can make a browser
on the same machine send there: a form that it posts, and a foreign host name that resolves to the loopback.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from starlette.responses import Response

if TYPE_CHECKING:
    import asyncio
    import random
    import ssl

    from starlette.types import Receive, Scope, Send

    from nsq_ha.devcluster.auth import AuthGrant
    from nsq_ha.protocol.server.stream import Limits


VERSION: Final = "0.3.7-HA.1.13.0"
"""The version that the nodes report and imitate."""
PLAIN_VERSION: Final = "1.3.0"
"""The version of upstream NSQ that the nodes of a plain cluster report and imitate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds between an event and its effects, measured on the real cluster.

    Delays that a client requests (heartbeats, message timeouts, requeue delays) are never scaled.

    Source: server failures 3.
    """

    link_broken: float = 0.3
    """nsqlookupd notices that a killed nsqd closed its connection."""
    link_silent: float = 15.0
    """nsqlookupd drops an nsqd that is connected but silent."""
    key_expires: float = 20.0
    """The etcd key of a crashed node expires."""
    election: float = 2.0
    """From the expiry of a key to the new leader."""
    handover: float = 0.9
    """From a clean stop to the new leader."""
    exiting: float = 0.3
    """How long a stopping nsqd answers ``E_PUB_FAILED exiting`` before it closes."""
    replica_wait: float = 12.0
    """How long a leader waits for a follower before it refuses writes."""
    replica_reported: float = 13.0
    """From a follower's silence until nsqlookupd omits the partition from ``access=w``."""
    move: float = 0.3
    """A leader moves to another replica; writes stop for this long."""
    copy: float = 1.5
    """A small partition is copied to a new replica."""
    register: float = 0.7
    """A started nsqd registers; a started nsqlookupd knows everything again."""
    rejoin: float = 6.0
    """A started nsqd catches up until it joins the in-sync replicas again."""
    rejoin_stop: float = 0.5
    """Writes stop while a replica joins."""
    waking: float = 0.5
    """How long a deposed leader that wakes up still answers ``NOT_WRITABLE``."""
    leading_lookupd: float = 17.0
    """Another nsqlookupd leads after the leading one failed."""
    periodic_check: float = 55.0
    """A new leading nsqlookupd finds partitions without a leader."""
    flush: float = 2.0
    """Between two ticks of a node's flush clock; a partition waits for at most three."""
    scan: float = 0.5
    """Between two scans for messages that timed out or whose delay ended; at least one tick of the node."""
    scan_refresh: float = 5.0
    """Until the scans include a new channel."""
    create: float = 0.3
    """From ``/topic/create`` to the replicas on their nodes; each later step takes this long, too."""
    expand: float = 0.3
    """From ``/topic/partition/expand`` to the new number of partitions, and from there to their leaders."""
    lookup_lag: float = 0.1
    """An nsqlookupd that does not lead learns of a new leader."""
    meta_lag: float = 2.0
    """An nsqlookupd that does not lead learns of a new number of partitions, or that a topic is deleted."""
    full_check: float = 60.0
    """From a node's start or failure until the leading nsqlookupd has checked everything and reports it as stable."""
    slow_leader: float = 0.0
    """How long ``access=r`` names a new leader that does not work yet; from 0 to a minute on real clusters."""
    scale: float = 1.0
    """Factor of the times that a plain cluster's own modules name."""

    @classmethod
    def scaled(cls, factor: float, *, slow_leader: float = 0.0) -> Self:
        """Return the measured figures multiplied by ``factor``.

        Args:
            factor: The factor.
            slow_leader: Replaces the measured figure before scaling.

        Raises:
            ValueError: ``factor`` is not above 0, or ``slow_leader`` is below 0.
        """
        if not factor > 0:
            raise ValueError(f"time_scale must be above 0, not {factor}")
        if not slow_leader >= 0:
            raise ValueError(f"slow_leaders must not be below 0, not {slow_leader}")
        measured = cls(slow_leader=slow_leader)
        return replace(measured, **{field.name: getattr(measured, field.name) * factor for field in fields(cls)})


@dataclass(eq=False, kw_only=True)
class Host:
    """Everything that the nodes of one cluster share.

    Attributes:
        loop: The loop that runs the cluster.
        timing: The cluster's delays.
        chance: The only source of randomness, seeded.
        security: TLS and HTTP access of all nodes.
        limits: What the nsqds accept.
        auth: What each secret for AUTH allows. None for nsqds that do not ask for it.
        retain_bytes: Bytes of finished messages that a partition keeps. None for all.
        writes_disabled: An operator disabled writing in the whole cluster.
    """

    loop: asyncio.AbstractEventLoop
    timing: Timing
    chance: random.Random
    security: Security
    limits: Limits
    auth: Mapping[bytes, AuthGrant] | None = field(default=None, repr=False)
    retain_bytes: int | None = None
    writes_disabled: bool = False

    def now(self) -> float:
        """Return the time of the cluster's clock."""
        return self.loop.time()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Call ``act`` after ``delay`` seconds, unless the cluster closes first."""
        self.loop.call_later(delay, act)


_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))
_READING: Final = frozenset(("GET", "HEAD"))
ANY: Final = "*"
"""Allows all hosts."""

App = Callable[["Scope", "Receive", "Send"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Access to the nodes of a cluster.

    Attributes:
        tls: The server's context. None for a server without TLS.
        required: Refuse everything outside TLS (``-tls-required``): all commands but IDENTIFY, and plain HTTP.
        write_deadline: Seconds after a handshake at which every write begins to fail. None for no failures.
        hosts: Names besides the loopback's that are allowed in ``Host`` and ``Origin`` of HTTP requests.

    Raises:
        ValueError: TLS is required but not configured, or the deadline is not above 0.
    """

    tls: ssl.SSLContext | None = None
    required: bool = False
    write_deadline: float | None = None
    hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.required and self.tls is None:
            raise ValueError("tls_required=True needs tls=, the server's ssl.SSLContext")
        if self.write_deadline is not None and not self.write_deadline > 0:
            raise ValueError(f"tls_write_deadline must be above 0, not {self.write_deadline}")

    def guarded(self, app: App, *, needs_tls: bool) -> App:
        """Let ``app`` answer only allowed requests.

        Args:
            app: Answers the requests.
            needs_tls: Refuse everything if TLS is required.
        """

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            why = self._refusal(scope["method"], headers)
            if why is None and self.required and needs_tls:
                why = "TLS_REQUIRED"
            if why is None:
                await app(scope, receive, send)
                return
            # With a blank after the colon, as nsqd writes it.
            refused = Response(json.dumps({"message": why}), 403, media_type="text/plain; charset=utf-8")
            await refused(scope, receive, send)

        return guard

    def _refusal(self, method: str, headers: dict[str, str]) -> str | None:
        host = headers.get("host", "")
        if host and not self._is_allowed(f"//{host}"):
            return "FOREIGN_HOST"
        if method in _READING:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin):
            return "FOREIGN_ORIGIN"
        return None

    def _is_allowed(self, url: str) -> bool:
        if ANY in self.hosts:
            return True
        try:
            name = urlsplit(url).hostname
        except ValueError:
            return False
        return name in _LOOPBACK or name in self.hosts
