"""The table of floods names what costs too much; the measurement itself is ``python -m integration.floods.heavy``."""

import pytest

from integration.floods.client import CLIENTS
from integration.floods.heavy import FLOODS, GOAL_BYTES, Flood, Row, line_of


@pytest.mark.parametrize(
    ("closes", "row", "verdict"),
    [
        (True, Row(GOAL_BYTES, 1, 2.0), "ok"),
        (True, Row(GOAL_BYTES + 1, 1, 2.0), "COSTS TOO MUCH"),
        (True, Row(0, 1, 2.1), "OPEN TOO LONG"),
        (True, Row(0, 1, None), "OPEN TOO LONG"),
        (False, Row(0, 1, None), "ok"),
    ],
)
def test_what_misses_the_goal_is_named(closes: bool, row: Row, verdict: str) -> None:
    line, is_good = line_of(Flood("some", "consumer", closes=closes, bound="an option"), row)
    assert f"  {verdict} (within an option)" in line
    assert is_good is (verdict == "ok")


def test_every_flood_has_a_client_and_a_name_of_its_own() -> None:
    assert {flood.client for flood in FLOODS} == set(CLIENTS)
    assert len({flood.name for flood in FLOODS}) == len(FLOODS)
