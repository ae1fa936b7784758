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
