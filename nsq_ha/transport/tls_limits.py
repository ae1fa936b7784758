"""What this process knows of the nsqds that it talks to by TLS: which of them stop writing, and since when it is said.

Owns one verdict for each nsqd, for all clients of the process. What follows from
it is decided by ``policy.tls_renewal``.

The invariant: a defect is warned about once for each nsqd.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.tls_renewal import RENEWED, VERDICTS, WRITES_FOR, Lifetime, Phase, Verdict, first_verdict

if TYPE_CHECKING:
    from nsq_ha.policy.tls_renewal import Evidence

log = logging.getLogger("nsq_ha.connection")

PAGE: Final = "docs/how-to/secure.md"
"""Tells an operator what to do."""

_MOST: Final = 4096


class TlsServer:
    """One nsqd, as its TLS connections show it.

    Attributes:
        address: ``host:port``.
        version: As IDENTIFY's answer tells it.
        verdict: What is known of it.
        writes_for: Seconds for which it writes, if it has the defect.
        has_witness: A connection that was replaced is kept to see what is true.
    """

    def __init__(self, address: str, version: str) -> None:
        """Begin with what the version tells."""
        self.address = address
        self.version = version
        self.verdict = first_verdict(version)
        self.writes_for = WRITES_FOR
        self.has_witness = False
        self._is_warned = False

    def lifetime(self, identified_at: float) -> Lifetime | None:
        """Return the time of a connection that was identified then. None while its time has no end."""
        return Lifetime.of(identified_at, self.writes_for, random.random) if self.is_renewed else None

    @property
    def is_renewed(self) -> bool:
        """Whether its connections are replaced."""
        return self.verdict in RENEWED

    @property
    def wants_witness(self) -> bool:
        """Whether a replaced connection is worth keeping, to see whether it is heard beyond the limit."""
        return self.verdict is Verdict.SUSPECTED and not self.has_witness

    def saw(self, evidence: Evidence) -> None:
        """Take note of what a connection showed."""
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
                self.version,
                self.writes_for,
                self.writes_for * Phase.DUE.value,
                PAGE,
                extra={"nsqd": self.address},
            )


_servers: Final[dict[tuple[str, str], TlsServer]] = {}


def tls_server(address: str, version: str) -> TlsServer:
    """Return what is known of the nsqd at ``address``; another version there is another nsqd."""
    server = _servers.get((address, version))
    if server is None:
        if len(_servers) >= _MOST:
            _servers.clear()  # what is true is seen again
        server = _servers[address, version] = TlsServer(address, version)
    return server
