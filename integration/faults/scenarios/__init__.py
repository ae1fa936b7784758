"""All scenarios, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.faults.scenarios import leaders

if TYPE_CHECKING:
    from integration.faults.bench import Scenario

ALL: tuple[Scenario, ...] = (*leaders.SCENARIOS,)
