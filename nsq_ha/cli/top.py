"""``nsq-ha top``: a live screen of topics, channels and partitions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from nsq_ha.cli.options import SECONDS, cluster_options
from nsq_ha.cli.output import console as output_console
from nsq_ha.cli.running import run
from nsq_ha.cli.top_screen import ORDERS, Screen
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from nsq_ha.admin import AdminClient
    from nsq_ha.cli.cluster import Cluster


@click.command(short_help="Watch rates, depths and lags live.")
@click.argument("pattern", required=False, default="")
@click.option("-i", "--interval", type=SECONDS, default=2.0, show_default=True, help="Seconds between two samples.")
@click.option("-s", "--sort", type=click.Choice(ORDERS), default="name", show_default=True, help="Order of the rows.")
@click.option("-r", "--reverse", is_flag=True, help="Turn the order round.")
@click.option("-p", "--partitions", is_flag=True, help="A row for each partition (plain: each nsqd).")
@click.option("-n", "--count", type=click.IntRange(1), help="End after this many samples.")
@cluster_options
def top(
    pattern: str,
    cluster: Cluster,
    *,
    interval: float,
    sort: str,
    reverse: bool,
    partitions: bool,
    count: int | None,
) -> None:
    """Watch rates, depths, messages in flight, leaders and lags, until `q` or Ctrl-C.

    PATTERN is a part of TOPIC/CHANNEL, or a pattern such as orders/b*. Without a terminal, each sample is printed
    below the last one.
    """
    name = cluster.context or cluster.lookupd[0] + (f" +{len(cluster.lookupd) - 1}" if cluster.lookupd[1:] else "")
    screen = Screen(name, interval, sort, reverse, partitions, pattern)
    run(
        _top(cluster, screen, count),
        stopped=None if count is not None and not sys.stdout.isatty() else 0,
        has_end=count is not None,
    )


async def _top(cluster: Cluster, screen: Screen, count: int | None) -> int:
    from rich.live import Live

    console = output_console()
    ended = asyncio.Event()
    async with cluster.admin() as admin:
        if not console.is_terminal:
            await _sample(admin, screen, count, lambda: _print(console, screen))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live:

            def draw() -> None:
                width, height = console.size
                live.update(screen.render(width, height, time.monotonic()), refresh=True)

            def pressed(key: str) -> None:
                if not screen.press(key):
                    ended.set()
                draw()

            with _keys(pressed):
                draw()
                sampling = asyncio.create_task(_sample(admin, screen, count, draw))
                ending = asyncio.create_task(ended.wait())
                try:
                    await asyncio.wait({sampling, ending}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ending.cancel()
                    sampling.cancel()
                    await asyncio.wait({sampling, ending})
        if not sampling.cancelled():
            sampling.result()
    return 0


async def _sample(admin: AdminClient, screen: Screen, count: int | None, show: Callable[[], None]) -> None:
    done = 0
    while done != count:
        began = time.monotonic()
        try:
            state = await admin.cluster()
            stats = await admin.stats()
        except NsqError as error:
            if done == 0:
                raise
            screen.fail(str(error))
        else:
            screen.take(state, stats, time.time(), time.monotonic())
        done += 1
        show()
        if done != count:
            await asyncio.sleep(max(0.0, began + screen.interval - time.monotonic()))


def _print(console: Console, screen: Screen) -> None:
    console.print(screen.render(console.width, 10_000, time.monotonic()))


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each key, if standard input is a terminal; its settings are restored at the end."""
    if os.name != "posix" or sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        typed = os.read(descriptor, 64).decode("utf-8", "ignore")
        for key in typed.replace("\x1b[A", "k").replace("\x1b[B", "j"):
            pressed(key)

    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor)
    try:
        loop.add_reader(descriptor, read)
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
