"""Options: read on the driver, refused there by name."""

from __future__ import annotations

import logging
import pickle

import pytest

from nsq_ha.errors import ConfigError
from nsq_ha.spark.options import EARLIEST, KNOWN, LATEST, ReadOptions

LEAST = {"lookupd": "127.0.0.1:4161", "topic": "flights"}


def test_defaults() -> None:
    options = ReadOptions.parse(LEAST)
    assert options == ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",))
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert (options.fetch_timeout, options.fetch_retries) == (5.0, 10)
    assert options.fail_on_data_loss
    assert not options.include_headers


def test_everything_at_once_and_in_any_case() -> None:
    options = ReadOptions.parse(
        {
            "LOOKUPD": "one:4161, two",
            "subscribe": "flights,orders",
            "startingoffsets": '{"flights": {"0": 240, "1": -2}}',
            "endingOffsets": '{"orders": {"3": -1}}',
            "fetchtimeout": "250ms",
            "fetchRetries": "0",
            "FailOnDataLoss": "FALSE",
            "includeHeaders": " true ",
        }
    )
    assert options.lookupd == ("http://one:4161", "http://two:4161")
    assert options.topics == ("flights", "orders")
    assert options.starting == {"flights": {0: 240, 1: EARLIEST}}
    assert options.ending == {"orders": {3: LATEST}}
    assert (options.fetch_timeout, options.fetch_retries) == (0.25, 0)
    assert not options.fail_on_data_loss
    assert options.include_headers


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("2.5s", 2.5), ("500 ms", 0.5), ("1m", 60.0), ("10min", 600.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert ReadOptions.parse({**LEAST, "fetchTimeout": text}).fetch_timeout == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lookupd", ""),
        ("lookupd", "ftp://host"),
        ("topic", ""),
        ("topic", "a b"),
        ("topic", "flights,"),
        ("subscribe", "orders"),
        ("startingOffsets", "latest"),
        ("startingOffsets", "nonsense"),
        ("startingOffsets", "[" * 100_000),
        ("startingOffsets", "[]"),
        ("startingOffsets", '{"orders": {}}'),
        ("startingOffsets", '{"flights": 7}'),
        ("startingOffsets", '{"flights": {"-1": 0}}'),
        ("startingOffsets", '{"flights": {"1024": 0}}'),
        ("startingOffsets", '{"flights": {"x": 0}}'),
        ("startingOffsets", '{"flights": {"0": -1}}'),
        ("startingOffsets", '{"flights": {"0": 1.5}}'),
        ("startingOffsets", '{"flights": {"0": true}}'),
        ("startingOffsets", '{"flights": {"0": 9223372036854775808}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"flights": {"0": -2}}'),
        ("fetchTimeout", "5000"),
        ("fetchTimeout", "soon"),
        ("fetchTimeout", "1ms"),
        ("fetchRetries", "-1"),
        ("fetchRetries", "many"),
        ("failOnDataLoss", "maybe"),
        ("includeHeaders", ""),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^option '{name}'"):
        ReadOptions.parse({**LEAST, name: value})


@pytest.mark.parametrize("missing", ["lookupd", "topic"])
def test_a_missing_option_is_asked_for_by_name(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^option '{missing}': is missing"):
        ReadOptions.parse({name: value for name, value in LEAST.items() if name != missing})


def test_an_unknown_option_is_warned_about_with_the_nearest_known_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "nsq_ha.spark"):
        assert ReadOptions.parse({**LEAST, "startingOfsets": "latest", "zzz": "1"}) == ReadOptions.parse(LEAST)
    assert [record.getMessage() for record in caplog.records] == [
        "option 'startingOfsets' of format 'nsq' is unknown and ignored; did you mean 'startingOffsets'?",
        "option 'zzz' of format 'nsq' is unknown and ignored",
    ]


def test_every_known_option_is_taken_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    values = {**LEAST, "subscribe": "flights", "startingOffsets": "earliest", "endingOffsets": "latest"}
    rest = {"fetchTimeout": "5s", "fetchRetries": "10", "failOnDataLoss": "true", "includeHeaders": "false"}
    assert set(values) | set(rest) == set(KNOWN)
    assert ReadOptions.parse({**values, **rest}) == ReadOptions.parse(LEAST)
    assert not caplog.records


def test_options_travel_to_the_workers() -> None:
    options = ReadOptions.parse({**LEAST, "startingOffsets": '{"flights": {"0": 240}}'})
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own
