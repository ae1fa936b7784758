"""One partition's failures: which of them end its subscription, and which are logged (``policy.timing``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.fixed import explained
from nsq_ha.errors import (
    AuthError,
    BadNameError,
    ChannelNotRegisteredError,
    InvalidCommandError,
    MessageRefusedError,
    NsqError,
    RemoteProtocolError,
    ServerError,
    SubscribeRefusedError,
    TlsRequiredError,
)
from nsq_ha.policy.permission import RENEWABLE
from nsq_ha.policy.timing import Outage

if TYPE_CHECKING:
    from nsq_ha.engine.observe import PartitionReports
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import Node

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_MUST_BE_ORDERED: Final = "E_SUB_ORDER_IS_MUST"

_PERMANENT: Final = (
    BadNameError,
    ChannelNotRegisteredError,
    InvalidCommandError,
    MessageRefusedError,
    TlsRequiredError,
)


class PartitionTrouble:
    """The failures of one partition, from the first one until a subscription has lasted for a while.

    Attributes:
        reason: Why the partition is not being read. None while it is.
    """

    def __init__(self, topic: str, name: str, config: ConsumerConfig, reports: PartitionReports) -> None:
        self.reason: NsqError | None = None
        self._reports = reports
        self._topic = topic
        self._name = name
        self._config = config
        self._outage = Outage()
        self._since = 0.0
        self._was_subscribed = False

    @property
    def since(self) -> float | None:
        """When the first failure occurred, in the loop's time. None if nothing is wrong."""
        return self._outage.began_at

    @property
    def is_open(self) -> bool:
        """Whether something failed and nothing has settled since."""
        return self._outage.began_at is not None

    def ends(self, error: NsqError) -> bool:
        """Return whether a failed attempt ends the subscription, since retries cannot fix ``error``."""
        if isinstance(error, AuthError):
            renews = self._was_subscribed and self._config.auth_secret is not None and error.code in RENEWABLE
            return not (error.retriable or renews)
        if isinstance(error, ChannelNotRegisteredError) and self._was_subscribed:
            return False  # another leader may not have got the channel from the nsqlookupds yet
        if isinstance(error, _PERMANENT):
            return True
        if self._config.nsqd:  # without nsqlookupd, nothing says whether the topic is ordered
            return isinstance(error, SubscribeRefusedError)
        return isinstance(error, ServerError) and error.code == _MUST_BE_ORDERED and self._config.ordered is False

    def explained(self, error: NsqError) -> NsqError:
        """Return the error to report."""
        return explained(error, self._topic) if self._config.nsqd else error

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
        said = str(reason)
        if node is not None:  # many reasons begin with the address
            said = f"{self._name} at nsqd {node.address}: {said.removeprefix(node.address).removeprefix(':').lstrip()}"
        warned = self._outage.warning(now)
        if warned is None:
            log.log(self._level(reason), "%s", said)
            return
        log.warning("%s; still trying after %.0f s and %d failures", said, warned.seconds, warned.failures)
        self._reports.stalled(warned, reason)

    def _level(self, reason: NsqError) -> int:
        """Return the level of a failure that is not warned about because of its duration."""
        if self._outage.failures > 1:
            return logging.DEBUG
        # The next connection may seem sound until nsqd delivers the same message again, a message timeout later.
        return logging.WARNING if isinstance(reason, RemoteProtocolError) else logging.INFO

    def subscribed(self, now: float) -> None:
        """Record that messages may arrive, perhaps not for long."""
        self.reason = None
        self._since = now
        self._was_subscribed = True

    def settled(self, node: Node) -> None:
        """Record that the subscription has lasted; log it if its failures were logged."""
        over = self._outage.recovered(self._since)
        if over is not None:
            # At the same level as the warning, so that whoever saw that sees this, too.
            log.warning("%s at nsqd %s: reading again after %.0f s", self._name, node.address, over.seconds)
            self._reports.recovered(over)
