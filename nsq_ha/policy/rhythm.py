"""How long to wait between two look-ups of one topic while a caller needs news of it.

A new leader is usually known within 5 s. During that time look-ups are frequent, since each pause between them adds to
the time without publishes. After that the cluster may be away for minutes, and a second more does not matter.

====================  ==============================
rounds without news   seconds to the next one
====================  ==============================
up to QUICK_ROUNDS    QUICK
more                  growing by a quarter, to SLOW
====================  ==============================

Jitter takes away up to a fifth, so that many clients do not ask together. An nsqlookupd gets at most five look-ups a
second for one topic from one client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK: Final = 0.25
QUICK_ROUNDS: Final = 20
SLOW: Final = 0.6
_GROWTH: Final = 1.25
_JITTER: Final = 0.2
_LAST_STEP: Final = 10
"""Beyond this the growth has reached SLOW."""


def gap_after(rounds: int, chance: Callable[[], float]) -> float:
    """Return the seconds from the start of one look-up to the start of the next.

    Args:
        rounds: Look-ups in a row that were needed and brought no news.
        chance: Returns a number from 0 up to 1.
    """
    steps = min(max(rounds - QUICK_ROUNDS, 0), _LAST_STEP)
    return min(QUICK * _GROWTH**steps, SLOW) * (1 - _JITTER * chance())
