"""``nsq-ha bench``: bounded, honest, and only on this machine unless it is asked twice."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from nsq_ha.cli import bench as module
from nsq_ha.cli.bench import BenchOptions, Measuring, percentile
from nsq_ha.errors import PublishError
from nsq_ha.message import Message
from tests.cli.test_to_file import Source

if TYPE_CHECKING:
    import pytest

    from nsq_ha.devcluster import DevCluster
    from tests.cli.conftest import Invoke


def test_all_that_is_published_is_consumed(either: DevCluster, invoke: Invoke, name: str) -> None:
    either.create_topic(name)
    result = invoke("bench", name, "-n", "300", "--size", "50", "--json", lookupd=",".join(either.lookupd))
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["failed"], found["missing"], found["size"]) == (0, 0, 50)
    for side in ("publish", "consume"):
        assert found[side]["messages"] == 300
        assert 0 < found[side]["p50_ms"] <= found[side]["p99_ms"] <= found[side]["max_ms"]
        assert found[side]["per_second"] > 0


def test_ordered_topics_get_keys(invoke: Invoke, ordered: str) -> None:
    result = invoke("bench", ordered, "-n", "50", "--table", "--no-consume")
    assert result.exit_code == 0, result.stderr
    assert f"{ordered}: bodies of 100 bytes, latencies in ms" in result.stdout
    assert " publish " in result.stdout
    assert " consume " not in result.stdout


def test_another_machine_needs_yes(invoke: Invoke, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_loopback", lambda _: False)
    refused = invoke("bench", topic, "-n", "1", "--no-consume")
    assert refused.exit_code == 1
    assert "is not on this machine (127.0.0.1)" in refused.stderr
    assert invoke("bench", topic, "-n", "1", "--no-consume", "--yes").exit_code == 0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (50, 95, 99, 99.9, 100)] == [50, 95, 99, 100, 100]
    assert (percentile([7.0], 50), percentile([], 50)) == (7.0, 0.0)


async def test_a_message_whose_publish_failed_does_not_stand_for_one_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUIET", 0.01)
    bodies: list[bytes] = []

    class Client:
        """A producer whose first message is stored without an answer, and a consumer that gets only that one."""

        async def publish(self, topic: str, body: bytes, *, key: int | None) -> None:
            bodies.append(body)
            if len(bodies) == 1:
                raise PublishError("no answer", topic=topic, partition=0, attempts=1, maybe_stored=True)

        async def __anext__(self) -> Message:
            if len(bodies) < 2:
                await asyncio.Event().wait()
            return Message(bytes(16), bodies.pop(0), 1, 5, Source())

    client: Any = Client()
    options = BenchOptions(count=2, seconds=60.0, size=50, in_flight=1, consume=True)
    measuring = Measuring("orders", options, is_ordered=False)
    await measuring.publish(client)
    await measuring.consume(client)
    found = measuring.result().as_dict()
    assert (found["failed"], found["missing"]) == (1, 1)
    assert (found["publish"]["messages"], found["consume"]["messages"]) == (1, 1)
