"""Publishing: the producer, its topics, and one sender per partition."""

from nsq_ha.producer.producer import Producer

__all__ = ["Producer"]
