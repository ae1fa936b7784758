"""Tells what happens to the partitions of a producer: log lines and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.errors import ServerError
from nsq_ha.events import Connected, Disconnected, Recovered, Refused, Stalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.observe import Observer
    from nsq_ha.events import Event
    from nsq_ha.producer.actions import Report
    from nsq_ha.producer.state import ProducerConn, ProducerTopic

log: logging.Logger = logging.getLogger("nsq_ha.producer")


def report(observer: Observer, action: Report) -> None:
    """Tell what has happened to a lane."""
    what, lane, error, conn, outage = action
    name, topic, is_plain = lane.name, lane.topic.name, lane.number_on_wire is None
    nsqd = None if conn is None else conn.node.address

    def event(kind: Callable[..., Event], **facts: object) -> None:
        observer.event(kind(topic=topic, channel=None, partition=lane.number, **facts))

    place = {"topic": topic} if is_plain else {"topic": topic, "partition": lane.number}
    if what == "connected":
        log.info("%s: connected over %s", name, _name(conn))
        event(Connected, nsqd=nsqd)
    elif what == "disconnected":
        event(Disconnected, nsqd=nsqd, reason=str(error))
    elif what == "refused" and isinstance(error, ServerError):
        event(Refused, nsqd=nsqd, code=error.code, text=str(error))
    elif what == "moved":
        log.info("%s: the leader moved from %s", name, _name(conn))
    elif what == "closing":
        log.warning("%s: %s", name, error)
    elif what == "failed" and outage is None:
        log.debug("%s: %s", name, error)
    elif what == "failed" and outage is not None:
        log.warning(
            "%s: nothing published %sfor %.0f s (%d failures): %s; %s",
            name,
            "to an nsqd " if is_plain else "",
            *outage,
            error,
            f"publishes {'go to another one, or ' if is_plain else ''}wait up to their time limit",
            extra=place,
        )
        event(Stalled, **outage._asdict(), reason=str(error))
    elif what == "recovered" and outage is not None:
        to = f"to nsqd {nsqd} " if is_plain and conn is not None else ""
        log.warning("%s: publishing %sworks again after %.0f s (%d failures)", name, to, *outage, extra=place)
        event(Recovered, **outage._asdict())


def repartitioned(topic: ProducerTopic, before: int, after: int) -> None:
    """Tell that keys move."""
    log.warning("%s: the number of partitions changed from %d to %d, so keys move", topic.name, before, after)


def _name(conn: ProducerConn | None) -> str:
    return "" if conn is None else str(conn.handle.name)
