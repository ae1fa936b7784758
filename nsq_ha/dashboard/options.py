"""How a dashboard runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nsq_ha.admin.findings import is_loopback

DEFAULT_PORT: Final = 4171
"""The port of nsqadmin, which the dashboard replaces."""


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """How a dashboard runs.

    Attributes:
        host: The address to listen on.
        port: Its port; 0 for a free one.
        interval: Seconds between two polls of the cluster.
        limit: Seconds for one poll; servers that take longer are shown as silent.
        history: Seconds for which figures are kept.
        token: What a person must know to sign in. None if nobody can; ``may_change`` and other hosts need one.
        may_change: Those who have signed in may change the cluster.
        hosts: Names by which browsers reach the dashboard, besides ``localhost``, IP addresses and ``host``.
        trace_logs: Files that a search for a message reads.
        decoders: Functions that show bodies, each as ``MODULE:FUNCTION``; they get bytes.
        change_log: A file to which each change is appended, as a line of JSON.
        base_path: The path below which a proxy shows the dashboard, such as ``/nsq``, whether it removes that or not.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    interval: float = 2.0
    limit: float = 5.0
    history: float = 900.0
    token: str | None = field(default=None, repr=False)
    may_change: bool = False
    hosts: tuple[str, ...] = ()
    trace_logs: tuple[Path, ...] = ()
    decoders: tuple[str, ...] = ()
    change_log: Path | None = None
    base_path: str = ""

    @property
    def is_private(self) -> bool:
        """Whether reading needs the token, too."""
        return not is_loopback(self.host)

    @property
    def needs_token(self) -> bool:
        """Whether somebody must be able to sign in."""
        return self.is_private or self.may_change
