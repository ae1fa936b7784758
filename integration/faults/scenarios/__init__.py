"""All scenarios, in the order of the table."""

from integration.faults.bench import Scenario
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
