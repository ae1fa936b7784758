"""Metrics as OpenTelemetry's SDK reads them."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from nsq_ha import telemetry
from nsq_ha.process import metrics
from tests.support.stage import TOPIC, Stage


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    telemetry.enable(meter_provider=provider, spans=False)
    yield reader
    telemetry.disable()
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    [resource] = data.resource_metrics
    [scope] = resource.scope_metrics
    assert scope.scope.name == "nsq_ha"
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


async def test_every_metric_is_read(stage: Stage, reader: InMemoryMetricReader) -> None:
    async with stage.consumer(max_rate=10) as consumer, stage.producer() as producer:
        await producer.publish_many(TOPIC, [b"x"] * 3)
        (await stage.nsqd.subscriber()).message(b"x")
        async with await anext(consumer):
            found = points(reader)
    assert found.keys() == {metric.name for metric in metrics.METRICS}
    [published] = found["nsq_ha.producer.published"]
    assert (published.value, dict(published.attributes)) == (3, {"client": "producer-1"})
    [delivered] = found["nsq_ha.consumer.partition.delivered"]
    assert dict(delivered.attributes) == {"client": "consumer-1", "topic": TOPIC, "channel": "ch", "partition": "0"}


async def test_a_second_switch_on_makes_no_second_instruments(
    stage: Stage, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    provider = MeterProvider([other := InMemoryMetricReader()], shutdown_on_exit=False)
    try:
        telemetry.enable(meter_provider=provider, spans=False)
        telemetry.disable()
        telemetry.enable(meter_provider=provider, spans=False)
        async with stage.producer():
            assert len(points(other)["nsq_ha.client.healthy"]) == 1
            assert points(reader) == {}
    finally:
        provider.shutdown()
    assert caplog.records == []
