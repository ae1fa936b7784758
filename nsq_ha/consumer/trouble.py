"""Log one partition's failures; ``policy.timing`` decides when."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.policy.timing import Outage

if TYPE_CHECKING:
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.topology import Node

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Trouble:
    """The failures of one partition, from the first one until a subscription has lasted for a while.

    Attributes:
        reason: Why the partition is not read now; None while it is.
    """

    def __init__(self, topic: str, partition: int) -> None:
        """Start without failures."""
        self.reason: NsqError | None = None
        self._name = f"{topic}-{partition}"
        self._outage = Outage()
        self._since = 0.0

    @property
    def is_open(self) -> bool:
        """Whether something failed and nothing has settled since."""
        return self._outage.began_at is not None

    def failed(self, now: float, reason: NsqError, node: Node | None = None) -> None:
        """Record a failure, and warn if it is time.

        Args:
            now: The loop's time.
            reason: What happened.
            node: The nsqd that failed. None if none did; then the reason names the partition.
        """
        self.reason = reason
        self._since = now
        self._outage.failed(now)
        said = str(reason) if node is None else f"{self._name} at nsqd {node.address}: {reason}"
        warned = self._outage.warning(now)
        if warned is None:
            log.log(logging.INFO if self._outage.failures == 1 else logging.DEBUG, "%s", said)
            return
        log.warning("%s; still trying after %.0f s and %d failures", said, warned.seconds, warned.failures)

    def subscribed(self, now: float) -> None:
        """Record that messages may arrive, which may not last."""
        self.reason = None
        self._since = now

    def settled(self, node: Node | None) -> None:
        """Record that the subscription has lasted; log it if the failures were."""
        over = self._outage.recovered(self._since)
        if over is not None:
            address = node.address if node is not None else "?"
            # At the same level as the warning, so that it is shown wherever that was.
            log.warning("%s at nsqd %s: reading again after %.0f s", self._name, address, over.seconds)
