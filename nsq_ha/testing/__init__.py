"""What tests of an application need: fixtures of pytest, and clients without a server.

* Fixtures with an embedded cluster (``nsq_cluster``, ``nsq_topic`` and others) are in :mod:`nsq_ha.testing.plugin`,
  which pytest loads by itself.
* :class:`FakeProducer` and :class:`FakeConsumer` are the real clients without their connections, for unit tests.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq_ha.testing.consumer import FakeConsumer, Requeued
    from nsq_ha.testing.producer import FakeProducer, Published

__all__ = ["FakeConsumer", "FakeProducer", "Published", "Requeued"]

if not TYPE_CHECKING:  # as in nsq_ha: every run of pytest loads this package for its plug-in

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        from importlib import import_module  # noqa: PLC0415 - as in nsq_ha

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "consumer" if name in {"FakeConsumer", "Requeued"} else "producer"
        value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return value
