"""What this process knows about nsqds that stop writing to TLS connections.

There is one verdict for each nsqd, shared by all clients of the process.
``policy.tls_renewal`` decides what it means for connections, and ``engine.link`` replaces them in time.

The invariant: a defect is logged once for each nsqd.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from nsq_ha.policy.tls_renewal import RENEWED, VERDICTS, WRITES_FOR, Evidence, Lifetime, Phase, Verdict, first_verdict
from nsq_ha.redaction import redact

log: logging.Logger = logging.getLogger("nsq_ha.connection")

PAGE: Final = "docs/how-to/secure.md"
"""The page that explains to an operator what to do."""

_MOST: Final = 4096


class TlsServer:
    """What the TLS connections to one nsqd have shown.

    Attributes:
        address: ``host:port``.
        version: The version in IDENTIFY's answer.
        verdict: Whether it has the defect.
        writes_for: Seconds for which it writes if it has the defect.
        has_witness: A replaced connection stays open to find out.
    """

    def __init__(self, address: str, version: str) -> None:
        self.address = address
        self.version = version
        self.verdict: Verdict = first_verdict(version)
        self.writes_for = WRITES_FOR
        self.has_witness = False
        self._is_warned = False

    def lifetime(self, identified_at: float) -> Lifetime | None:
        """Return the lifetime of a connection identified at that time. None if it is unlimited."""
        return Lifetime.of(identified_at, self.writes_for, random.random) if self.is_renewed else None

    @property
    def is_renewed(self) -> bool:
        """Whether connections to it are replaced in time."""
        return self.verdict in RENEWED

    @property
    def wants_witness(self) -> bool:
        """Whether to keep a replaced connection open, to find out whether nsqd writes to it after the limit."""
        return self.verdict is Verdict.SUSPECTED and not self.has_witness

    def saw(self, evidence: Evidence) -> None:
        """Record the evidence of a connection."""
        before, self.verdict = self.verdict, VERDICTS[self.verdict, evidence]
        if self.verdict is before:
            return
        log.debug("TLS of nsqd %s: %s", self.address, self.verdict.name, extra={"nsqd": self.address})
        if self.verdict is Verdict.DEFECTIVE and not self._is_warned:
            self._is_warned = True
            log.warning(
                "nsqd %s (version %.60r) stops writing to TLS connections %.0f s after the handshake, a defect of this "
                "server. Its connections are replaced in time, which costs a handshake every %.0f s for each one. "
                "Patch nsqd, or use a tunnel in place of TLS: see %s",
                self.address,
                redact(self.version),
                self.writes_for,
                self.writes_for * Phase.DUE.value,
                PAGE,
                extra={"nsqd": self.address},
            )


_servers: Final[dict[tuple[str, str], TlsServer]] = {}


def tls_server(address: str, version: str) -> TlsServer:
    """Return what is known about the nsqd at ``address``; another version counts as another nsqd."""
    server = _servers.get((address, version))
    if server is None:
        if len(_servers) >= _MOST:
            _servers.clear()  # the connections will show it again
        server = _servers[address, version] = TlsServer(address, version)
    return server
