"""Doubles of a consumer's parts: a delivery without a connection that keeps the answers, and a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsq_ha.consumer.delivery import Delivery, DeliveryCounts
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.types import Backoff

if TYPE_CHECKING:
    from nsq_ha.message import Message


class Reports:
    """A ledger that leaves each message to its delivery."""

    topic, channel = "orders", "ch"
    config = ConsumerConfig(
        requeue_backoff=Backoff(initial=2.0, maximum=30.0, factor=3.0, jitter=0.5), handler_backoff=None
    )

    def freed(self) -> None: ...

    def requeued(self, _message: Message, _delay: float | None) -> bool:
        return False

    def given_back(self, message: Message) -> None: ...


def delivery_for(reports: object, partition: int = 3, **options: Any) -> Delivery:  # noqa: ANN401 - Delivery's
    """Return a delivery that reports to a double."""
    ledger: Any = reports
    return Delivery(ledger, partition, DeliveryCounts(), **{"is_ordered": False, **options})


class Source(Delivery):
    """A delivery that keeps the answers.

    Attributes:
        answers: Number of the message, and ``finish`` or the delay of a requeue.
    """

    def __init__(self) -> None:
        reports: Any = Reports()
        super().__init__(reports, 3, DeliveryCounts(), is_ordered=False)
        self.nsqd, self.is_alive, self.msg_timeout = "here:4150", True, 60.0
        self.answers: list[tuple[int, object]] = []

    def finish(self, message: Message) -> None:
        self.answers.append((message.internal_id & 1023, "finish"))

    def requeue(self, message: Message, delay: float | None) -> None:
        self.answers.append((message.internal_id & 1023, delay))

    def give_back(self, message: Message) -> None:
        self.answers.append((message.internal_id & 1023, 0))
