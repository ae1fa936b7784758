"""How quickly a cluster goes about its faults, and how the loads on it are measured out for that.

A scenario waits for two things: what the cluster takes (elections, the end of a
key ...), which an embedded cluster does in a tenth of the time, and what the
library's own limits take (heartbeats, lookups ...), which nothing scales but
its options.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times are seconds.

    Attributes:
        cluster: Factor on all that the cluster takes.
        least: Shortest time that a fault lasts where the library's own limits have to pass, too.
        patience: Shortest time that is waited for what must come.
        rate: Messages a second on each topic.
        keys: Number of keys.
        limit: Time limit of a publish.
        heartbeat: Heartbeat interval.
        close: Time limit of closing.
        clients: Further options of producers and consumers.
        producers: Further options of producers.
        consumers: Further options of consumers.
    """

    cluster: float = 1.0
    least: float = 0.0
    patience: float = 0.0
    rate: float = 150.0
    keys: int = 16
    limit: float = 30.0
    heartbeat: float = 2.0
    close: float = 5.0
    clients: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    producers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    consumers: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def silence(self) -> float:
        """The longest that a silent connection may cost: two heartbeat intervals and a second."""
        return 2 * self.heartbeat + 1.0

    @property
    def producer_options(self) -> dict[str, Any]:
        """All options of a producer."""
        return {**self._common, "publish_timeout": self.limit, **self.producers}

    @property
    def consumer_options(self) -> dict[str, Any]:
        """All options of a consumer."""
        return {**self._common, **self.consumers}

    @property
    def _common(self) -> dict[str, Any]:
        return {"heartbeat_interval": self.heartbeat, "close_timeout": self.close, **self.clients}


REAL: Final = Pace()
"""A real cluster, and the default configuration."""
