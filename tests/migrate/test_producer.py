"""Publishing to two clusters: where each message goes, and when a key may move."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ClosedError, ConfigError, Consumer, OutgoingMessage, Producer, PublishError, Receipt
from nsq_ha.migrate import MigratingProducer, Publisher
from tests.support.waiting import turn

if TYPE_CHECKING:
    from tests.migrate.conftest import Scene


def start(call: Any) -> asyncio.Task[Any]:  # noqa: ANN401
    return asyncio.ensure_future(call)


# -- where messages go


@pytest.mark.parametrize(("share", "expected"), [(0, "previous"), (100, "current")])
async def test_at_the_ends_all_goes_to_one_cluster(scene: Scene, share: float, expected: str) -> None:
    async with scene.producer(share) as producer:
        await producer.publish("t", b"1")
        await producer.publish("t", b"2", key="k")
        await producer.publish("t", b"3", partition=1)
        await producer.publish_many("t", [b"4", OutgoingMessage(b"5", key=7)])
    assert {sent.cluster for sent in scene.sent} == {expected}
    assert [sent.body for sent in scene.sent] == [b"1", b"2", b"3", b"4", b"5"]


async def test_each_topic_has_its_share(scene: Scene) -> None:
    async with scene.producer({"a": 100, "*": 50}) as producer:
        assert [producer.share_of(topic) for topic in "ab"] == [100, 50]
        for _ in range(4):
            await producer.publish("a", b"a")
            await producer.publish("b", b"b")
    of_b = [sent.cluster for sent in scene.sent if sent.body == b"b"]
    assert {sent.cluster for sent in scene.sent if sent.body == b"a"} == {"current"}
    assert of_b == ["previous", "current"] * 2


async def test_a_key_has_one_cluster_in_all_of_its_forms(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        for number in range(50):
            for key in (number, str(number), str(number).encode()):
                await producer.publish("t", b"%d" % number, key=key)
    places = {(sent.body, sent.cluster) for sent in scene.sent}
    assert len(places) == 50
    assert {cluster for _, cluster in places} == {"previous", "current"}


async def test_a_raised_share_moves_keys_and_a_lowered_one_moves_the_same_back(scene: Scene) -> None:
    async with scene.producer(20) as producer:
        found = []
        for share in (20, 60, 20):
            producer.set_share(share)
            scene.sent.clear()
            for number in range(200):
                await producer.publish("t", b"%d" % number, key=number)
            found.append({sent.body for sent in scene.sent if sent.cluster == "current"})
    assert found[0] < found[1]
    assert found[0] == found[2]


async def test_named_partitions_move_at_the_end(scene: Scene) -> None:
    async with scene.producer(99) as producer:
        await producer.publish("t", b"1", partition=3)
        producer.set_share(100, "t")
        await producer.publish_many("t", [OutgoingMessage(b"2", partition=3)])
    assert scene.places() == [(b"1", "previous"), (b"2", "current")]


async def test_everything_is_passed_on(scene: Scene) -> None:
    async with scene.producer(100) as producer:
        receipt = await producer.publish("t", b"1", key="k", trace_id=7, timeout=3.0)
    assert receipt == Receipt("t", 0, "current", trace_id=7)
    assert scene.current.timeouts == [3.0]


# -- a key moves when its publishes are answered


async def test_a_key_moves_after_its_last_answer_and_keeps_its_order(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = [start(producer.publish("t", b"%d" % number, key="k")) for number in range(2)]
        await turn()
        producer.set_share(100)
        then = [start(producer.publish("t", b"%d" % number, key="k", timeout=60.0)) for number in (2, 3, 4)]
        other = start(producer.publish("t", b"other", key="o"))
        await turn(3)
        assert scene.places() == [(b"0", "previous"), (b"1", "previous"), (b"other", "current")]
        assert producer.moving == 3
        scene.sent[0].answer.set_result(None)
        await turn(5)
        assert producer.moving == 3
        scene.sent[1].answer.set_result(None)
        await turn(10)
        assert scene.places()[3:] == [(b"2", "current"), (b"3", "current"), (b"4", "current")]
        assert producer.moving == 0
        assert 0 < (scene.current.timeouts[-1] or 0) <= 60.0  # the wait counts
        for sent in scene.sent[2:]:
            sent.answer.set_result(None)
        await asyncio.gather(*first, *then, other)


async def test_a_call_between_the_answer_and_those_that_wait_does_not_overtake_them(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        waiting = start(producer.publish("t", b"1", key="k"))
        await turn()
        scene.sent[0].answer.set_result(None)
        calls = []
        for number in range(2, 12):  # one in each turn of the loop, so one of them meets each moment of the move
            calls.append(start(producer.publish("t", b"%d" % number, key="k")))
            await turn()
        await turn(30)
        assert [body for body, _ in scene.places()] == [b"%d" % number for number in range(12)]
        for sent in scene.sent[1:]:
            sent.answer.set_result(None)
        await asyncio.gather(first, waiting, *calls)


@pytest.mark.parametrize("maybe_stored", [True, False])
async def test_a_failed_publish_counts_as_answered(scene: Scene, maybe_stored: bool) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        second = start(producer.publish("t", b"1", key="k"))
        await turn()
        error = PublishError("x", topic="t", partition=0, attempts=1, maybe_stored=maybe_stored)
        scene.sent[0].answer.set_exception(error)
        await turn(4)
        assert scene.places()[1:] == [(b"1", "current")]
        scene.sent[1].answer.set_result(None)
        await second
        with pytest.raises(PublishError):
            await first


async def test_cancelled_publishes_hold_nobody_up(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        waiting = [start(producer.publish("t", b"%d" % number, key="k")) for number in (1, 2, 3)]
        await turn()
        waiting[0].cancel()
        waiting[1].cancel()
        await turn(3)
        assert producer.moving == 1
        first.cancel()
        await turn(4)
        assert scene.places()[1:] == [(b"3", "current")]
        scene.sent[1].answer.set_result(None)
        await waiting[2]
        assert all(task.cancelled() for task in (first, *waiting[:2]))


async def test_one_cancelled_in_the_turn_of_its_wake_up_wakes_the_next(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        waiting = [start(producer.publish("t", b"%d" % number, key="k")) for number in (1, 2)]
        await turn()
        scene.sent[0].answer.set_result(None)  # in the next turn `first` ends, and wakes the first that waits,
        asyncio.get_running_loop().call_soon(waiting[0].cancel)  # which is cancelled before it runs
        await turn(6)
        assert first.done()
        assert scene.places()[1:] == [(b"2", "current")]
        scene.sent[1].answer.set_result(None)
        await waiting[1]


async def test_if_the_share_changes_back_while_a_key_waits_it_stays(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        second = start(producer.publish("t", b"1", key="k"))
        await turn()
        producer.set_share(0)
        scene.sent[0].answer.set_result(None)
        await turn(4)
        assert scene.places()[1:] == [(b"1", "previous")]
        scene.sent[1].answer.set_result(None)
        await asyncio.gather(first, second)


async def test_a_key_that_cannot_move_in_time_is_not_sent(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        with pytest.raises(PublishError, match="publish to t not sent: a key moves to the other cluster") as caught:
            await producer.publish("t", b"1", key="k", timeout=0.01)
        assert (caught.value.maybe_stored, caught.value.attempts) == (False, 0)
        outcomes = await producer.publish_many("t", [b"2", OutgoingMessage(b"3", key="k")], timeout=0.01)
        assert [type(outcome) for outcome in outcomes] == [PublishError] * 2
        with pytest.raises(ConfigError, match="timeout must be"):
            await producer.publish("t", b"1", key="k", timeout=-1)
        assert producer.moving == 0
        scene.sent[0].answer.set_result(None)
        await first
    assert len(scene.sent) == 1


# -- batches


async def test_a_batch_is_split_and_its_outcomes_keep_their_places(scene: Scene) -> None:
    messages = [OutgoingMessage(b"%d" % number, key=number) for number in range(100)]
    async with scene.producer(50) as producer:
        outcomes = await producer.publish_many("t", [*messages, b"x", b"y"])
    bodies = {"previous": scene.previous.batches[0], "current": scene.current.batches[0]}
    assert (len(scene.previous.batches), len(scene.current.batches)) == (1, 1)
    assert bodies["previous"][-1:] + bodies["current"][-1:] == [b"x", b"y"]
    for message, outcome in zip([*(message.body for message in messages), b"x", b"y"], outcomes, strict=True):
        assert isinstance(outcome, Receipt)
        assert message in bodies["current" if outcome.nsqd == "current" else "previous"]
    assert [body for body in bodies["current"] if body != b"y"] == sorted(bodies["current"][:-1], key=int)


async def test_no_later_publish_overtakes_a_batch_to_both_clusters(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        scene.hold()
        batch = start(producer.publish_many("t", [OutgoingMessage(b"b", key=number) for number in range(20)]))
        later = [start(producer.publish("t", b"later", key=number)) for number in range(20)]
        await turn(60)
        assert [body for body, _ in scene.places()] == [b"b"] * 20 + [b"later"] * 20
        for sent in scene.sent:
            sent.answer.set_result(None)
        await asyncio.gather(batch, *later)


async def test_two_batches_with_the_same_moving_keys_do_not_block_each_other(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        keys = list(range(6))
        held = [start(producer.publish("t", b"held", key=key)) for key in keys]
        await turn()
        producer.set_share(100)
        batches = [
            start(producer.publish_many("t", [OutgoingMessage(b"%d" % number, key=key) for key in order]))
            for number, order in enumerate((keys, keys[::-1]))
        ]
        await turn()
        for sent in scene.sent[3:6] + scene.sent[:3]:
            sent.answer.set_result(None)
            await turn(3)
        await turn(6)
        assert scene.current.batches == [[b"0"] * 6, [b"1"] * 6]
        for sent in scene.sent[6:]:
            sent.answer.set_result(None)
        await asyncio.gather(*held, *batches)


async def test_a_wrong_message_stops_a_batch_to_both_clusters_with_its_position(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        with pytest.raises(ConfigError, match="message 3: a body must not be empty"):
            await producer.publish_many("t", [b"0", b"1", b"2", b""])
        with pytest.raises(ConfigError, match="messages must be a list"):
            await producer.publish_many("t", b"0")  # type: ignore[arg-type]
        assert await producer.publish_many("t", []) == []
    assert scene.sent == []


async def test_a_batch_to_both_clusters_may_have_what_the_producers_accept(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        outcomes = await producer.publish_many("t", [b"0", b"x" * 2_000_000])
        with pytest.raises(ConfigError, match=r"message 1: .*exceeds max_message_bytes=3000000"):
            await producer.publish_many("t", [b"0", b"x" * 3_000_001])
    assert [type(outcome) for outcome in outcomes] == [Receipt, Receipt]


async def test_if_one_cluster_refuses_its_part_the_outcomes_say_so(scene: Scene) -> None:
    reason = ConfigError("topic 't' accepts no headers")
    scene.current.refusal = ConfigError("message 0: topic 't' accepts no headers")
    scene.current.refusal.__cause__ = reason
    async with scene.producer(50) as producer:
        outcomes = await producer.publish_many("t", [b"0", b"1", b"2", b"3"])
    assert [type(outcome) for outcome in outcomes] == [Receipt, PublishError] * 2
    error = outcomes[1]
    assert isinstance(error, PublishError)
    assert str(error) == (
        "publish to t not sent: the current cluster refused its part of the batch: topic 't' accepts no headers"
    )
    assert error.__cause__ is reason
    assert not error.maybe_stored


@pytest.mark.parametrize("error", [ClosedError("closed"), ZeroDivisionError()])
async def test_what_ends_both_parts_ends_the_batch(scene: Scene, error: Exception) -> None:
    scene.current.refusal = scene.previous.refusal = error
    async with scene.producer(50) as producer:
        with pytest.raises(type(error)):
            await producer.publish_many("t", [b"0", b"1"])


async def test_a_cancelled_batch_frees_its_keys(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        scene.hold()
        batch = start(producer.publish_many("t", [OutgoingMessage(b"b", key=number) for number in range(20)]))
        await turn(4)
        batch.cancel()
        await asyncio.wait({batch})
        scene.previous.answers_at_once = scene.current.answers_at_once = True
        producer.set_share(100)
        async with asyncio.timeout(5):
            for number in range(20):
                await producer.publish("t", b"then", key=number)
    assert batch.cancelled()


# -- arguments and life


async def test_wrong_arguments_are_refused_as_by_a_producer(scene: Scene) -> None:
    async with scene.producer(50) as producer:
        with pytest.raises(ConfigError, match="key= and partition="):
            await producer.publish("t", b"1", key="k", partition=1)
        with pytest.raises(ConfigError, match="topic"):
            await producer.publish(["t"], b"1")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="topic"):
            await producer.publish_many(["t"], [b"1"])  # type: ignore[arg-type]
        for message in (OutgoingMessage(b"1", key=1.5), OutgoingMessage(b"1", key=True)):  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="message 1: a key must be"):
                await producer.publish_many("t", [b"0", message])
        with pytest.raises(ConfigError, match="message 1: an int must have at most 14000 bits"):
            await producer.publish_many("t", [b"0", OutgoingMessage(b"1", key=2**50_000)])
        with pytest.raises(ConfigError, match="share must be"):
            producer.set_share(101)
        with pytest.raises(ConfigError, match="topic"):
            producer.set_share(10, "a b")


async def test_it_takes_two_producers() -> None:
    producer = Producer(lookupd="127.0.0.1:1")
    with pytest.raises(ConfigError, match="same producer"):
        MigratingProducer(producer, producer, share=0)
    with pytest.raises(ConfigError, match="current must be a Producer, not Consumer"):
        MigratingProducer(producer, Consumer("t", "c", lookupd="127.0.0.1:1"), share=0)  # type: ignore[arg-type]


async def test_it_is_a_publisher_as_a_producer_is(scene: Scene) -> None:
    async def send(publisher: Publisher) -> Receipt:
        return await publisher.publish("t", b"1")

    async with scene.producer(100) as producer:
        assert (await send(producer)).nsqd == "current"
        publisher: Publisher = Producer(lookupd="127.0.0.1:1")
        assert publisher is not None


@pytest.mark.parametrize("name", ["publish", "publish_many"])
def test_the_calls_are_those_of_a_producer(name: str) -> None:
    ours, theirs, either = (getattr(kind, name) for kind in (MigratingProducer, Producer, Publisher))
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert inspect.signature(either) == inspect.signature(theirs)


async def test_it_is_used_inside_its_block_only(scene: Scene) -> None:
    producer = scene.producer(0)
    with pytest.raises(ClosedError, match="async with"):
        await producer.publish("t", b"1")
    await producer.aclose()
    async with producer:
        pass
    with pytest.raises(ClosedError, match="the producer is closed"):
        await producer.publish_many("t", [b"1"])
    assert scene.previous.was_closed
    assert scene.current.was_closed
    await producer.aclose()


async def test_closing_lets_waiting_publishes_through(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        second = start(producer.publish("t", b"1", key="k"))
        await turn()
        closing = start(producer.aclose())
        await turn(2)
        scene.current.answers_at_once = True
        scene.sent[0].answer.set_result(None)
        await closing
    assert (await first).nsqd == "previous"
    assert (await second).nsqd == "current"


async def test_closing_ends_in_time(scene: Scene) -> None:
    async with scene.producer(0) as producer:
        scene.hold()
        first = start(producer.publish("t", b"0", key="k"))
        await turn()
        producer.set_share(100)
        second = start(producer.publish("t", b"1", key="k"))
        await turn()
    with pytest.raises(ClosedError):
        await second
    first.cancel()  # a real producer ends it when it closes
    await asyncio.wait({first})
