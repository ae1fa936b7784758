"""The table of floods names what costs too much; the measurement itself is ``python -m integration.floods.heavy``."""

import asyncio
import sys

import pytest

from integration.floods.client import CLIENTS
from integration.floods.heavy import FLOODS, GOAL_BYTES, Child, Flood, Row, line_of


@pytest.mark.parametrize(
    ("closes", "row", "verdict"),
    [
        (True, Row(GOAL_BYTES, 1, 2.0), "ok"),
        (True, Row(GOAL_BYTES + 1, 1, 2.0), "COSTS TOO MUCH"),
        (True, Row(0, 1, 2.1), "OPEN TOO LONG"),
        (True, Row(0, 1, None), "OPEN TOO LONG"),
        (False, Row(0, 1, None), "ok"),
        (True, Row(0, 1, 0.1, has_died=True), "DIED"),
    ],
)
def test_what_misses_the_goal_is_named(closes: bool, row: Row, verdict: str) -> None:
    line, is_good = line_of(Flood("some", "consumer", closes=closes, bound="an option"), row)
    assert f"  {verdict} (within an option)" in line
    assert is_good is (verdict == "ok")


@pytest.mark.parametrize("code", [0, 3])
async def test_a_client_that_fails_after_its_figures_has_died(code: int) -> None:
    """Its connection is closed at once, and it costs nothing."""
    program = f"print('{{\"peak\": 7}}', flush=True); raise SystemExit({code})"
    pipe = asyncio.subprocess.PIPE
    child = Child(await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe))
    assert await child.peak() == 7
    assert await child.has_died() is bool(code)
    await child.end()


def test_every_flood_has_a_client_and_a_name_of_its_own() -> None:
    assert {flood.client for flood in FLOODS} == set(CLIENTS)
    assert len({flood.name for flood in FLOODS}) == len(FLOODS)
