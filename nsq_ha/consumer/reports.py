"""Tells what happens to the messages of a consumer: log lines and events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.failures import facts
from nsq_ha.engine import observe
from nsq_ha.events import BackoffChanged, FinishedAgain
from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from nsq_ha.consumer.answers import Said
    from nsq_ha.consumer.machine import FinishedCopy
    from nsq_ha.consumer.pause import Paused
    from nsq_ha.engine.observe import Observer

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
