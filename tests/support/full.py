"""Whether a test runs in full, as in ``make test-full``, or in its short form."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

FULL: Final = "NSQ_HA_FULL" in os.environ
"""Set by ``make test-full``."""


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases as slow that ``@pytest.mark.few`` leaves out: those behind its number, or not among its ids."""
    seen = Counter[str]()
    for item in items:
        if (few := item.get_closest_marker("few")) and isinstance(item, pytest.Function):
            name = item.nodeid.partition("[")[0]
            kept = seen[name] < few.args[0] if isinstance(few.args[0], int) else item.callspec.id in few.args
            seen[name] += 1
            if not kept:
                item.add_marker(pytest.mark.slow)
