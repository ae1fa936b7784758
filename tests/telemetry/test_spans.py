"""Spans of publishes, arriving messages and handlers, as OpenTelemetry's SDK receives them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from nsq_ha import Consumer, OutgoingMessage, Producer, telemetry, tracelog
from nsq_ha.devcluster import DevCluster
from nsq_ha.engine import observe
from nsq_ha.errors import ConfigError, PublishError
from nsq_ha.message import Message
from nsq_ha.protocol import Finish, Layout, Mpub, Pub
from nsq_ha.protocol.commands import PubExt
from tests.support.nsqd import Holding, Publish, Refusing, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

LIMIT: Final = 60.0


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.enable(tracer_provider=provider, metrics=False)
    yield exporter
    telemetry.disable()
    assert not observe.watched.is_any


def spans_of(exporter: InMemorySpanExporter, operation: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if attributes(span)["messaging.operation.name"] == operation]


def one(exporter: InMemorySpanExporter, operation: str) -> ReadableSpan:
    [span] = spans_of(exporter, operation)
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def some(span: ReadableSpan, *names: str) -> dict[str, Any]:
    found = attributes(span)
    return {name: found[f"messaging.{name}"] for name in names if f"messaging.{name}" in found}


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == ids(parent)


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def traceparent(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def headers(command: object) -> dict[str, object]:
    assert isinstance(command, PubExt)
    found: dict[str, object] = json.loads(command.ext)
    return found


# ---------------------------------------------------------------- publishing


async def test_a_publish_without_headers(stage: Stage, exporter: InMemorySpanExporter) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"paid", key="user-42")
    span = one(exporter, "publish")
    assert (span.name, span.kind, span.status.status_code) == (f"publish {TOPIC}", SpanKind.PRODUCER, StatusCode.UNSET)
    assert attributes(span) == {
        "messaging.system": "nsq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.message.body.size": 4,
        "messaging.nsq.attempts": 1,
        "server.address": "127.0.0.1",
        "server.port": stage.nsqd.port,
    }
    [command] = stage.nsqd.peers[0].of(Pub)
    assert isinstance(command, Pub)
    assert command.body == b"paid"


async def test_the_context_travels_in_the_headers_of_an_extended_topic(
    stage: Stage, exporter: InMemorySpanExporter
) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    token = context.attach(baggage.set_baggage("tenant", "7"))
    try:
        async with stage.producer() as producer:
            await producer.publish(TOPIC, b"x")  # the first one waits for the lookup
            await producer.publish(TOPIC, b"x", headers={"kind": "paid"}, tag="blue")
            await producer.publish(TOPIC, b"x", headers={"traceparent": "mine"})
    finally:
        context.detach(token)
    first, second, third = spans_of(exporter, "publish")
    commands = [headers(command) for command in stage.nsqd.peers[0].of(PubExt)]
    assert commands == [
        {"traceparent": traceparent(first), "baggage": "tenant=7"},
        {
            "traceparent": traceparent(second),
            "baggage": "tenant=7",
            "kind": "paid",
            "##client_dispatch_tag": "blue",
        },
        {"traceparent": "mine"},
    ]
    assert attributes(third)["messaging.message.body.size"] == 1


async def test_a_context_that_would_make_a_message_too_large_is_left_out(
    stage: Stage, exporter: InMemorySpanExporter
) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.producer(max_message_bytes=100) as producer:
        await producer.publish(TOPIC, b"x" * 90)
        assert await producer.publish_many(TOPIC, [b"x" * 90] * 2)
    assert [len(peer.of(Pub)) for peer in stage.nsqd.peers] == [1]
    assert [len(peer.of(Mpub)) for peer in stage.nsqd.peers] == [1]
    assert len(spans_of(exporter, "publish")) == 2


async def test_the_span_is_a_child_of_the_applications(stage: Stage, exporter: InMemorySpanExporter) -> None:
    async with stage.producer() as producer:
        tracer = trace.get_tracer("app", tracer_provider=TracerProvider(shutdown_on_exit=False))
        with tracer.start_as_current_span("order") as order:
            await asyncio.gather(producer.publish(TOPIC, b"x"), producer.publish(TOPIC, b"x"))
            assert trace.get_current_span() is order
    first, second = spans_of(exporter, "publish")
    assert first.parent == second.parent == order.get_span_context()


@pytest.mark.parametrize("extended", [False, True])
async def test_a_batch_has_one_span(stage: Stage, exporter: InMemorySpanExporter, *, extended: bool) -> None:
    stage.lead({0: stage.nsqd}, extended=extended)
    async with stage.producer() as producer:
        first = await producer.publish_many(TOPIC, [b"x"] * 3)
        mixed = [OutgoingMessage(b"a", key="k"), OutgoingMessage(b"b")]
        second = await producer.publish_many(TOPIC, mixed)
    assert not [outcome for outcome in (*first, *second) if isinstance(outcome, PublishError)]
    spans = spans_of(exporter, "publish")
    assert [some(span, "batch.message_count", "destination.partition.id") for span in spans] == [
        {"batch.message_count": 3, "destination.partition.id": "0"},
        {"batch.message_count": 2, "destination.partition.id": "0"},
    ]
    if extended:
        sent = repr(stage.nsqd.commands)
        assert [sent.count(traceparent(span)) for span in spans] == [3, 2], sent


async def test_a_refused_publish(stage: Stage, exporter: InMemorySpanExporter) -> None:
    stage.nsqd.script = Refusing(Publish, "E_BAD_MESSAGE no")
    async with stage.producer() as producer:
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x")
        with pytest.raises(ConfigError):
            await producer.publish(TOPIC, b"")
    refused, wrong = spans_of(exporter, "publish")
    assert (refused.status.status_code, attributes(refused)["error.type"]) == (StatusCode.ERROR, "E_BAD_MESSAGE")
    assert some(refused, "nsq.maybe_stored", "nsq.attempts") == {"nsq.maybe_stored": False, "nsq.attempts": 1}
    assert [event.name for event in refused.events] == ["exception"]
    assert (attributes(wrong)["error.type"], "messaging.nsq.maybe_stored" in attributes(wrong)) == (
        "ConfigError",
        False,
    )


async def test_an_uncertain_publish_is_marked(stage: Stage, exporter: InMemorySpanExporter) -> None:
    stage.nsqd.script = Holding()
    async with stage.producer() as producer:
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x", timeout=0.2)
        outcomes = await producer.publish_many(TOPIC, [b"x"] * 2, timeout=0.2)
    assert len(outcomes) == 2
    single, batch = spans_of(exporter, "publish")
    assert (single.status.status_code, some(single, "nsq.maybe_stored")) == (
        StatusCode.ERROR,
        {"nsq.maybe_stored": True},
    )
    assert batch.status.description == "2 of 2 messages failed"
    assert some(batch, "nsq.failed", "nsq.uncertain") == {"nsq.failed": 2, "nsq.uncertain": 2}


async def test_a_cancelled_publish_ends_its_span(stage: Stage, exporter: InMemorySpanExporter) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer() as producer:
        publishing = asyncio.create_task(producer.publish(TOPIC, b"x"))
        await eventually(lambda: holding.has(1))
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert attributes(one(exporter, "publish"))["error.type"] == "CancelledError"
        holding.release()


async def test_spans_begin_and_end_with_the_switch(stage: Stage) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        telemetry.enable(tracer_provider=provider, metrics=False)
        try:
            await producer.publish(TOPIC, b"x")
            assert observe.watched.is_any
        finally:
            telemetry.disable()
        await producer.publish(TOPIC, b"x")
    assert len(exporter.get_finished_spans()) == 1
    assert not observe.watched.is_any
    assert not tracelog.switch.is_on(TOPIC)


class BrokenTracer:
    """A tracer that fails in every way."""

    def begin_publish(self, topic: str, messages: object) -> observe.Span:
        raise ValueError(topic)

    def delivered(self, topic: str, messages: object) -> None:
        raise ValueError(topic)

    def begin_process(self, topic: str, messages: object) -> observe.Span:
        raise ValueError(topic)


async def test_a_tracer_that_fails_hurts_nobody(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[bytes] = []
    consumer = stage.consumer()

    async def handle(message: Message) -> None:
        handled.append(message.body)
        await consumer.aclose()

    observe.trace_spans(BrokenTracer())
    try:
        async with stage.producer() as producer:
            await producer.publish(TOPIC, b"x")
            await producer.publish_many(TOPIC, [b"x"] * 2)
        async with consumer:
            (await stage.nsqd.subscriber()).message(b"x")
            await consumer.run(handle)
    finally:
        observe.trace_spans(None)
    assert handled == [b"x"]
    assert len([each for each in caplog.records if each.getMessage().startswith("tracing spans failed")]) <= 1


# ---------------------------------------------------------------- consuming


@pytest.fixture
async def consumer(stage: Stage) -> AsyncIterator[Consumer]:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer() as consumer:
        yield consumer


PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARENT_IDS: Final = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
EXT: Final = json.dumps({"traceparent": PARENT}).encode()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handler_runs_in_the_trace_of_the_publish(
    stage: Stage, consumer: Consumer, exporter: InMemorySpanExporter, kind: str
) -> None:
    seen: list[int] = []

    def look(_: Message) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        asyncio.run_coroutine_threadsafe(consumer.aclose(), loop) if kind == "thread" else None

    async def handle(message: Message) -> None:
        look(message)
        await consumer.aclose()

    loop = asyncio.get_running_loop()
    (await stage.nsqd.subscriber()).message(b"paid", message_id(2, trace_id=7), layout=Layout.EXT_DETAIL, ext=EXT)
    await consumer.run(look if kind == "thread" else handle)
    assert seen == [PARENT_IDS[0]]
    received, processed = one(exporter, "receive"), one(exporter, "process")
    assert (received.name, received.kind, received.parent) == (f"receive {TOPIC}", SpanKind.CLIENT, None)
    assert (processed.name, processed.kind) == (f"process {TOPIC}", SpanKind.CONSUMER)
    assert processed.parent is not None
    assert (processed.parent.trace_id, processed.parent.span_id) == PARENT_IDS
    assert linked(received) == linked(processed) == {PARENT_IDS}
    common = {
        "messaging.system": "nsq",
        "messaging.destination.name": TOPIC,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "ch",
        "messaging.message.id": "2",
        "messaging.message.conversation_id": "7",
        "messaging.message.body.size": 4,
        "messaging.nsq.attempts": 1,
        "messaging.nsq.offset": 0,
        "server.address": "127.0.0.1",
        "server.port": stage.nsqd.port,
    }
    assert attributes(processed) == {
        **common, "messaging.operation.type": "process", "messaging.operation.name": "process"
    }  # fmt: skip
    assert attributes(received) == {
        **common, "messaging.operation.type": "receive", "messaging.operation.name": "receive"
    }  # fmt: skip


@pytest.mark.parametrize("ext", [None, b"[]", b"{", b'{"traceparent": 7}', b'{"traceparent": "00-zz"}'])
async def test_a_message_without_a_usable_context_begins_a_trace(
    stage: Stage, consumer: Consumer, exporter: InMemorySpanExporter, ext: bytes | None
) -> None:
    async def handle(_: Message) -> None:
        await consumer.aclose()

    (await stage.nsqd.subscriber()).message(b"x", layout=Layout.EXT_DETAIL, ext=ext)
    await consumer.run(handle)
    processed = one(exporter, "process")
    assert (processed.parent, list(processed.links), processed.status.status_code) == (None, [], StatusCode.UNSET)


async def test_an_error_of_a_handler_is_recorded(
    stage: Stage, consumer: Consumer, exporter: InMemorySpanExporter
) -> None:
    async def handle(_: Message) -> None:
        await consumer.aclose()
        raise KeyError("no such order")

    (await stage.nsqd.subscriber()).message(b"x", layout=Layout.EXT_DETAIL)
    await consumer.run(handle)
    processed = one(exporter, "process")
    assert (processed.status.status_code, attributes(processed)["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_an_error_without_a_text_ends_its_span(
    stage: Stage, consumer: Consumer, exporter: InMemorySpanExporter
) -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise LookupError

    async def handle(_: Message) -> None:
        await consumer.aclose()
        raise BrokenError

    (await stage.nsqd.subscriber()).message(b"x", layout=Layout.EXT_DETAIL)
    await consumer.run(handle)
    assert str(attributes(one(exporter, "process"))["error.type"]).endswith("BrokenError")


async def test_iterating_code_makes_its_own_spans(
    stage: Stage, consumer: Consumer, exporter: InMemorySpanExporter
) -> None:
    peer = await stage.nsqd.subscriber()
    peer.message(b"x", layout=Layout.EXT_DETAIL, ext=EXT)
    message = await anext(consumer)
    with telemetry.process(message):
        async with message:
            assert trace.get_current_span().get_span_context().trace_id == PARENT_IDS[0]
    await stage.nsqd.until(lambda: peer.of(Finish))
    for number in range(3):
        peer.message(b"x", message_id(3 + number), layout=Layout.EXT_DETAIL, ext=EXT)
    async for batch in consumer.batches(max_messages=3, max_wait=LIMIT):
        with telemetry.process(batch):
            batch.finish()
        break
    single, several = spans_of(exporter, "process")
    assert single.parent is not None
    assert (several.parent, linked(several)) == (None, {PARENT_IDS})
    assert some(several, "batch.message_count", "message.id") == {"batch.message_count": 3}
    with pytest.raises(ConfigError, match="at least one message"), telemetry.process([]):
        pass


async def test_process_does_nothing_if_spans_are_off(stage: Stage, consumer: Consumer) -> None:
    (await stage.nsqd.subscriber()).message(b"x", layout=Layout.EXT_DETAIL, ext=EXT)
    message = await anext(consumer)
    with telemetry.process(message):
        assert trace.get_current_span() is trace.INVALID_SPAN
        message.finish()


# ---------------------------------------------------------------- from end to end


@pytest.mark.real_time
async def test_one_trace_from_the_publish_to_the_handler(exporter: InMemorySpanExporter) -> None:
    with DevCluster() as cluster:
        cluster.create_topic("orders", 1, extended=True)
        cluster.create_topic("plain", 1)
        for topic in ("orders", "plain"):
            async with Consumer(topic, "billing", lookupd=cluster.lookupd) as consumer:

                async def handle(message: Message, consumer: Consumer = consumer) -> None:
                    assert message.body == b"paid"
                    await consumer.aclose()

                async with Producer(lookupd=cluster.lookupd) as producer:
                    await producer.publish(topic, b"paid", trace_id=77)
                await asyncio.wait_for(consumer.run(handle), LIMIT)
    (orders, plain), (first, second) = spans_of(exporter, "publish"), spans_of(exporter, "process")
    assert is_child(first, orders)
    assert linked(first) == {ids(orders)}
    # Without headers the trace id of NSQ joins them.
    assert not is_child(second, plain)
    joined = ("message.conversation_id", "message.id")
    assert some(plain, *joined) == some(second, *joined)
    assert some(plain, "message.conversation_id") == {"message.conversation_id": "77"}


# ---------------------------------------------------------------- without OpenTelemetry


def test_nothing_imports_opentelemetry_by_itself() -> None:
    code = (
        "import sys, nsq_ha, nsq_ha.sync, nsq_ha.prometheus, nsq_ha.worker\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    import nsq_ha.telemetry\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=6 * LIMIT)
    assert (done.stdout, done.stderr) == (
        "nsq_ha.telemetry needs OpenTelemetry's API: install nsq_ha[otel]\n",
        "",
    )
