"""Publishing of messages that were given up, and the checks that this will work.

A message whose publish fails is requeued and comes again, so a wrong option would show only as a log line, repeated
forever. Everything that is known is checked before: the options when the consumer is made, the producer and the topic
of dead letters when it is entered, headers when the topic is looked up.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

from nsq_ha.config import ClientConfig
from nsq_ha.discovery.watcher import Directory
from nsq_ha.errors import ConfigError, TopicNotFoundError
from nsq_ha.transport.entering import EnteredOnce, check_entered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.config import ConsumerConfig
    from nsq_ha.message import Message
    from nsq_ha.policy.topology import TopicMeta, TopicView

log = logging.getLogger("nsq_ha.consumer")


class Publisher(Protocol):
    """What the give-up policies need of a producer; :class:`~nsq_ha.Producer` has it."""

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
    ) -> object:
        """Publish one message."""


class GiveUpPublisher:
    """Publishes given-up messages, for ``on_give_up="republish"`` and ``"dead_letter"``.

    Args:
        config: The consumer's options.
        topic: The consumer's topic.
        producer: The producer. None for the policies that publish nothing.

    Raises:
        ConfigError: The producer is missing, would not be used, or is none; or the consumer would read its own dead
            letters.
    """

    def __init__(self, config: ConsumerConfig, topic: str, producer: Publisher | None) -> None:
        policy = config.on_give_up
        self._is_needed = policy in ("republish", "dead_letter")
        _check_type(producer)
        if self._is_needed and producer is None:
            raise ConfigError(f"on_give_up={policy!r} publishes: give producer=")
        if policy == "drop" and producer is not None:
            raise ConfigError(
                "producer= would not be used, since on_give_up='drop' loses messages for good: give"
                " on_give_up='dead_letter' or 'republish', or no producer"
            )
        if config.dead_letter_topic == topic:
            raise ConfigError(
                f"dead_letter_topic {topic!r} is the consumer's own topic, so its dead letters would come again:"
                f" name another topic, or give on_give_up='republish'"
            )
        self._config = config
        self._producer = producer
        options = getattr(producer, "config", None)
        self._options = options if isinstance(options, ClientConfig) else None
        self._is_plain = self._options is not None and bool(self._options.nsqd)
        self._has_no_headers = self._is_plain

    async def check(self) -> None:
        """Check the producer, and that the topic of dead letters exists.

        Raises:
            ConfigError: The producer was not entered, or belongs to another event loop.
            ClosedError: The producer is closed.
            TopicNotFoundError: The topic of dead letters does not exist.
        """
        if not self._is_needed:
            return
        if isinstance(self._producer, EnteredOnce):
            check_entered(self._producer)
        topic, options = self._config.dead_letter_topic, self._options
        if topic is None or options is None or not options.lookupd:
            return  # another kind of producer, or nsqds that create topics by themselves
        view = await self._look_up(topic, options)
        if view is None:
            return
        if not view.exists:
            raise TopicNotFoundError(f"dead_letter_topic {topic!r} does not exist: create it (nsq-ha topic create)")
        if "channel" in view.note.lower():
            log.warning("dead_letter_topic %r accepts no messages yet (%s): subscribe to it once", topic, view.note)
        self._has_no_headers = view.meta is not None and not view.meta.extend_support

    def refusal(self, topic: str, meta: TopicMeta) -> ConfigError | None:
        """Return the error if the topic's messages may have headers, and the topic of dead letters takes none."""
        letters = self._config.dead_letter_topic
        if letters is None or not self._has_no_headers or not meta.extend_support:
            return None
        return ConfigError(
            f"messages of topic {topic!r} may have headers or a tag, and dead_letter_topic {letters!r} takes neither:"
            f" create it as an extended topic (nsq-ha topic create --extended)"
        )

    async def publish(self, message: Message) -> None:
        """Publish a message by the policy; do nothing if the policy publishes nothing.

        Raises:
            NsqError: It was not stored, or may not have been.
        """
        if self._producer is None or not self._is_needed:
            return
        options: dict[str, Any] = {}
        if message.ext:
            options |= {"headers": message.headers, "tag": message.tag}
        if not self._is_plain:  # nsqds without partitions know neither keys nor traces
            options["trace_id"] = message.trace_id or None
        letters = self._config.dead_letter_topic
        if letters is None:
            if not self._is_plain:
                options["partition"] = message.partition
            await self._producer.publish(message.topic, message.body, **options)
        else:
            if not self._is_plain:
                options["key"] = f"{message.topic}-{message.partition}"
            await self._producer.publish(letters, message.body, **options)

    async def _look_up(self, topic: str, options: ClientConfig) -> TopicView | None:
        """Ask the producer's nsqlookupds. Return None if none answers in time."""
        directory = Directory(options, access="w")
        try:
            async with asyncio.timeout(self._config.start_timeout):
                await directory.start()
                watch = directory.watch(topic)
                await watch.next_round()
        except TimeoutError:
            return None
        finally:
            await directory.aclose()
        return watch.view


def _check_type(producer: object) -> None:
    if isinstance(producer, type):
        name = producer.__name__
        raise ConfigError(f"producer is the class {name}: give an object, as in `async with {name}(...) as producer`")
    if producer is not None and not callable(getattr(producer, "publish", None)):
        raise ConfigError(f"producer must be a Producer, not {type(producer).__name__}")
