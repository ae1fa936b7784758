"""Whether a test runs in full, as in ``make test-full``, or in its short form."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

FULL: Final = "NSQ_HA_FULL" in os.environ
"""Set by ``make test-full``."""


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of a test as slow that its ``@pytest.mark.few`` leaves out.

    ``few(2)`` keeps the first two, ``few("a", "b")`` those with these ids, ``few(every=3)`` each third one.
    """
    seen = Counter[str]()
    for item in items:
        if (few := item.get_closest_marker("few")) and isinstance(item, pytest.Function):
            name = item.nodeid.partition("[")[0]
            if not _keeps(few, seen[name], item.callspec.id):
                item.add_marker(pytest.mark.slow)
            seen[name] += 1


def _keeps(few: pytest.Mark, number: int, name: str) -> bool:
    if every := few.kwargs.get("every"):
        return bool(number % every == 0)
    return number < few.args[0] if isinstance(few.args[0], int) else name in few.args
