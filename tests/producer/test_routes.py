"""Which connection takes a publish: leaders that move or go, room, windows, idle connections."""

import asyncio

import pytest

from nsq_ha import Backoff, ConfigError, OutgoingMessage
from nsq_ha.errors import ConnectError, NoLeaderError, PublishError
from nsq_ha.producer import connections
from nsq_ha.protocol import Command, Pub
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT, OK, FakeNsqd, Holding, Peer, Publish
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually


async def test_a_partition_has_one_connection(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1], 2: stage.nsqds[0]})
    async with stage.producer() as producer:
        for _ in range(3):
            for partition in range(3):
                await producer.publish(TOPIC, b"x", partition=partition)
    assert [len(nsqd.peers) for nsqd in stage.nsqds] == [2, 1, 0]
    assert {command.partition for command in stage.nsqds[0].commands if isinstance(command, Pub)} == {0, 2}


async def test_a_moved_leader_is_followed_though_the_old_one_is_well(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    async with stage.producer(lookup_interval=0.1) as producer:
        assert (await producer.publish(TOPIC, b"x", key="k")).nsqd == stage.nsqds[0].node.address
        stage.lead({0: stage.nsqds[1]})
        await stage.nsqds[0].until(lambda: not stage.nsqds[0].open_peers)
        assert (await producer.publish(TOPIC, b"x", key="k")).nsqd == stage.nsqds[1].node.address


async def test_the_end_of_the_connection_to_an_old_leader_does_not_delay_the_new_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported while the connection to the new leader is being opened."""
    monkeypatch.setattr(connections, "ANSWER_GRACE", 0.05)
    old, new = stage.nsqds[:2]
    old.script = holding = Holding()
    stage.lead({0: old})
    patient = Backoff(initial=LIMIT, maximum=LIMIT, jitter=0.0)
    async with stage.producer(lookup_interval=0.1, backoff=patient) as producer:
        unanswered = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await old.until(lambda: holding.held)
        began = asyncio.get_running_loop().time()
        stage.lead({0: new})
        assert (await unanswered).nsqd == new.node.address
        assert asyncio.get_running_loop().time() - began < LIMIT / 2
        assert len(new.peers) == 1


async def test_a_new_leader_is_tried_at_once_when_it_ends_an_attempt_at_a_silent_one(stage: Stage) -> None:
    stage.nsqds[1].is_silent = True
    stage.lead({0: stage.nsqds[1]})
    loop = asyncio.get_running_loop()
    patient = Backoff(initial=20.0, maximum=20.0, jitter=0.0)
    async with stage.producer(lookup_interval=0.1, connect_timeout=30.0, backoff=patient) as producer:
        publishing = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqds[1].peer()
        began = loop.time()
        stage.lead({0: stage.nsqds[0]})
        assert (await publishing).nsqd == stage.nsqds[0].node.address
        assert loop.time() - began < 10.0


async def test_an_old_view_is_refreshed_while_a_connection_is_opened(stage: Stage) -> None:
    """Nothing says to a producer without a connection that the leader moved, and the former one may be silent."""
    stage.nsqds[1].is_silent = True
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    loop = asyncio.get_running_loop()
    patient = Backoff(initial=20.0, maximum=20.0, jitter=0.0)
    async with stage.producer(connect_timeout=30.0, backoff=patient, heartbeat_interval=3600.0) as producer:
        await producer.publish(TOPIC, b"x", partition=0)
        await dawdle(400.0)
        asked = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") > asked, 100.0)
        await dawdle(6.0)  # the view is old now, and the next periodic lookup is far away
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[0]})
        began = loop.time()
        assert (await producer.publish(TOPIC, b"x", partition=1)).nsqd == stage.nsqds[0].node.address
        assert loop.time() - began < 2.0


async def test_a_lost_connection_is_looked_up_at_once_at_rest(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    loop = asyncio.get_running_loop()
    async with stage.producer(heartbeat_interval=3600.0) as producer:
        await producer.publish(TOPIC, b"x")
        await dawdle(400.0)
        stage.lead({0: stage.nsqds[1]})
        began = loop.time()
        await stage.nsqds[0].stop()
        assert (await producer.publish(TOPIC, b"x")).nsqd == stage.nsqds[1].node.address
        assert loop.time() - began < 2.0


async def test_a_lookup_without_the_partition_leaves_a_healthy_connection(stage: Stage) -> None:
    async with stage.producer(lookup_interval=0.05) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        stage.lead({}, 1)
        asked = stage.lookupd.count("/lookup")
        while stage.lookupd.count("/lookup") < asked + 5:
            assert (await producer.publish(TOPIC, b"x", key="k")).attempts == 1
    assert len(stage.nsqd.peers) == 1


async def test_a_missing_partition_is_waited_for(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, 2)
    async with stage.producer() as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x", partition=1))
        # Meanwhile the other one works.
        assert (await producer.publish(TOPIC, b"y", partition=0)).attempts == 1
        assert not task.done()
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, 2)
        receipt = await task
        assert (receipt.partition, receipt.nsqd, receipt.attempts) == (1, stage.nsqds[1].node.address, 1)


async def test_a_partition_that_stays_missing_is_reported(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, 2)
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x", partition=0)  # a first lookup may take longer than the time limit below
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", partition=1, timeout=0.3)
        assert isinstance(caught.value.__cause__, NoLeaderError)
        assert (caught.value.partition, caught.value.attempts, caught.value.maybe_stored) == (1, 0, False)


async def test_a_keyless_message_goes_where_it_can(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    await stage.nsqds[1].stop()
    async with stage.producer() as producer:
        receipts = await asyncio.gather(*(producer.publish(TOPIC, b"x", timeout=5.0) for _ in range(20)))
    assert {receipt.partition for receipt in receipts} == {0}


async def test_a_keyed_message_never_goes_elsewhere(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    await stage.nsqds[1].stop()
    async with stage.producer() as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", partition=1, timeout=0.5)
        assert isinstance(caught.value.__cause__, ConnectError)
        await stage.nsqds[1].start()
        assert (await producer.publish(TOPIC, b"x", partition=1)).partition == 1


async def test_a_partition_that_does_not_exist(stage: Stage) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="partition 1"):
            await producer.publish(TOPIC, b"x", partition=1)
        with pytest.raises(ConfigError, match="message 1: partition 9"):
            await producer.publish_many(TOPIC, [b"x", OutgoingMessage(b"y", partition=9)])
    assert stage.nsqd.commands == []


# ------------------------------------------------------------ room


async def test_no_more_than_a_window_is_unanswered(stage: Stage) -> None:
    holding = Holding()
    stage.nsqd.script = holding
    async with stage.producer(window=3) as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"%d" % n, key=n)) for n in range(10)]
        for number in range(8):
            await stage.nsqd.until(lambda: len(holding.held) == 3)
            assert holding.bodies()[0] == b"%d" % number
            holding.release()
        await stage.nsqd.until(lambda: len(holding.held) == 2)
        holding.release(2)
        await asyncio.gather(*tasks)


async def test_a_socket_that_is_full_holds_publishes_back(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x", key="k")
        peer = stage.nsqd.peers[0]
        peer.pause()
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"x" * 1_000_000, key=n)) for n in range(30)]
        conn = topics_of(producer)[TOPIC].lanes[0].conn
        assert conn is not None
        await eventually(lambda: conn.is_full)
        assert len(conn.sent) < 31
        peer.resume()
        await asyncio.gather(*tasks)


# ------------------------------------------------------------ idle connections


async def test_an_idle_connection_is_closed_and_reopened(stage: Stage) -> None:
    async with stage.producer(idle_timeout=1.0) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
        receipt = await producer.publish(TOPIC, b"x", key="k")
        assert receipt.attempts == 1
    assert len(stage.nsqd.peers) == 2


async def test_a_batch_keeps_the_order_of_single_publishes_of_its_keys(stage: Stage) -> None:
    bodies: list[bytes] = []

    def script(peer: Peer, command: Command) -> bool:
        if not isinstance(command, Publish):
            return False
        bodies.extend([command.body] if isinstance(command, Pub) else command.bodies)  # type: ignore[union-attr]
        peer.write(OK)
        return True

    stage.nsqd.script = script
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first", key="k")
        await asyncio.gather(
            producer.publish(TOPIC, b"0", key="k"),
            producer.publish_many(TOPIC, [OutgoingMessage(b"%d" % n, key="k") for n in (1, 2)]),
            producer.publish(TOPIC, b"3", key="k"),
            producer.publish_many(TOPIC, [OutgoingMessage(b"4", key="k"), OutgoingMessage(b"other", key="o")]),
            producer.publish(TOPIC, b"5", key="k"),
        )
    assert [body for body in bodies if body not in (b"first", b"other")] == [b"%d" % n for n in range(6)]


async def test_while_a_leader_is_away_look_ups_go_on_whatever_the_pause_between_tries(stage: Stage) -> None:
    gone = FakeNsqd()
    async with gone:
        stage.lead({0: gone})
    never = Backoff(initial=3600.0, maximum=3600.0, jitter=0.0)
    async with stage.producer(lookup_interval=3600.0, backoff=never) as producer:
        publish = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await eventually(lambda: stage.lookupd.count("/lookup") > 2)
        stage.lead({0: stage.nsqd})
        assert (await asyncio.wait_for(publish, LIMIT)).attempts == 1


async def test_a_topic_without_a_channel_is_named_as_the_reason(stage: Stage) -> None:
    """The error used to hide the reason that nsqlookupd had given."""
    text = "Topic has no channel, should init at least one for the new topic"
    stage.lookupd.answer("/lookup", {"message": text}, 404)
    async with stage.producer() as producer:
        with pytest.raises(PublishError, match=f"accepts no messages yet.*{text}.*subscribe to it once") as caught:
            await producer.publish(TOPIC, b"x", timeout=2.0)  # ample for one lookup, on a busy machine too
    assert isinstance(caught.value.__cause__, NoLeaderError)
