"""Every option is a typed keyword: type checkers refuse wrong names and wrong types, and accept all that is legal."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from nsq_ha import (
    Backoff,
    ClientConfig,
    ConsumerConfig,
    ConsumerOptions,
    ExtFilter,
    ProducerConfig,
    ProducerOptions,
    TlsConfig,
)
from nsq_ha.admin import AdminClient
from nsq_ha.options.keywords import AdminOptions, ClientOptions
from nsq_ha.options.language import declared
from nsq_ha.spark.options import ConnectionOptions, ReadOptions, WriteOptions
from tests.support.checkers import CHECKERS, check

PAIRS: list[tuple[type[ClientConfig], Any]] = [
    (ClientConfig, ClientOptions),
    (ProducerConfig, ProducerOptions),
    (ConsumerConfig, ConsumerOptions),
]

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


def modules() -> dict[str, str]:
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


@pytest.mark.parametrize(("config", "options"), PAIRS)
def test_the_keywords_are_the_fields(config: type[ClientConfig], options: Any) -> None:  # noqa: ANN401
    assert options.__optional_keys__ == {field.name for field in dataclasses.fields(config)}
    assert not options.__required_keys__


@pytest.mark.parametrize(
    "owner",
    [*(config for config, _ in PAIRS), Backoff, TlsConfig, ExtFilter, ReadOptions, WriteOptions, ConnectionOptions],
)
def test_a_default_is_a_legal_value(owner: type[Any]) -> None:
    """Constructing does not check it again."""
    for name, option in declared(owner).items():
        if option.default is not None and not isinstance(option.default, str | tuple):
            assert option.check(option.default) == option.default, name


def test_an_option_says_what_it_may_be() -> None:
    consumer = declared(ConsumerConfig)
    said = {name: (consumer[name].wanted, consumer[name].range) for name in ("max_in_flight", "msg_timeout", "ordered")}
    assert said == {
        "max_in_flight": ("a whole number, 0..1000000", "0..1000000"),
        "msg_timeout": ("1..864000 seconds", "1..864000 seconds"),
        "ordered": ("True, False or 'auto'", ""),
    }
    assert [name for name, option in declared(ReadOptions).items() if option.unit == "bytes"] == [
        "max_bytes_per_trigger",
        "driver_bytes",
        "max_spool_bytes",
    ]


def test_the_keywords_of_an_admin_client_are_its_arguments() -> None:
    assert AdminOptions.__optional_keys__ == set(inspect.signature(AdminClient).parameters)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_knows_every_option(tmp_path: Path, checker: str) -> None:
    for name, text in modules().items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    checked = check(checker, tmp_path)
    found = set(re.findall(r"(\w+)\.py:(\d+):(?:\d+ -)? error", checked.stdout))
    calls = {("wrong", str(number)) for number, line in enumerate(WRONG.splitlines(), 1) if "(" in line}
    assert found == calls, f"{checked.stdout}{checked.stderr}"
