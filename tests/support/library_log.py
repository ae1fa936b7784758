"""The library's log as it was, around what changes it."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo what a command does to show the library's log."""
    loggers = [logging.getLogger(name) for name in ("nsq_ha", "nsq_ha.discovery")]
    before = [(logger, logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        yield
    finally:
        for logger, level, propagates, handlers in before:
            logger.setLevel(level)
            logger.propagate = propagates
            logger.handlers[:] = handlers
