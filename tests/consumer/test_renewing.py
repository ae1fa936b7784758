"""When a subscription's connection is replaced: over an owner that fails when a test wants it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import Backoff
from nsq_ha.consumer.renewal import Renewal
from nsq_ha.errors import ConnectionLostError
from nsq_ha.policy.tls_renewal import Lifetime
from tests.support.waiting import dawdle, turn

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 100.0
"""Seconds for which nsqd can write."""


class Owner:
    """A subscription that notes what it is asked to do."""

    def __init__(self, age: float | None) -> None:
        self.lifetime: Lifetime | None = None
        self.began = asyncio.get_running_loop().time()
        self.fails = 0
        self.replaced: list[float] = []
        self.ran_out: list[float] = []
        if age is not None:
            self.young(age)

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self.began

    def young(self, age: float) -> None:
        """Have a connection of this age."""
        self.lifetime = Lifetime(asyncio.get_running_loop().time() - age, LIMIT, 0.0)

    async def replace(self, news: asyncio.Event) -> None:
        news.clear()
        self.replaced.append(round(self.now(), 1))
        if self.fails:
            self.fails -= 1
            raise ConnectionLostError("no")
        self.young(0.0)

    async def run_out(self) -> None:
        self.ran_out.append(round(self.now(), 1))
        self.lifetime = None


def renewal_of(owner: Owner) -> Renewal:
    return Renewal(owner, Backoff(initial=1.0, maximum=4.0, factor=2.0), "orders-3")


@pytest.fixture(autouse=True)
def without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each pause as long as it may be."""
    monkeypatch.setattr("random.random", lambda: 0.0)


def due() -> float:
    """Return the age at which a connection is replaced."""
    lifetime = Lifetime(0.0, LIMIT, 0.0)
    at = lifetime.next_phase_at(0.0)
    assert at is not None
    return at


async def test_a_connection_is_replaced_when_it_is_due_and_again() -> None:
    owner = Owner(0.0)
    renewal = renewal_of(owner)
    renewal.changed()
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "nsq_ha renewal orders-3" in names
    await dawdle(2.5 * due())
    assert owner.replaced == [pytest.approx(due(), abs=0.2), pytest.approx(2 * due(), abs=0.4)]
    await renewal.stop()


async def test_failed_attempts_have_growing_pauses_and_then_it_runs_out() -> None:
    owner = Owner(due() + 0.1)
    owner.fails = 10**6
    renewal = renewal_of(owner)
    renewal.changed()
    await dawdle(12.0)
    assert owner.replaced[:5] == [0.0, 1.0, 3.0, 7.0, 11.0]
    await dawdle(LIMIT)
    assert len(owner.ran_out) == 1
    assert due() + 0.1 + owner.ran_out[0] < LIMIT
    assert owner.replaced[-1] < owner.ran_out[0]
    await renewal.stop()


async def test_without_a_limit_there_is_no_task_until_there_is_one() -> None:
    owner = Owner(None)
    renewal = renewal_of(owner)
    before = asyncio.all_tasks()
    renewal.changed()
    assert asyncio.all_tasks() == before
    await renewal.stop()
    renewal = renewal_of(owner)
    owner.young(due() + 0.1)
    renewal.changed()
    await turn(3)
    assert owner.replaced == [0.0]
    owner.lifetime = None
    renewal.changed()
    await dawdle(10 * LIMIT)
    assert len(owner.replaced) == 1
    await renewal.stop()
    owner.young(due() + 0.1)
    renewal.changed()
    await turn(3)
    assert len(owner.replaced) == 1


async def test_a_replacement_that_has_begun_can_be_cancelled() -> None:
    owner = Owner(due() + 0.1)
    started = asyncio.Event()

    async def never(_: asyncio.Event) -> None:
        started.set()
        await asyncio.Event().wait()

    replace: Any = never
    owner.replace = replace  # type: ignore[method-assign]
    renewal = renewal_of(owner)
    renewal.cancel()
    renewal = renewal_of(owner)
    renewal.changed()
    await started.wait()
    renewal.cancel()
    await renewal.stop()
    made: Callable[[], None] = renewal.changed
    made()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "nsq_ha renewal orders-3"]
