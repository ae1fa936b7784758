"""Load all that clients load late, before there are threads.

A module that one thread loads while another one forks is half loaded in the child for ever, and its lock is held there:
what needs it hangs or fails. The async clients load some modules when they need them, to save memory. Those of this
package may first need them in any thread, at the moment of a fork, so all are loaded here.

The invariant: once ``nsq_ha.sync`` is imported, its clients import nothing.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Final

OURS: Final = (
    "nsq_ha.admin.nsqd_http",
    "nsq_ha.engine.quiet",
    "nsq_ha.options.environment",
    "nsq_ha.process.signals",
)
"""Modules that ours import inside of functions."""

OTHERS: Final = (
    "base64",
    "concurrent.futures.thread",
    "cramjam",
    "difflib",
    "email.utils",
    "encodings.idna",
    "encodings.unicode_escape",
    "ipaddress",
    "json",
    "mmh3",
    "queue",
    "tomllib",
    "urllib.parse",
)
"""Modules of others that these or ours import late. Some are private, so that a later version may lack them."""


def load() -> None:
    """Load them."""
    for name in OURS:
        import_module(name)
    for name in OTHERS:
        with contextlib.suppress(ImportError):
            import_module(name)
