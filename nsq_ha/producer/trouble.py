"""Log one partition's failures; ``policy.outage`` decides when."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.policy.outage import Outage

if TYPE_CHECKING:
    from nsq_ha.errors import NsqError

log = logging.getLogger("nsq_ha.producer")


class Trouble:
    """Logs the failures of publishing to one partition.

    Attributes:
        is_on: The last publish, or the last attempt to write one, failed.
    """

    def __init__(self, topic: str, partition: int) -> None:
        """Start without an outage."""
        self.is_on = False
        self._name = f"{topic}-{partition}"
        self._extra = {"topic": topic, "partition": partition}
        self._outage = Outage()

    def failed(self, now: float, error: NsqError) -> None:
        """Record a failure; warn if the outage has lasted long enough."""
        self.is_on = True
        self._outage.failed(now)
        warned = self._outage.warning(now)
        if warned is None:
            log.debug("%s: %s", self._name, error)
            return
        log.warning(
            "%s: nothing published for %.0f s (%d failures): %s; publishes wait up to their time limit",
            self._name,
            warned.seconds,
            warned.failures,
            error,
            extra=self._extra,
        )

    def recovered(self, now: float) -> None:
        """Record that a publish was stored; log it if the outage was."""
        self.is_on = False
        over = self._outage.recovered(now)
        if over is not None:
            log.warning(
                "%s: publishing works again, after %.0f s (%d failures)",
                self._name,
                over.seconds,
                over.failures,
                extra=self._extra,
            )
