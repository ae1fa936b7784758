"""The common part of the two clients that use both clusters."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from nsq_ha.engine.single_use import SingleUseClient
from nsq_ha.errors import ConfigError
from nsq_ha.policy.health import OK, Trouble
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.stats import Health

_Client = TypeVar("_Client", bound=SingleUseClient)


class ClientPair(SingleUseClient, Generic[_Client]):
    """A client for each cluster.

    Args:
        kind: What both are.
        previous: The client of the cluster to leave.
        current: The client of the cluster to move to.

    Raises:
        ConfigError: One is something else, or both are the same one.
    """

    def __init__(self, kind: type[_Client], previous: _Client, current: _Client) -> None:
        for name, client in (("previous", previous), ("current", current)):
            if not isinstance(client, kind):
                raise ConfigError(f"{name} must be a {kind.__name__}, not {type(client).__name__}")
        if previous is current:
            what = kind.__name__.lower()
            raise ConfigError(f"previous and current are the same {what}: give one for each cluster")
        self.previous: _Client = previous
        self.current: _Client = current
        self._closing = asyncio.Event()

    def health(self, *, patience: float = FIRST_WARNING) -> Health:
        """Return whether both clients work, and why not.

        Args:
            patience: Seconds of trouble after which a client is unhealthy.
        """
        found = [client.health(patience=patience) for client in (self.previous, self.current)]
        texts = [
            f"{name} cluster: {each.reason}"
            for name, each in zip(("previous", "current"), found, strict=True)
            if each.reason != OK and (not each or all(found))
        ]
        return Health(is_healthy=all(found), reason="; ".join(texts) or OK)

    def _troubles(self) -> list[Trouble]:
        return []
