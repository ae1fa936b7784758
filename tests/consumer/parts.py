"""Doubles of a consumer's parts: a delivery without a connection that keeps the answers, and a ledger that notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsq_ha.consumer.delivery import Delivery, DeliveryCounts
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.types import Backoff

if TYPE_CHECKING:
    from nsq_ha.consumer.ledger import Ledger
    from nsq_ha.identity import MessageIdentity
    from nsq_ha.message import Message, Watch


class Reports:
    """Takes what deliveries report."""

    topic, channel = "orders", "ch"
    config = ConsumerConfig(
        requeue_backoff=Backoff(initial=2.0, maximum=30.0, factor=3.0, jitter=0.5), handler_backoff=None
    )

    def __init__(self) -> None:
        self.takes = False
        self.freed_times = 0
        self.late_answers: list[tuple[bytes, str]] = []
        self.requeued_messages: list[bytes] = []
        self.given_back_messages: list[bytes] = []
        self.interrupted_messages: list[bytes] = []
        self.finished_messages: list[tuple[Message, Watch]] = []
        self.unsettled_messages: list[MessageIdentity] = []

    def freed(self) -> None:
        self.freed_times += 1

    def late(self, message: Message, answer: str) -> None:
        self.late_answers.append((message.id, answer))

    def requeued(self, message: Message, _delay: float | None) -> bool:
        self.requeued_messages.append(message.id)
        return self.takes

    def given_back(self, message: Message) -> None:
        self.given_back_messages.append(message.id)

    def interrupted(self, message: Message) -> bool:
        self.interrupted_messages.append(message.id)
        return self.takes

    def finished(self, message: Message, watch: Watch, _: Delivery) -> None:
        self.finished_messages.append((message, watch))

    def unsettled(self, message: MessageIdentity) -> None:
        self.unsettled_messages.append(message)


def delivery_for(reports: object, partition: int = 3, **options: Any) -> Delivery:  # noqa: ANN401 - Delivery's
    """Return a delivery that reports to a double."""
    ledger: Any = reports
    return Delivery(ledger, partition, DeliveryCounts(), **{"is_ordered": False, **options})


class Source(Delivery):
    """A delivery that keeps the answers.

    Args:
        ledger: Where it reports. None for a double.
        msg_timeout: Seconds after which the server requeues a message.
        is_ordered: The channel is read in order.

    Attributes:
        answers: Number of the message, and ``finish``, ``dropped`` or the delay of a requeue.
    """

    def __init__(self, ledger: Ledger | None = None, *, msg_timeout: float = 60.0, is_ordered: bool = False) -> None:
        given: Any = Reports() if ledger is None else ledger
        super().__init__(given, 3, DeliveryCounts(), is_ordered=is_ordered)
        self.nsqd, self.is_alive, self.msg_timeout = "here:4150", True, msg_timeout
        self.answers: list[tuple[int, object]] = []

    def finish(self, message: Message) -> None:
        if message.watch is not None:
            self.finish_watched(message, message.watch)
        else:
            self.answers.append((message.internal_id & 1023, "finish"))

    def requeue(self, message: Message, delay: float | None) -> None:
        if not self._ledger.requeued(message, delay):
            self.answers.append((message.internal_id & 1023, delay))

    def give_back(self, message: Message) -> None:
        self._ledger.given_back(message)
        if self.is_alive:
            self.answers.append((message.internal_id & 1023, 0))

    def touch(self, message: Message) -> None:
        self.answers.append((message.internal_id & 1023, "touch"))

    def dropped(self) -> None:
        self.answers.append((0, "dropped"))
