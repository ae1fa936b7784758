"""Tells what happens to the partitions of a consumer: log lines and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.engine.observe import PartitionReports
from nsq_ha.errors import RemoteProtocolError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.actions import Absent, PartitionEvent
    from nsq_ha.consumer.inflight import ReadPartition
    from nsq_ha.engine.lookups import TopicWatch

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


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
        self._of_topic = PartitionReports(watch.observer, watch.topic, channel, None)
        self._of_partitions: dict[ReadPartition, PartitionReports] = {}

    def of(self, partition: ReadPartition) -> PartitionReports:
        """Return what passes the events of a partition on."""
        found = self._of_partitions.get(partition)
        if found is None:
            watch = self._watch
            found = PartitionReports(watch.observer, watch.topic, self._channel, partition.number)
            self._of_partitions[partition] = found
        return found

    def report(self, event: PartitionEvent) -> None:
        """Tell what has happened to a partition."""
        what, partition, node, error, conn, outage = event
        name, address = self._watch.name_of(partition.number), "" if node is None else node.address
        to, connection = self.of(partition), "" if conn is None or conn.handle is None else conn.handle.name
        if what == "subscribed":
            log.info("subscribed to %s over %s", name, connection)
            to.connected(address)
        elif what == "replaced":
            log.debug("%s: opened another connection to nsqd %s, %s", name, address, connection)
        elif what == "disconnected":
            to.disconnected(error)
        elif what == "failed":
            self._failed(event, name, address)
        elif what == "settled" and outage is not None:
            # At the same level as the warning, so that whoever saw that sees this, too.
            log.warning("%s at nsqd %s: reading again after %.0f s", name, address, outage.seconds)
            to.recovered(outage)
        elif what == "refused" and isinstance(error, ServerError):
            to.refused(error, address)
        elif what == "final":
            log.error("%s at nsqd %s: %s", name, address, error)
        elif what == "moved":
            log.info("%s: the leader moved from %s", name, connection)
        elif what == "gone":
            self._gone(partition, name)

    def _gone(self, partition: ReadPartition, name: str) -> None:
        self._of_partitions.pop(partition, None)
        if name == self._watch.topic:
            log.info("%s: an nsqd that is no longer listed is not read any more", name)
        else:
            log.info("%s is no longer a partition of the topic", name)

    def _failed(self, event: PartitionEvent, name: str, address: str) -> None:
        """Log a failure, as a warning if failures have lasted long enough."""
        outage, error, said = event.outage, event.error, str(event.error)
        if address:  # many reasons begin with the address
            said = f"{name} at nsqd {address}: {said.removeprefix(address).removeprefix(':').lstrip()}"
        if outage is not None:
            log.warning("%s; still trying after %.0f s and %d failures", said, outage.seconds, outage.failures)
            self.of(event.partition).stalled(outage, error)
        elif event.partition.outage.failures > 1:
            log.debug("%s", said)
        else:
            # The next connection may seem sound until nsqd delivers the same message again, a message timeout later.
            log.log(logging.WARNING if isinstance(error, RemoteProtocolError) else logging.INFO, "%s", said)

    def absent(self, report: Absent) -> None:
        """Tell that there is nothing to read, or that there is something again."""
        outage, name = report.outage, f"{self._watch.topic}/{self._channel}"
        if report.is_over:
            log.warning("%s: found the topic after %.0f s", name, outage.seconds)
            self._of_topic.recovered(outage)
        else:
            self.has_warned = True
            why = self._why_not()
            log.warning("%s: nothing to read for %.0f s: %s; still looking", name, outage.seconds, why)
            self._of_topic.stalled(outage, why)
