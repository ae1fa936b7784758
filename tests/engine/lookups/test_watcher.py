"""When a topic is looked up, which callers are notified, and which failures a watch survives."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nsq_ha.engine import lookups as module
from nsq_ha.engine.lookupd import Access
from nsq_ha.engine.lookups import Lookups, TopicWatch
from nsq_ha.options.config import ClientConfig
from nsq_ha.policy import timing
from nsq_ha.policy.topology import TopicView
from tests.engine.lookups.loopback import LIMIT, Fake, hang, lookup_body
from tests.engine.lookups.scripted import until
from tests.support.waiting import eventually, turn

Serve = Callable[[], Awaitable[Fake]]
Start = Callable[..., Awaitable[Lookups]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds on demand at the pace of a test; the real pace has a test of its own."""
    monkeypatch.setattr(timing, "QUICK_GAP", 0.01)
    monkeypatch.setattr(timing, "SLOW_GAP", 0.03)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start directories over fakes; lookups are periodic each hour unless said otherwise."""
    started: list[Lookups] = []

    async def make(*urls: str, access: Access = "r", **options: float) -> Lookups:
        config = ClientConfig(lookupd=urls, **({"lookup_interval": 3600.0} | options))  # type: ignore[arg-type]
        lookups = Lookups(config, access=access)
        started.append(lookups)
        await lookups.start()
        return lookups

    yield make
    for lookups in started:
        await lookups.aclose()


@pytest.fixture
async def fake(serve: Serve) -> Fake:
    found = await serve()
    found.answer("/lookup", lookup_body({0: 4150, 1: 4160}))
    return found


def is_complete(view: TopicView) -> bool:
    return view.complete


def leader_of(view: TopicView, partition: int) -> int | None:
    return view.leaders[partition].tcp_port if partition in view.leaders else None


async def complete(watch: TopicWatch) -> TopicView:
    return await asyncio.wait_for(until(watch, is_complete), LIMIT)


def rounds(watch: TopicWatch) -> int:
    return watch._ended


async def test_starting_takes_no_time_when_the_first_nsqlookupd_hangs(fake: Fake, serve: Serve, start: Start) -> None:
    hanging = await serve()
    hanging.behave = hang
    began = asyncio.get_running_loop().time()
    lookups = await start(hanging.url, fake.url)
    await complete(lookups.watch("orders"))
    assert asyncio.get_running_loop().time() - began < 2.0


@pytest.mark.usefixtures("quick")
async def test_rounds_go_on_periodically(fake: Fake, start: Start) -> None:
    lookups = await start(fake.url, lookup_interval=0.02)
    watch = lookups.watch("orders")
    await eventually(lambda: rounds(watch) >= 5)


@pytest.mark.usefixtures("quick")
async def test_all_who_want_a_round_share_it(fake: Fake, start: Start) -> None:
    watch = (await start(fake.url)).watch("orders")
    await complete(watch)

    async def want() -> None:
        watch.refresh_soon()
        await watch.next_round()

    cancelled = asyncio.create_task(want())
    waiting = asyncio.gather(*(want() for _ in range(50)))
    await turn(2)
    cancelled.cancel()  # the round goes on for the others
    await asyncio.wait_for(waiting, LIMIT)
    assert rounds(watch) == 2
    assert fake.count("/lookup") == 2


@pytest.mark.parametrize("trouble", ["dead", "hanging", "nonsense", "empty"])
async def test_the_last_good_view_outlives_every_trouble_and_a_new_one_comes_soon_after(
    fake: Fake, serve: Serve, start: Start, trouble: str
) -> None:
    watch = (await start(fake.url, lookup_timeout=0.5)).watch("orders")
    good = await complete(watch)
    if trouble == "dead":
        await fake.stop()
    elif trouble == "hanging":
        fake.behave = hang
    elif trouble == "nonsense":
        fake.answer("/lookup", b"<html>502</html>")
    else:
        fake.answer("/lookup", lookup_body({}, 2))
    waiting = asyncio.create_task(until(watch, lambda view: leader_of(view, 0) == 4170))
    seen = rounds(watch)
    await eventually(lambda: rounds(watch) >= seen + 3)
    assert watch.view.known == good.leaders
    assert watch.view.partition_num == 2
    fake.behave = None
    fake.answer("/lookup", lookup_body({0: 4170, 1: 4160}))
    if trouble == "dead":
        await fake.start()
    back = asyncio.get_running_loop().time()
    view = await asyncio.wait_for(waiting, LIMIT)
    assert view.leaders[0].tcp_port == 4170
    assert asyncio.get_running_loop().time() - back < 3.0


async def test_trouble_asks_quickly_but_not_more_than_five_times_a_second(fake: Fake, start: Start) -> None:
    fake.answer("/lookup", lookup_body({0: 4150}, 2))
    watch = (await start(fake.url)).watch("orders")
    waiters = [asyncio.create_task(until(watch, is_complete)) for _ in range(20)]
    ends = []
    for _ in range(6):
        await watch.next_round()
        ends.append(asyncio.get_running_loop().time())
    gaps = [later - earlier for earlier, later in itertools.pairwise(ends)]
    assert min(gaps) >= 0.19
    assert max(gaps) < 2.5
    assert fake.count("/lookup") <= rounds(watch) + 1
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    before = rounds(watch)
    fake.answer("/lookup", lookup_body({0: 4150, 1: 4160}))
    await turn(20)
    assert rounds(watch) == before  # nobody waits any more: the next round is the periodic one, an hour away


@pytest.mark.usefixtures("quick")
async def test_a_pending_change_is_asked_about_without_anybody_waiting(fake: Fake, start: Start) -> None:
    watch = (await start(fake.url)).watch("orders")
    await complete(watch)
    fake.answer("/lookup", lookup_body(dict.fromkeys(range(4), 4150)))
    await asyncio.wait_for(watch.next_round(), LIMIT)
    assert watch.view.partition_num == 2
    assert watch.view.unsettled
    await eventually(lambda: watch.view.partition_num == 4)


# ---------------------------------------------------------------- life and death


@pytest.mark.usefixtures("quick")
async def test_closing_ends_everything_at_once(fake: Fake, start: Start) -> None:
    fake.behave = hang
    before = asyncio.all_tasks()
    lookups = await start(fake.url)
    watch = lookups.watch("orders")
    waiting = [asyncio.create_task(watch.next_round()) for _ in range(2)]
    await eventually(lambda: fake.count("/lookup") == 1)
    began = asyncio.get_running_loop().time()
    await lookups.aclose()
    assert asyncio.get_running_loop().time() - began < 1.0
    await asyncio.gather(*waiting, watch.next_round())
    ours = {task for task in asyncio.all_tasks() - before if task.get_name().startswith(("nsq_ha", "watch", "lookup"))}
    assert ours == set()


async def test_a_bug_of_ours_ends_a_round_and_not_the_look_ups(
    fake: Fake, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = (await start(fake.url)).watch("orders")
    await complete(watch)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(module, "merge_round", broken)
        for _ in range(2):
            await asyncio.wait_for(watch.next_round(), LIMIT)
        assert "ZeroDivisionError" in str(watch.error)
    await asyncio.wait_for(watch.next_round(), LIMIT)
    assert watch.error is None
    assert "the lookups failed" not in caplog.text


async def test_a_view_that_a_client_could_not_take_comes_again(fake: Fake, start: Start) -> None:
    watch = (await start(fake.url)).watch("orders")
    views: list[TopicView] = []

    def take(view: TopicView) -> None:
        views.append(view)
        if len(views) == 1:
            raise ZeroDivisionError

    watch.listen(take)
    await until(watch, lambda _: len(views) > 1)
    assert views[0] == views[1] == watch.view
