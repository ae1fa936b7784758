"""Tells what happens to the messages and to the partitions of a consumer: log lines and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.failures import facts
from nsq_ha.engine import observe
from nsq_ha.errors import RemoteProtocolError, ServerError
from nsq_ha.events import BackoffChanged, Connected, Disconnected, FinishedAgain, Recovered, Refused, Stalled
from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.actions import PartitionEvent
    from nsq_ha.consumer.answers import Said
    from nsq_ha.consumer.inflight import ReadPartition
    from nsq_ha.consumer.machine import FinishedCopy
    from nsq_ha.consumer.pause import Paused
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.observe import Observer
    from nsq_ha.events import Event

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class MessageReports:
    """Tells of a consumer's messages, and of its pauses.

    Args:
        name: Topic and channel.
        observer: The consumer's.
    """

    def __init__(self, name: str, observer: Observer) -> None:
        self._name = name
        self._observer = observer
        self._copies = Rarely()
        self._pauses = Rarely()
        self._is_pause_logged = False

    def said(self, said: Said) -> None:
        """Write a line."""
        log.log(logging.WARNING if said.is_warning else logging.DEBUG, "%s: %s", self._name, said.text)

    def finished_copy(self, action: FinishedCopy) -> None:
        """Tell that a message is finished unhandled; after a connection is lost, there may be a thousand."""
        copy = action.message
        if (more := self._copies.more(monotonic())) is not None:
            log.info(
                "%r was handled before, but its FIN was without effect: finishing this copy unhandled%s", copy, more
            )
        self._observer.event(FinishedAgain(**facts(copy)))
        if observe.watched.is_any:
            observe.answered("finish", copy)

    def paused(self, change: Paused) -> None:
        """Tell of a pause after failures, and of its end."""
        if change.state is not None:
            topic, _, channel = self._name.partition("/")
            self._observer.event(
                BackoffChanged(topic=topic, channel=channel, state=change.state, seconds=change.seconds)
            )
        if change.state == "paused" and (missed := self._pauses.take(monotonic())) is not None:
            self._is_pause_logged = True
            log.warning(
                "%s: handlers fail: asking for no messages for %.1f s, then for one as a test (%d in a row failed%s)",
                self._name,
                change.seconds,
                change.level + 1,
                f"; {missed} changes before were not logged" if missed else "",
            )
        elif change.state == "ended" and self._is_pause_logged:
            self._is_pause_logged = False
            log.info(
                "%s: handlers work again, after %.1f s and %d failures: asking for messages as before",
                self._name,
                change.since,
                change.failures,
            )


class ConsumerReports:
    """Writes the log, and calls the application's ``on_event``.

    Args:
        watch: The lookups of the topic.
        channel: The channel.
        why_not: Says why not all partitions are subscribed.

    Attributes:
        has_warned: Whether an absent topic was warned about.
    """

    def __init__(self, watch: TopicWatch, channel: str, why_not: Callable[[], str]) -> None:
        self.has_warned: bool = False
        self._watch = watch
        self._channel = channel
        self._why_not = why_not

    def _tell(self, kind: Callable[..., Event], partition: ReadPartition | None, **facts: object) -> None:
        watch, number = self._watch, None if partition is None else partition.number
        watch.observer.event(kind(topic=watch.topic, channel=self._channel, partition=number, **facts))

    def report(self, event: PartitionEvent) -> None:
        """Tell what has happened to a partition, or to the topic."""
        if event.partition is None:
            self._of_topic(event)
        elif event.what == "failed":
            self._failed(event, event.partition)
        else:
            self._changed(event, event.partition)

    def _changed(self, event: PartitionEvent, partition: ReadPartition) -> None:
        what, _, node, error, conn, outage = event
        name, address = self._watch.name_of(partition.number), "" if node is None else node.address
        connection = "" if conn is None or conn.handle is None else conn.handle.name
        if what == "subscribed":
            log.info("subscribed to %s over %s", name, connection)
            self._tell(Connected, partition, nsqd=address)
        elif what == "replaced":
            log.debug("%s: opened another connection to nsqd %s, %s", name, address, connection)
        elif what == "disconnected":
            self._tell(Disconnected, partition, nsqd=address, reason=str(error))
        elif what == "settled" and outage is not None:
            # At the same level as the warning, so that whoever saw that sees this, too.
            log.warning("%s at nsqd %s: reading again after %.0f s", name, address, outage.seconds)
            self._tell(Recovered, partition, **outage._asdict())
        elif what == "refused" and isinstance(error, ServerError):
            self._tell(Refused, partition, nsqd=address, code=error.code, text=str(error))
        elif what == "final":
            log.error("%s at nsqd %s: %s", name, address, error)
        elif what == "moved":
            log.info("%s: the leader moved from %s", name, connection)
        elif what == "gone":
            is_plain = name == self._watch.topic
            said = ": an nsqd that is no longer listed is not read any more"
            log.info("%s%s", name, said if is_plain else " is no longer a partition of the topic")

    def _failed(self, event: PartitionEvent, partition: ReadPartition) -> None:
        """Log a failure, as a warning if failures have lasted long enough."""
        outage, error, said = event.outage, event.error, str(event.error)
        if event.node is not None:  # many reasons begin with the address
            name, address = self._watch.name_of(partition.number), event.node.address
            said = f"{name} at nsqd {address}: {said.removeprefix(address).removeprefix(':').lstrip()}"
        if outage is not None:
            log.warning("%s; still trying after %.0f s and %d failures", said, *outage)
            self._tell(Stalled, partition, reason=str(error), **outage._asdict())
        elif partition.outage.failures > 1:
            log.debug("%s", said)
        else:
            # The next connection may seem sound until nsqd delivers the same message again, a message timeout later.
            log.log(logging.WARNING if isinstance(error, RemoteProtocolError) else logging.INFO, "%s", said)

    def _of_topic(self, event: PartitionEvent) -> None:
        """Tell that there is nothing to read, or that there is something again."""
        outage, name = event.outage, f"{self._watch.topic}/{self._channel}"
        if outage is None:
            return
        if event.what == "found":
            log.warning("%s: found the topic after %.0f s", name, outage.seconds)
            self._tell(Recovered, None, **outage._asdict())
        else:
            self.has_warned = True
            why = self._why_not()
            log.warning("%s: nothing to read for %.0f s: %s; still looking", name, outage.seconds, why)
            self._tell(Stalled, None, reason=why, **outage._asdict())
