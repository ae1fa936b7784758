"""Producer, consumer, worker and admin client for programs without asyncio: Django, Flask, Celery, scripts.

They have the names and options of the async ones. Any number of threads may use them; all of a process share one
background event loop, which also answers heartbeats while your code works.
"""

import contextlib as _contextlib
from importlib import import_module as _import_module

from nsq_ha.sync.admin import AdminClient
from nsq_ha.sync.consumer import Consumer
from nsq_ha.sync.producer import Producer
from nsq_ha.sync.worker import Worker

__all__ = ["AdminClient", "Consumer", "Producer", "Worker"]

# A module that one thread loads while another one forks is half loaded in the child for ever, and its lock is held
# there: what needs it hangs or fails. The async clients load some modules when they need them, to save memory. Those of
# this package may first need them in any thread, at the moment of a fork, so all are loaded here: once this package is
# imported, its clients import nothing.
for _name in (
    *("nsq_ha.admin.nsqd_http", "nsq_ha.engine.quiet", "nsq_ha.options.environment", "nsq_ha.process.signals"),
    *("base64", "concurrent.futures.thread", "cramjam", "difflib", "email.utils", "encodings.idna"),
    *("encodings.unicode_escape", "ipaddress", "json", "mmh3", "queue", "tomllib", "urllib.parse"),
):
    with _contextlib.suppress(ImportError):  # some modules of others are private, and a later version may lack them
        _import_module(_name)
