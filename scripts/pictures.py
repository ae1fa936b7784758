"""Make the pictures of the README and the pages: ``nsq-ha top`` as SVG, the demo's live page as PNG. Needs Chromium.

They show real runs on embedded clusters, so make them on a machine that is quiet. The demo's result is printed, for the
README: its text and its picture are of one run.
"""

import argparse
import asyncio
import contextlib
import io
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from playwright.async_api import async_playwright
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from examples.flights.command import print_report
from examples.flights.job import JobOptions
from examples.flights.stage import Demo, DemoOptions
from nsq_ha import Consumer, Producer
from nsq_ha.admin import AdminClient
from nsq_ha.cli.top import Screen
from nsq_ha.devcluster import DevCluster

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "_static"
MAX_BYTES: Final = 150_000
"""Of a picture; larger ones make the pages slow."""

WIDTH: Final = 108
_LIMIT: Final = 60.0
_TOPICS: Final = {"orders": 4, "clicks": 2, "payments": 2}


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=0.0, help="flights of the demo a second; 0 for no limit")
    given = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("the pictures need Chromium: install it")
    svg = asyncio.run(terminal())
    (FOLDER / "terminal.svg").write_text(svg, encoding="utf-8")
    print(f"terminal.svg: {len(svg):,} characters")
    for name, png in asyncio.run(pages(program, given.rate or None)).items():
        if len(png) > MAX_BYTES:
            sys.exit(f"{name} has {len(png):,} bytes, more than {MAX_BYTES:,}")
        (FOLDER / name).write_bytes(png)
        print(f"{name}: {len(png):,} bytes")


async def terminal() -> str:
    """Return a picture of ``nsq-ha top`` while a leader moves."""
    with DevCluster(nsqds=3) as cluster:
        for name, partitions in _TOPICS.items():
            await asyncio.to_thread(cluster.create_topic, name, partitions, ordered=name == "orders")
        lookupd = tuple(cluster.lookupd)
        screen = Screen("prod", 2.0)
        async with AdminClient(lookupd) as admin, _traffic(lookupd):
            for turn in range(4):
                screen.take(await admin.look(screen.reading), time.monotonic())
                if turn == 2:
                    await asyncio.to_thread(cluster.move_leader, "orders", 1)
                await asyncio.sleep(2.0)
    screen.by_partition = True
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(screen.render(WIDTH, 24, time.monotonic()), "")  # the last line is cut otherwise
    # Without the fonts of other sites.
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace")
    return console.export_svg(title="nsq-ha top", code_format=form, unique_id="nsq-ha-top")


@contextlib.asynccontextmanager
async def _traffic(lookupd: tuple[str, ...]) -> AsyncIterator[None]:
    """Publish to all topics; one consumer is slow, so that its channel lags."""

    async def publish(producer: Producer, topic: str, pause: float) -> None:
        for number in range(10**9):
            await producer.publish(topic, b"x" * 200, key=f"user-{number % 97}" if topic == "orders" else None)
            await asyncio.sleep(pause)

    async def consume(topic: str, channel: str, pause: float) -> None:
        async with Consumer(topic, channel, lookupd=lookupd, max_in_flight=20) as consumer:
            async for message in consumer:
                await asyncio.sleep(pause)
                message.finish()

    pairs = [
        ("orders", "billing", 0.0),
        ("orders", "mail", 0.05),
        ("clicks", "stats", 0.0),
        ("payments", "ledger", 0.0),
    ]
    async with Producer(lookupd=lookupd) as producer:
        tasks = [asyncio.create_task(consume(*pair)) for pair in pairs]
        tasks += [asyncio.create_task(publish(producer, name, 0.01 * number)) for number, name in enumerate(_TOPICS, 1)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def pages(program: str, rate: float | None) -> dict[str, bytes]:
    """Run the demo, print its result, and return the pictures of its live page after the run, light and dark."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        view: Any = await browser.new_page(viewport={"width": 1180, "height": 720})
        view.set_default_timeout(_LIMIT * 1000)

        async def opened(url: str) -> None:
            await view.goto(url)

        options = DemoOptions(spark="none", page=True, job=JobOptions(rate=rate))
        print_report(await Demo(options, show=lambda event: print(event.text), opened=opened).run(), rate)
        await view.locator("#connection", has_text="has ended").wait_for()
        lanes = await view.locator("#leaders").bounding_box()
        size = {"width": 1180, "height": int(lanes["y"] + lanes["height"] + 14)}
        await view.set_viewport_size(size)
        pictures: dict[str, bytes] = {}
        for name, scheme in (("dashboard.png", "light"), ("dashboard-dark.png", "dark")):
            await view.emulate_media(color_scheme=scheme)
            pictures[name] = await view.screenshot(clip={"x": 0, "y": 0, **size})
        await browser.close()
    return pictures


if __name__ == "__main__":
    main()
