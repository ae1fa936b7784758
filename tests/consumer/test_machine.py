"""The consumer's machine alone: random schedules against a model of servers, handlers and tasks."""

from typing import Any

import pytest

from nsq_ha import Backoff
from tests.consumer.model import World

SLOW = ("publishes", "delivers", "takes") * 4 + ("time",) * 8 + ("is_cancelled",)

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"plain": True},
    "partitioned": {},
    "ordered": {"ordered": True},
    "tls": {"tls": True},
    "rate": {"max_rate": 20.0},
    "touched": {"auto_touch": True},
    "no pause": {"handler_backoff": None},
    "failing": {"more": ("fails",) * 6, "handler_backoff": Backoff(0.5, 2.0)},
    "giving up": {"more": ("fails", "gives_up") * 4, "handler_backoff": Backoff(0.5, 2.0)},
    "tls and failing": {"tls": True, "more": ("fails",) * 6, "max_in_flight": 2, "handler_backoff": Backoff(0.5, 2.0)},
    "slow": {"more": SLOW},
    "slow and plain": {"more": SLOW, "plain": True, "max_in_flight": 8},
    "slow and ordered": {"more": (*SLOW, "fails", "is_cancelled"), "ordered": True},
    "large": {"size": 400_000, "max_in_flight_bytes": 1_000_000},
    "in turns": {"more": ("publishes", "delivers", "delivers", "takes", "time") * 8, "max_in_flight": 1},
    "attempts count": {"max_attempts": 5, "handler_backoff": Backoff(0.5, 2.0)},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_random_schedules(kind: dict[str, Any]) -> None:
    for seed in range(18):
        world = World(seed, **kind)
        world.run(120)
        world.works_off() if seed % 2 else world.close()
