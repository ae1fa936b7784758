"""What belongs to one process: clients that cannot be pickled, and locks that a forked child finds free.

Only the thread that forks goes on in the child process. A lock that another thread held at that moment would stay
locked there for ever.
"""

from __future__ import annotations

import os
import threading
from typing import Final, NoReturn, SupportsIndex
from weakref import WeakSet


class OfOneProcess:
    """Has connections and tasks of its process, so that it cannot be pickled."""

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        """Refuse.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"this {type(self).__name__} cannot be pickled or copied: create it in the other process")


class Mutex:
    """A reentrant lock for ``with``. In a forked child it is free, also if a thread of the parent held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free."""
        self._lock = threading.RLock()


_all: Final[WeakSet[Mutex]] = WeakSet()


def _renew_all() -> None:
    for mutex in _all:
        mutex.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
