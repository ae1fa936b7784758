"""Report errors to Spark so that their reason comes first.

Spark puts what a Python process sends behind a prefix of its own, as the message of its
exception. A traceback in it would hide the reason, dozens of lines further down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nsq_ha.errors import NsqError
from nsq_ha.spark import logger
from nsq_ha.spark.pyspark_private import hide_traceback


@contextlib.contextmanager
def reason_first() -> Iterator[None]:
    """Let Spark show only the reason of an :class:`~nsq_ha.errors.NsqError`; log it in one line, and at DEBUG whence.

    For each method that Spark calls, as a decorator, or within a generator. Other errors are defects: Spark shows
    them with their tracebacks.
    """
    try:
        yield
    except NsqError as error:
        logger.error("%s: %s", type(error).__name__, error)
        logger.debug("raised here", exc_info=True)
        hide_traceback()
        raise
