"""How long to wait between two look-ups of one topic while somebody needs news of it.

A leader that changes is mostly known within 5 s: for so long the look-ups follow each other quickly, since each pause
between them is added to the time for which nothing is published. After that the cluster may be away for minutes, and a
second more does not matter.

====================  ==============================
rounds without news   seconds to the next one
====================  ==============================
up to QUICK_ROUNDS    QUICK
more                  growing by a quarter, to SLOW
====================  ==============================

Chance takes away up to a fifth, so that many clients do not ask together. No nsqlookupd gets more than five questions
a second for one topic from one client.
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
    """Return the seconds from the beginning of one look-up to that of the next.

    Args:
        rounds: Look-ups in a row that were needed and brought no news.
        chance: Returns a number from 0 up to 1.
    """
    steps = min(max(rounds - QUICK_ROUNDS, 0), _LAST_STEP)
    return min(QUICK * _GROWTH**steps, SLOW) * (1 - _JITTER * chance())
