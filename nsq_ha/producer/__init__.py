"""Publishing: the producer, and one sender for each partition."""

from nsq_ha.producer.producer import Producer

__all__ = ["Producer"]
