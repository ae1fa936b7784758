"""Consuming: the consumer, and one subscription for each partition."""

from nsq_ha.consumer.consumer import Consumer

__all__ = ["Consumer"]
