"""Tells what happens to the partitions of a producer: log lines and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.engine.observe import Observer, PartitionReports
from nsq_ha.errors import NsqError, ServerError
from nsq_ha.producer.state import Lane, ProducerConn, ProducerTopic

if TYPE_CHECKING:
    from nsq_ha.policy.timing import Warned

log: logging.Logger = logging.getLogger("nsq_ha.producer")


class Reports:
    """Writes the log, and calls the application's ``on_event``.

    Args:
        observer: The producer's.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def report(
        self, what: str, lane: Lane, error: NsqError | None, conn: ProducerConn | None, outage: Warned | None
    ) -> None:
        """Tell what has happened to a lane, see :class:`~nsq_ha.producer.actions.Report`."""
        to = self._of(lane)
        if what == "failed":
            self._failed(lane, error, outage)
        elif what == "recovered":
            self._recovered(lane, conn, outage)
        elif what == "connected" and conn is not None:
            log.info("%s: connected over %s", lane.name, _name(conn))
            to.connected(conn.node.address)
        elif what == "disconnected":
            to.disconnected(error)
        elif what == "refused" and conn is not None and isinstance(error, ServerError):
            to.refused(error, conn.node.address)
        elif what == "moved" and conn is not None:
            log.info("%s: the leader moved from %s", lane.name, _name(conn))
        elif what == "closing":
            log.warning("%s: %s", lane.name, error)

    def repartitioned(self, topic: ProducerTopic, before: int, after: int) -> None:
        """Tell that keys move."""
        log.warning("%s: the number of partitions changed from %d to %d, so keys move", topic.name, before, after)

    def _of(self, lane: Lane) -> PartitionReports:
        if lane.handle is None:
            lane.handle = PartitionReports(self._observer, lane.topic.name, None, lane.number)
        reports: PartitionReports = lane.handle
        return reports

    def _failed(self, lane: Lane, error: Exception | None, outage: Warned | None) -> None:
        """Log a failure, as a warning if failures have lasted long enough."""
        if outage is None:
            log.debug("%s: %s", lane.name, error)
            return
        is_plain = lane.number_on_wire is None
        log.warning(
            "%s: nothing published %sfor %.0f s (%d failures): %s; %s",
            lane.name,
            "to an nsqd " if is_plain else "",
            outage.seconds,
            outage.failures,
            error,
            f"publishes {'go to another one, or ' if is_plain else ''}wait up to their time limit",
            extra=_extra(lane),
        )
        self._of(lane).stalled(outage, error)

    def _recovered(self, lane: Lane, conn: ProducerConn | None, outage: Warned | None) -> None:
        """Log the end of an outage that was warned about."""
        if outage is None:
            return
        log.warning(
            "%s: publishing %sworks again after %.0f s (%d failures)",
            lane.name,
            f"to nsqd {conn.node.address} " if lane.number_on_wire is None and conn is not None else "",
            outage.seconds,
            outage.failures,
            extra=_extra(lane),
        )
        self._of(lane).recovered(outage)


def _name(conn: ProducerConn) -> str:
    return conn.node.address if conn.handle is None else str(conn.handle.name)


def _extra(lane: Lane) -> dict[str, object]:
    of_topic: dict[str, object] = {"topic": lane.topic.name}
    return of_topic if lane.number_on_wire is None else of_topic | {"partition": lane.number}
