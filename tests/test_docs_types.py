"""Type checkers that readers use (mypy, as strict as it can be, and pyright) pass the examples and know each option.

They refuse wrong names and wrong types of options, and accept all that is legal. Each runs once for all of it: most of
its time is the package's.
"""

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from tests.example_types import modules_of
from tests.examples import ROOT
from tests.support.checkers import CHECKERS, check
from tests.test_options import PAIRS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RIGHT = """\
from pathlib import Path
from typing import Unpack

import nsq_ha
from nsq_ha import Backoff, Compression, ConsumerOptions, LookupClient, ProducerOptions, StartFrom, TlsConfig, sync
from nsq_ha.admin import AdminClient

nsq_ha.Producer(
    lookupd="a:4161", backoff=Backoff(), tls=TlsConfig(ca_file="ca.pem"), compression="snappy", trace=["a"], window=5
)
nsq_ha.Consumer("t", "c", lookupd=["a", "b"], partitions=range(3), start_from={0: StartFrom.end()}, ordered="auto")
sync.Producer(nsqd=("a:4150",), compression=Compression.DEFLATE, sharding=hash, publish_timeout=5)
sync.Producer(lookupd="a:4161", auth_secret=lambda: "hush")
sync.Consumer("t", "c", nsqd="a:4150", max_attempts=3, on_give_up=print, msg_timeout=None)
AdminClient(["a:4161"], question_timeout=1)
AdminClient.from_env(question_timeout=1)
nsq_ha.Producer.from_env(window=5)
sync.Consumer.from_env("t", "c", ordered=True)
sync.AdminClient("a:4161", question_timeout=1)
LookupClient("a:4161", timeout=1)


def producer(**options: Unpack[ProducerOptions]) -> nsq_ha.Producer:
    return nsq_ha.Producer(**options)


def consumer(**options: Unpack[ConsumerOptions]) -> sync.Consumer:
    return sync.Consumer("t", "c", **options)


producer(lookupd="a:4161", strategy="least_loaded")
consumer(lookupd="a:4161", sample_rate=5)
"""

WRONG = """\
import nsq_ha
from nsq_ha import LookupClient, sync
from nsq_ha.admin import AdminClient

nsq_ha.Producer(lookup="a:4161")
nsq_ha.Producer(lookupd=4161)
nsq_ha.Producer(windou=5)
nsq_ha.Producer(max_in_flight=5)
nsq_ha.Producer(window="5")
nsq_ha.Producer(compression="zstd")
nsq_ha.Consumer("t", "c", max_inflight=5)
nsq_ha.Consumer("t", "c", window=5)
nsq_ha.Consumer("t", "c", tls=True)
nsq_ha.Consumer("t", "c", start_from="beginning")
nsq_ha.Consumer("t", "c", on_give_up="forget")
sync.Producer(windou=5)
sync.Producer(strategy="random")
sync.Producer(auth_secret=lambda topic: "hush")
sync.Consumer("t", "c", max_inflight=5)
sync.Consumer("t", "c", partitions=3)
nsq_ha.Consumer.from_env("t", "c", window=5)
sync.Producer.from_env(window="5")
AdminClient.from_env(timeout=1)
AdminClient("a:4161", timeout=1)
AdminClient("a:4161", question_timeout="1")
sync.AdminClient(lookupd=4161)
LookupClient("a:4161", timeout="1")
"""


def of_options() -> dict[str, str]:
    written = {"right": RIGHT, "wrong": WRONG}
    for config, options in PAIRS:
        # What a configuration holds, its defaults among it, may be given again.
        lines = [
            f"from nsq_ha.options.config import {config.__name__}",
            f"from nsq_ha.options.keywords import {options.__name__}",
            "",
        ]
        lines += [f"def again(config: {config.__name__}) -> {options.__name__}:", "    return {"]
        lines += [f"        {field.name!r}: config.{field.name}," for field in dataclasses.fields(config)]
        written[f"again_{config.__name__.lower()}"] = "\n".join([*lines, "    }", ""])
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    examples = dict(modules_of(page for page in PAGES if "_build" not in page.parts))
    assert len(examples) > 30
    assert not examples.keys() & of_options().keys()
    for name, text in (examples | of_options()).items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="module", params=CHECKERS)
def checked(folder: Path, request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    return check(request.param, folder)


@pytest.mark.few("mypy")
@pytest.mark.timeout(900)
def test_the_examples_pass(checked: subprocess.CompletedProcess[str]) -> None:
    errors = [line for line in checked.stdout.splitlines() if re.search(r"\berror: ", line) and "wrong.py:" not in line]
    assert (checked.returncode, errors) == (1, []), f"{checked.stdout}{checked.stderr}"


@pytest.mark.few("mypy")
@pytest.mark.timeout(900)
def test_a_type_checker_knows_every_option(checked: subprocess.CompletedProcess[str]) -> None:
    found = set(re.findall(r"(\w+)\.py:(\d+):(?:\d+ -)? error", checked.stdout))
    calls = {("wrong", str(number)) for number, line in enumerate(WRONG.splitlines(), 1) if "(" in line}
    assert found == calls, f"{checked.stdout}{checked.stderr}"
