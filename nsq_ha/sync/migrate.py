"""The producer for threads that publishes to two clusters."""

from __future__ import annotations

import nsq_ha
from nsq_ha.errors import ConfigError
from nsq_ha.migrate import MigratingProducer as AsyncProducer
from nsq_ha.migrate import Share
from nsq_ha.sync.facade import Facade, does, reads, waits
from nsq_ha.sync.producer import Producer


class MigratingProducer(Facade[AsyncProducer]):
    """Publishes to two clusters from any thread: :class:`nsq_ha.migrate.MigratingProducer` whose methods wait.

    Use it with ``with``, or keep it for as long as the process runs, as a :class:`nsq_ha.sync.Producer`.

    Args:
        previous: A producer with the options for the cluster to leave. It is not started itself.
        current: A producer with the options for the cluster to move to. It is not started itself.
        share: As for :class:`nsq_ha.migrate.MigratingProducer`.
        refresh_interval: As for :class:`nsq_ha.migrate.MigratingProducer`.

    Raises:
        ConfigError: A share is not valid, or both producers are the same one.
    """

    def __init__(
        self,
        previous: Producer,
        current: Producer,
        *,
        share: Share,
        refresh_interval: float = 1.0,
    ) -> None:
        """Check the arguments; connect to nothing yet."""
        for name, producer in (("previous", previous), ("current", current)):
            if not isinstance(producer, Producer):
                raise ConfigError(f"{name} must be a nsq_ha.sync.Producer, not {type(producer).__name__}")
        if previous is current:
            raise ConfigError("previous and current are the same producer: give one for each cluster")

        def make() -> AsyncProducer:
            one, other = (nsq_ha.Producer(config=each.config) for each in (previous, current))
            return AsyncProducer(one, other, share=share, refresh_interval=refresh_interval)

        super().__init__(make)
        self._call_limit = max(previous.config.publish_timeout, current.config.publish_timeout)
        self._close_limit = max(previous.config.close_timeout, current.config.close_timeout)

    publish = waits(AsyncProducer.publish)
    publish_many = waits(AsyncProducer.publish_many)
    set_share = does(AsyncProducer.set_share)
    share_of = does(AsyncProducer.share_of)
    health = reads(AsyncProducer.health)

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self._client.is_healthy

    @property
    def moving(self) -> int:
        """Number of publishes and batches that wait until a key has moved."""
        return self._client.moving
