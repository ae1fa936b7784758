"""All scenarios, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.faults.scenarios import (
    chaos,
    consumers,
    followers,
    leaders,
    lookupds,
    network,
    ordinary,
    soak,
    stopping,
    topics,
)

if TYPE_CHECKING:
    from integration.faults.bench import Scenario

ALL: tuple[Scenario, ...] = (
    *leaders.SCENARIOS,
    *followers.SCENARIOS,
    *ordinary.SCENARIOS,
    *lookupds.SCENARIOS,
    *topics.SCENARIOS,
    *network.SCENARIOS,
    *consumers.SCENARIOS,
    *stopping.SCENARIOS,
)

NAMED: tuple[Scenario, ...] = (chaos.SCENARIO, *soak.SCENARIOS)
"""Those that run only when they are named."""
