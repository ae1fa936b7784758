"""Spark's offsets in a checkpoint, and the options that its users write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from fuzz.target import Target
from nsq_ha.checks import MAX_INT64, MAX_PARTITION_ID
from nsq_ha.errors import ConfigError
from nsq_ha.redaction import forget
from nsq_ha.spark import checkpoint
from nsq_ha.spark.options import KNOWN, ReadOptions, WriteOptions

_NAMES: Final = tuple(sorted(KNOWN))
_NEEDED: Final = {"lookupd": "127.0.0.1:4161", "topic": "orders"}
_READS: Final = {"lookupd": "127.0.0.1:4161"}
_CHOOSES: Final = frozenset(("topic", "subscribe", "subscribePattern", "assign"))


def run_offsets(data: bytes) -> None:
    """A checkpoint of Spark, there and back."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        places = checkpoint.from_json(found)
        restarted = checkpoint.restarted_in(found)
        origin = checkpoint.Origin.of(found)
    except ConfigError as error:
        assert len(str(error)) < 2000
        return
    assert all(0 <= number <= MAX_PARTITION_ID and 0 <= offset <= MAX_INT64 for (_, number), offset in places.items())
    again = checkpoint.dated(checkpoint.to_json(places, restarted), 1.0, marks=origin.marks)
    assert checkpoint.from_json(again) == places
    assert checkpoint.restarted_in(again) == restarted
    assert checkpoint.Origin.of(again).marks == origin.marks
    assert checkpoint.dated(checkpoint.to_json(places, restarted), 2.0, again, marks=origin.marks) == again


def run_options(data: bytes) -> None:
    """The value of one option, for reads, streams and writes."""
    name = _NAMES[data[0] % len(_NAMES)] if data else _NAMES[0]
    text = data[1:].decode("utf-8", "surrogateescape")
    given = (_READS if name in _CHOOSES else _NEEDED) | {name: text}
    for mode in KNOWN[name].modes:
        try:
            if mode == "write":
                WriteOptions.parse(given)
            else:
                _options(ReadOptions.parse(given, mode))
        except ConfigError as error:
            assert str(error)
        finally:
            forget()  # each input may have a secret of its own


def _options(options: ReadOptions) -> None:
    for found in (
        options.starting_offsets,
        options.ending_offsets,
        options.starting_offsets_by_timestamp,
        options.ending_offsets_by_timestamp,
    ):
        if isinstance(found, Mapping):
            assert all(0 <= number <= MAX_PARTITION_ID for numbers in found.values() for number in numbers)
    assert options.choice or not options.topics
    if options.subscribe_pattern is None:
        options.reads("orders", 0)


def seeds_of_offsets() -> Iterator[bytes]:
    """Yield checkpoints of all ages."""
    places = {("orders", 0): 5, ("orders", 1): 0, ("paid", 3): 2**62}
    yield json.dumps(checkpoint.to_json(places)).encode()
    marks = {("orders", 0): checkpoint.Mark(0, 2**60)}
    yield json.dumps(checkpoint.dated(checkpoint.to_json(places, {("orders", 0): 5}), 1.0, marks=marks)).encode()
    yield from (b'{"orders":{"01":-1}}', b'{"orders":{"0":1.0}}', b"[]", b'{"@marks":{"a":{"0":[1,2]}}}', b'{"a":{}}')


def seeds_of_options() -> Iterator[bytes]:
    """Yield a right value, or nearly one, for each option."""
    values = (b'{"orders":{"0":-2,"1":70}}', b"1767225600000", b"10s", b"64k", b"true", b"orders,paid", b'{"o":[0,2]}')
    others = (
        b"earliest",
        b"snappy",
        b"orders.*",
        b"127.0.0.1:4161",
        b"/tmp/spool",
        b'{"o":{"0":1767225600000}}',
        b"-1",
    )
    for number in range(len(_NAMES)):
        for value in (values + others)[number % 5 :: 5]:
            yield bytes((number,)) + value
        yield bytes((number,)) + values[0]


TARGETS: Final = (
    Target("offsets", "the offsets in a checkpoint of Spark", run_offsets, seeds_of_offsets),
    Target("options", "the value of an option of Spark's source or sink", run_options, seeds_of_options, 1),
)
