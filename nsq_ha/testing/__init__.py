"""What tests of an application need: fixtures of pytest, and clients without a server.

* Fixtures with an embedded cluster (``nsq_cluster``, ``nsq_topic`` and others) are in :mod:`nsq_ha.testing.plugin`,
  which pytest loads by itself.
* :class:`FakeProducer` and :class:`FakeConsumer` are the real clients without their connections, for unit tests.
"""

from nsq_ha.testing.consumer import FakeConsumer, Requeued
from nsq_ha.testing.producer import FakeProducer, Published

__all__ = ["FakeConsumer", "FakeProducer", "Published", "Requeued"]
