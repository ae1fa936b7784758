"""How quickly a cluster goes about its faults, and how the loads on it are measured out for that.

A scenario waits for two things: what the cluster takes (elections, the end of a
key ...), which an embedded cluster does in a tenth of the time, and what the
library's own limits take (heartbeats, lookups ...), which nothing scales but
its options.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Final

from integration.cluster import COMPRESSION_VARIABLE, TLS_VARIABLE
from integration.faults.secrets import FILE_VARIABLE, current_secret
from nsq_ha import Compression, TlsConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times are seconds.

    Attributes:
        cluster: Factor on all that the cluster takes.
        least: Shortest time that a fault lasts where the library's own limits have to pass, too.
        patience: Shortest time that is waited for what must come.
        rate: Messages a second on each topic.
        ordered_rate: The same on an ordered topic, each partition of which waits for every FIN. None for ``rate``.
        keys: Number of keys.
        recent: Seconds since a key's last receipt and delivery, at most, where all is well.
        limit: Time limit of a publish.
        heartbeat: Heartbeat interval.
        close: Time limit of closing.
        msg_timeout: Time limit of a message: a plain nsqd keeps those of a killed consumer for as long.
        clients: Further options of producers and consumers.
        producers: Further options of producers.
        consumers: Further options of consumers.
    """

    cluster: float = 1.0
    least: float = 0.0
    patience: float = 0.0
    rate: float = 150.0
    ordered_rate: float | None = None
    keys: int = 16
    recent: float = 0.6
    limit: float = 30.0
    heartbeat: float = 2.0
    close: float = 5.0
    msg_timeout: float = 60.0
    clients: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    producers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    consumers: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def rate_of(self, *, ordered: bool) -> float:
        """Return the messages a second on a topic."""
        return self.ordered_rate if ordered and self.ordered_rate is not None else self.rate

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
        return {**self._common, "msg_timeout": self.msg_timeout, **self.consumers}

    @property
    def reader_options(self) -> dict[str, float]:
        """Those of a consumer that is a process of its own."""
        return {"heartbeat_interval": self.heartbeat, "msg_timeout": self.msg_timeout}

    @property
    def _common(self) -> dict[str, Any]:
        return {"heartbeat_interval": self.heartbeat, "close_timeout": self.close, **self.clients}


REAL: Final = Pace()
"""A real cluster, and the default configuration."""


def of_environment() -> dict[str, Any]:
    """Return TLS, AUTH and compression of a run's clients, in whichever of its processes."""
    options: dict[str, Any] = {}
    if ca_file := os.environ.get(TLS_VARIABLE):
        options["tls"] = TlsConfig(ca_file=ca_file)
    if FILE_VARIABLE in os.environ:
        options["auth_secret"] = current_secret
    if compression := os.environ.get(COMPRESSION_VARIABLE):
        options["compression"] = Compression(compression)
    return options
