"""The common part of the two clients that use both clusters."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from nsq_ha.engine.single_use import SingleUseClient
from nsq_ha.policy.health import OK
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.stats import Health

if TYPE_CHECKING:
    from nsq_ha.policy.health import Trouble


class ClientPair(SingleUseClient):
    """A client for each cluster."""

    @abstractmethod
    def _clients(self) -> tuple[SingleUseClient, SingleUseClient]:
        """Return the client of the previous cluster and that of the current one."""

    def health(self, *, patience: float = FIRST_WARNING) -> Health:
        """Return whether both clients work, and why not.

        Args:
            patience: Seconds of trouble after which a client is unhealthy.
        """
        found = [client.health(patience=patience) for client in self._clients()]
        texts = [
            f"{name} cluster: {each.reason}"
            for name, each in zip(("previous", "current"), found, strict=True)
            if each.reason != OK and (not each or all(found))
        ]
        return Health(is_healthy=all(found), reason="; ".join(texts) or OK)

    def _troubles(self) -> list[Trouble]:
        return []
