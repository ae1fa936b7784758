"""How long to wait after the n-th failure in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.config import Backoff


def delay_after(backoff: Backoff, failures: int, chance: Callable[[], float]) -> float:
    """Return seconds to wait after ``failures`` failures in a row; 0 for none.

    Args:
        backoff: The numbers.
        failures: How many in a row, 0 or more.
        chance: Returns 0..1; takes away up to ``jitter`` of the delay, so the
            delay never exceeds ``maximum``.
    """
    if failures <= 0:
        return 0.0
    try:
        # The exponent is bounded, since huge powers of an int are slow.
        delay = min(backoff.initial * backoff.factor ** min(failures - 1, 64), backoff.maximum)
    except OverflowError:
        delay = backoff.maximum
    return delay * (1.0 - backoff.jitter * chance())
