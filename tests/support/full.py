"""Whether a test runs in full, as in ``make test-full``, or in its short form."""

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import pytest

FULL: Final = "NSQ_HA_FULL" in os.environ
"""Set by ``make test-full``."""


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases of a test as slow that its ``@pytest.mark.few`` leaves out.

    ``few(2)`` keeps the first two, ``few("a", "b")`` those with these ids, ``few(every=3)`` each third one. If no case
    has such an id, as after a change of its name, none is left out: the test would not run at all.
    """
    tests = defaultdict[str, list[tuple[pytest.Item, bool]]](list)
    for item in items:
        if (few := item.get_closest_marker("few")) and isinstance(item, pytest.Function):
            cases = tests[item.nodeid.partition("[")[0]]
            cases.append((item, _keeps(few, len(cases), item.callspec.id)))
    for cases in tests.values():
        for item, is_kept in cases:
            if not is_kept and any(kept for _, kept in cases):
                item.add_marker(pytest.mark.slow)


def _keeps(few: pytest.Mark, number: int, name: str) -> bool:
    if every := few.kwargs.get("every"):
        return bool(number % every == 0)
    return number < few.args[0] if isinstance(few.args[0], int) else name in few.args
