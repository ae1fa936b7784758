"""Every option is a typed keyword; what type checkers say of it is tested with the examples of the pages."""

import dataclasses
import inspect
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

PAIRS: list[tuple[type[ClientConfig], Any]] = [
    (ClientConfig, ClientOptions),
    (ProducerConfig, ProducerOptions),
    (ConsumerConfig, ConsumerOptions),
]


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
