"""Producer, consumer, worker and admin client for programs without asyncio: Django, Flask, Celery, scripts.

They have the names and options of the async ones. Any number of threads may use them; all of a process share one
background event loop, which also answers heartbeats while your code works.
"""

from nsq_ha.sync.admin import AdminClient
from nsq_ha.sync.consumer import Consumer
from nsq_ha.sync.preload import load as _load
from nsq_ha.sync.producer import Producer
from nsq_ha.sync.worker import Worker

__all__ = ["AdminClient", "Consumer", "Producer", "Worker"]

_load()
