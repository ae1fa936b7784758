"""Publish given-up messages, and check that this will work.

If that publish fails, the message is requeued and delivered again, so a wrong option would show only as a log line,
repeated forever. Therefore all that is known is checked first: the options when the consumer is created, the producer
and the dead-letter topic when it is entered, headers when the topic is looked up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from nsq_ha.dead_letters.provenance import Failure, Provenance
from nsq_ha.dead_letters.writing import forms
from nsq_ha.engine.engine import Lookups
from nsq_ha.engine.single_use import SingleUseClient, check_entered
from nsq_ha.errors import ConfigError, MessageRefusedError, PublishError, TopicNotFoundError
from nsq_ha.message import as_stored
from nsq_ha.options.config import ClientConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import TopicMeta, TopicView

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Publisher(Protocol):
    """The part of :class:`~nsq_ha.Producer` that the give-up policies need."""

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
        ConfigError: The producer is missing, unused or of another type; or the consumer would read its own dead
            letters.
    """

    def __init__(self, config: ConsumerConfig, topic: str, producer: Publisher | None) -> None:
        policy = config.on_give_up
        self._is_needed = policy in ("republish", "dead_letter")
        _check_type(producer)
        if self._is_needed and producer is None:
            raise ConfigError(f"on_give_up={policy!r} publishes: give producer=")
        if (policy is None or policy == "drop") and producer is not None:
            raise ConfigError(
                "producer= would not be used, since on_give_up='drop' (the default) loses messages permanently: give"
                " on_give_up='dead_letter' or 'republish', or no producer"
            )
        if config.dead_letter_topic == topic:
            raise ConfigError(
                f"dead_letter_topic {topic!r} is the consumer's own topic, so the consumer would read its dead letters:"
                f" name another topic, or give on_give_up='republish'"
            )
        self._config = config
        self._topic = topic
        self._producer = producer
        options = getattr(producer, "config", None)
        self._options = options if isinstance(options, ClientConfig) else None
        # Whether the producer's cluster is a plain one. None if only a lookup can tell.
        self._is_plain: bool | None = False
        self._takes_headers: bool | None = None
        if self._options is not None and self._options.nsqd:
            self._is_plain, self._takes_headers = True, False
            self._check_format("plain nsqd")
        elif self._options is not None:
            self._is_plain = None

    def ask_nobody(self) -> None:
        """Make no lookups: the consumer is a fake one, without a cluster."""
        self._options = None
        self._is_plain = bool(self._is_plain)

    async def check(self) -> None:
        """Check the producer, and that its cluster has the topic to publish to.

        Dead letters may go to another cluster. Republished messages may not: they belong to the topic that is read.

        Raises:
            ConfigError: The producer was not entered, belongs to another event loop, or would republish to another
                cluster.
            ClosedError: The producer is closed.
            TopicNotFoundError: The dead-letter topic does not exist.
        """
        if not self._is_needed:
            return
        if isinstance(self._producer, SingleUseClient):
            check_entered(self._producer)
        topic, options = self._config.dead_letter_topic, self._options
        if options is None or not options.lookupd:
            return  # another kind of producer, or nsqds that create topics automatically
        if topic is None:
            await self._check_same_cluster(options)
            return
        view = await self._look_up(topic, options)
        if view is None:
            return
        self._learn(view)
        if view.is_plain:  # nsqd creates the topic at the first publish
            self._check_format("a plain cluster")
            return
        if not view.exists:
            raise TopicNotFoundError(
                f"dead_letter_topic {topic!r} does not exist in the producer's cluster (lookupd={_listed(options)}):"
                f" create it there (nsq-ha topic create)"
            )
        if "channel" in view.note.lower():
            log.warning("dead_letter_topic %r accepts no messages yet (%s): subscribe to it once", topic, view.note)
        self._check_format(f"topic {topic!r}")

    def _learn(self, view: TopicView) -> None:
        """Record whether the topic to publish to takes keys, traces and headers."""
        self._is_plain = view.is_plain
        self._takes_headers = False if view.is_plain else None if view.meta is None else view.meta.extend_support

    def _check_format(self, place: str) -> None:
        """Check that dead letters may have headers there, if the application asks for them.

        Raises:
            ConfigError: They may not.
        """
        if self._config.dead_letter_format == "headers" and self._takes_headers is False:
            raise ConfigError(
                f"dead_letter_format='headers' needs an extended topic, and {place} accepts no headers: create it as"
                f" an extended topic (nsq-ha topic create --extended), or give dead_letter_format='auto'"
            )

    async def _check_same_cluster(self, options: ClientConfig) -> None:
        """Check that the producer republishes to the consumer's cluster, if both have nsqlookupds.

        Raises:
            ConfigError: Other nsqds lead the topic in the producer's cluster, or it has no such topic.
        """
        mine = self._config
        if not mine.lookupd or set(mine.lookupd) & set(options.lookupd):
            return
        read, written = await asyncio.gather(self._look_up(self._topic, mine), self._look_up(self._topic, options))
        if read is None or written is None or not read.leaders:
            return
        # An nsqd has the same address at every nsqlookupd.
        nodes = [{node.address for node in view.leaders.values()} for view in (read, written)]
        if not written.exists or (nodes[1] and not nodes[0] & nodes[1]):
            raise ConfigError(
                f"on_give_up='republish' would publish messages of topic {self._topic!r} to another cluster: the"
                f" producer's lookupd={_listed(options)} names none of its nsqds, the consumer's"
                f" lookupd={_listed(mine)} names {', '.join(sorted(nodes[0]))}. Give a producer of the consumer's"
                f" cluster, or on_give_up='dead_letter', whose topic may be in another one"
            )

    def refusal(self, topic: str, meta: TopicMeta) -> ConfigError | None:
        """Return an error if bare dead letters would lose the headers that messages of the topic may have."""
        letters = self._config.dead_letter_topic
        is_bare = self._config.dead_letter_format == "bare"
        if letters is None or not is_bare or self._takes_headers is not False or not meta.extend_support:
            return None
        cure = "" if self._is_plain else ", or create it as an extended topic (nsq-ha topic create --extended)"
        return ConfigError(
            f"messages of topic {topic!r} may have headers or a tag, and dead_letter_topic {letters!r} takes neither:"
            f" give dead_letter_format='auto'{cure}"
        )

    async def publish(self, message: Message, why: Failure | None = None) -> None:
        """Publish a message by the policy; do nothing if the policy publishes nothing.

        Args:
            message: The message.
            why: Why it is given up. None if it was delivered too often, without a failure that this consumer knows.

        Raises:
            NsqError: It was not stored, or may not have been.
        """
        if self._producer is None or not self._is_needed:
            return
        message = as_stored(message)
        letters, producer_options = self._config.dead_letter_topic, self._options
        if self._is_plain is None and producer_options is not None:
            view = await self._look_up(letters or message.topic, producer_options)
            if view is not None:
                self._learn(view)
        options: dict[str, Any] = {}
        if not self._is_plain:  # nsqds without partitions know neither keys nor traces
            options["trace_id"] = message.trace_id or None
            if letters is None:
                options["partition"] = message.partition
            else:
                options["key"] = f"{message.topic}-{message.partition}"
        if letters is not None:
            await self._publish_letter(self._producer, letters, message, why, options)
            return
        if message.ext:
            options |= {"headers": message.headers, "tag": message.tag}
        await self._producer.publish(message.topic, message.body, **options)

    async def _publish_letter(
        self, producer: Publisher, topic: str, message: Message, why: Failure | None, options: dict[str, Any]
    ) -> None:
        """Publish a dead letter in the first form that the topic accepts."""
        origin = Provenance.of(message, why or Failure("redelivered"), time.time())
        refusal: Exception | None = None
        wanted = self._config.dead_letter_format
        for written in forms(message, origin, wanted, takes_headers=self._takes_headers):
            more: dict[str, Any] = {}
            if written.headers is not None or written.tag is not None:
                more = {"headers": written.headers, "tag": written.tag}
            try:
                await producer.publish(topic, written.body, **options, **more)
            except (ConfigError, PublishError) as error:
                if not _is_refused(error):
                    raise
                refusal = error
                continue
            if written.lacks:
                log.warning(
                    "the dead letter of %r lacks %s (%s), since the whole was refused: %s",
                    message,
                    written.lacks,
                    why,
                    refusal,
                )
            return
        raise ConfigError(
            f"dead_letter_topic {topic!r} accepts {message!r} in no form that keeps its headers: create it as an"
            f" extended topic, or raise the server's limit ({refusal})"
        ) from refusal

    async def _look_up(self, topic: str, options: ClientConfig) -> TopicView | None:
        """Ask the nsqlookupds of ``options``. Return None if none answers in time."""
        lookups = Lookups(options, access="w")
        try:
            async with asyncio.timeout(self._config.start_timeout):
                await lookups.start()
                watch = lookups.watch(topic)
                await watch.next_round()
        except TimeoutError:
            return None
        finally:
            await lookups.aclose()
        return watch.view


def _is_refused(error: ConfigError | PublishError) -> bool:
    """Return whether another form of the message may be accepted; this one was not stored."""
    return isinstance(error, ConfigError) or (
        not error.maybe_stored and isinstance(error.__cause__, MessageRefusedError)
    )


def _listed(options: ClientConfig) -> str:
    return ",".join(options.lookupd)


def _check_type(producer: object) -> None:
    if isinstance(producer, type):
        name = producer.__name__
        raise ConfigError(f"producer is the class {name}: give an object, as in `async with {name}(...) as producer`")
    if producer is not None and not callable(getattr(producer, "publish", None)):
        raise ConfigError(f"producer must be a Producer, not {type(producer).__name__}")
