"""The programs of the page about clusters: two workers, a backfill, then a stream into Parquet with its lag."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest

from integration.cluster import ClusterUnderTest
from integration.jobs import LIMIT, kill_all_of, numbered_topic, publish, wait_until
from integration.spark_servers import ROOT, environment, spark_home, standalone
from tests.examples import examples_of
from tests.support.spark_queries import STARTS, TOO_SLOW

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = ROOT / "docs/how-to/spark-cluster.md"
COUNT = 30_000
MORE = 500
CAUGHT_UP = re.compile(r"^query lake batch (\d+): 0 bytes behind", re.MULTILINE)


def program(name: str, topic: str) -> str:
    """Return a program of the page, for another topic and in smaller parts."""
    (code,) = [each.code for each in examples_of(PAGE) if each.settings.get("file") == name]
    assert code.count('"orders"') == 1
    assert code.count('"1m"') == 1
    return code.replace('"orders"', f'"{topic}"').replace('"1m"', '"400k"')


@contextlib.contextmanager
def running(master: str, folder: Path, lookupd: str) -> Iterator[Callable[[Callable[[str], bool]], None]]:
    """Submit the program until the block ends; gives a way to wait for what it has printed."""
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--executor-memory", "512m", "lake.py"]
    log = folder / "lake.log"

    def begun() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            env = {**environment(), "NSQ_HA_LOOKUPD": lookupd}
            return subprocess.Popen(
                submit, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    process, starts = begun(), 1

    def check() -> None:
        nonlocal process, starts
        if process.poll() is None:
            return
        said = log.read_text()
        # The page says so: then the program is started again.
        assert TOO_SLOW in said, said[-20_000:]
        assert starts < STARTS, said[-20_000:]
        kill_all_of(process)
        process, starts = begun(), starts + 1

    try:
        yield lambda done: wait_until(lambda: done(log.read_text()), check)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(LIMIT)
    finally:
        kill_all_of(process)


def stored(folder: Path) -> list[bytes]:
    """Return what the stream has committed; a micro-batch that runs has more files, which are not complete."""
    files = set()
    for log in (folder / "lake" / "rows" / "_spark_metadata").glob("[0-9]*"):
        files |= {unquote(urlsplit(json.loads(line)["path"]).path) for line in log.read_text().splitlines()[1:]}
    return sorted(value for file in files for value in pq.ParquetFile(file).read(["value"])["value"].to_pylist())


async def test_a_backfill_on_two_workers_that_goes_on_as_a_stream(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    topic = await numbered_topic(cluster, COUNT)
    (tmp_path / "lake.py").write_text(program("lake.py", topic))
    lookupd = ",".join(cluster.lookupd)
    bodies = [b"%06d" % number for number in range(COUNT + 2 * MORE)]

    def backfill_and_go_on(master: str) -> None:
        with running(master, tmp_path, lookupd) as wait:
            wait(lambda said: CAUGHT_UP.search(said) is not None)
            said = (tmp_path / "lake.log").read_text()
            assert re.search(r"^query lake batch 0: [1-9][\d,]* bytes behind", said, re.MULTILINE), said[-5000:]
            assert stored(tmp_path) == bodies[:COUNT]
            asyncio.run(publish(cluster.lookupd, topic, bodies[COUNT : COUNT + MORE]))
            wait(lambda _: len(stored(tmp_path)) == COUNT + MORE)

    def continue_after_a_stop(master: str) -> None:
        asyncio.run(publish(cluster.lookupd, topic, bodies[COUNT + MORE :]))
        with running(master, tmp_path, lookupd) as wait:
            wait(lambda said: CAUGHT_UP.search(said) is not None)

    def there() -> None:
        with standalone(tmp_path) as master:
            backfill_and_go_on(master)
            continue_after_a_stop(master)

    await asyncio.to_thread(there)
    assert stored(tmp_path) == bodies
