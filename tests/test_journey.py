"""The README and the tutorials are one journey on one cluster; it is made here from the first line to the last."""

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import pytest

from nsq_ha.cli.dev import EXAMPLES
from nsq_ha.devcluster import DevCluster
from tests.examples import ROOT, PageRun, examples_of
from tests.spark_host import SparkHost
from tests.support.processes import running

README: Final = ROOT / "README.md"
TUTORIAL: Final = ROOT / "docs" / "tutorial"
FIRST: Final = TUTORIAL / "first-message.md"
PLAIN: Final = ROOT / "docs" / "how-to" / "plain-nsq.md"


@dataclass
class Started:
    """The cluster of ``nsq-ha dev``; in this process there is only its address."""

    lookupd: list[str]


@contextmanager
def dev(command: str) -> Iterator[Started]:
    """Run ``nsq-ha dev`` in a process of its own, and find its address in what it prints."""
    program, *arguments = shlex.split(command)
    assert program == "nsq-ha"
    with running([sys.executable, "-m", "nsq_ha.cli", *arguments, "--table"]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(rb"export NSQ_HA_LOOKUPD=(\S+)", line):
                yield Started(found[1].decode().split(","))
                return
        assert process.stderr is not None
        raise AssertionError(process.stderr.read().decode())


def commands(start: str) -> list[str]:
    """Return the commands of the README that begin with ``start``."""
    return re.findall(rf"(?:`|^\$ )({start}[^`\n]*)", README.read_text("utf-8"), re.MULTILINE)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [pytest.param("partitioned", marks=pytest.mark.spark), "plain"])
def test_the_journey_is_made_on_one_cluster(
    kind: str, spark_host: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = commands("nsq-ha dev")[kind == "plain"]
    pages = [README, FIRST, PLAIN] if kind == "plain" else [README, *tutorials()]
    with dev(command) as cluster:
        monkeypatch.setenv("NSQ_HA_LOOKUPD", ",".join(cluster.lookupd))
        for page in pages:
            examples = examples_of(page)
            for example in examples if kind == "plain" else []:
                example.code = as_on_a_plain_cluster(example.code)
            asyncio.run(PageRun(cast("DevCluster", cluster), tmp_path, spark_host).run(examples))


def tutorials() -> list[Path]:
    """Return the pages of the tutorial, each with the one that it names as the next."""
    pages = [FIRST]
    while following := re.search(r"^Next: {doc}`([\w-]+)`", pages[-1].read_text("utf-8"), re.MULTILINE):
        pages.append(TUTORIAL / f"{following[1]}.md")
    return pages


def test_the_journey_has_every_page_of_the_tutorial() -> None:
    assert "](docs/tutorial/first-message.md) continues with this cluster" in README.read_text("utf-8")
    assert sorted(tutorials()) == sorted(TUTORIAL.glob("*.md"))


def test_the_first_program_gets_its_message_if_it_subscribes_late() -> None:
    """A message that is published before its channel exists would never come."""
    [(topic, channel)] = re.findall(r'Consumer\("(\w+)", "(\w+)"', README.read_text("utf-8"))
    assert channel in {wanted.name: channels for wanted, channels, _ in EXAMPLES}[topic]


def as_on_a_plain_cluster(code: str) -> str:
    """Leave out what the pages tell readers with a plain cluster to leave out."""
    return re.sub(r" --partitions 2$", "", code, flags=re.MULTILINE)
