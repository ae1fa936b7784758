"""Spark's offsets in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from fuzz.target import Target
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_INT64, MAX_PARTITION_ID
from nsq_ha.spark import checkpoint


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


def seeds_of_offsets() -> Iterator[bytes]:
    """Yield checkpoints of all ages."""
    places = {("orders", 0): 5, ("orders", 1): 0, ("paid", 3): 2**62}
    yield json.dumps(checkpoint.to_json(places)).encode()
    marks = {("orders", 0): checkpoint.Mark(0, 2**60)}
    yield json.dumps(checkpoint.dated(checkpoint.to_json(places, {("orders", 0): 5}), 1.0, marks=marks)).encode()
    yield from (b'{"orders":{"01":-1}}', b'{"orders":{"0":1.0}}', b"[]", b'{"@marks":{"a":{"0":[1,2]}}}', b'{"a":{}}')


TARGETS: Final = (Target("offsets", "the offsets in a checkpoint of Spark", run_offsets, seeds_of_offsets),)
