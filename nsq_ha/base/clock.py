"""The clock by which all pauses and limits go that are not the event loop's own.

Tools that freeze the time of a test, such as freezegun, replace ``time.monotonic`` in every module that holds it, and
leave the event loop's clock alone (``real_asyncio=True``). They do not know this one, so that the two never part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

monotonic: Final[Callable[[], float]] = partial(time.monotonic)  # noqa: TID251 - here it is made
"""Return the seconds since some moment, as the event loop does."""
