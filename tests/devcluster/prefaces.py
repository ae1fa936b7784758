"""What has to happen before, or in the middle of, single recorded exchanges."""

import time
from collections.abc import Callable
from functools import partial

from nsq_ha.protocol.encoding import MAGIC
from tests.devcluster.probes import until
from tests.devcluster.replay import Replay, first_target, put_messages, subscription
from tests.devcluster.stage import Stage
from tests.devcluster.wire import Wire, connect, message_id, pub

Preface = Callable[[Replay], None]


def _subscribed(replay: Replay) -> tuple[str, str, int]:
    found = subscription(replay.exchange)
    assert found is not None
    return found


def _id_in_commands(replay: Replay) -> bytes:
    """The first message id that the client names."""
    for step in replay.exchange["steps"]:
        for word in step.get("args", []):
            if word.startswith("hex:"):
                return bytes.fromhex(word.removeprefix("hex:"))
    raise AssertionError("no id")


def _consumer(replay: Replay, command: str = "SUB", ready: int = 1) -> Wire:
    """Another connection on the same channel."""
    topic, channel, partition = _subscribed(replay)
    other = connect(replay.address, f"{command} {topic} {channel} {partition}\nRDY {ready}\n".encode())
    assert other.answer() == b"OK"
    replay.extra.append(other)
    return other


def held_by_another(replay: Replay) -> None:
    topic, channel, partition = _subscribed(replay)
    replay.stage.make_channel(topic, partition, channel, ordered=False)
    replay.stage.publish(topic, partition, b"a")
    replay.ids[_id_in_commands(replay)[:8]] = message_id(_consumer(replay).message())[:8]


def received_and_dropped(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange)
    other = _consumer(replay)
    other.message()
    other.close()
    replay.until_left()


def requeued_hundred_times(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange)

    def again() -> None:
        wire = replay.wire("")
        for _ in range(100):
            wire.send(b"REQ " + message_id(wire.message()) + b" 0\n")

    note = next(n for n, step in enumerate(replay.exchange["steps"]) if step.get("event") == "note")
    replay.before[note] = again


def paced(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange)
    replay.paced = True


def timed_out(replay: Replay) -> None:
    """Let the message time out before the FIN."""
    put_messages(replay.stage, replay.exchange)
    late = next(n for n, step in enumerate(replay.exchange["steps"]) if step.get("cmd") == "FIN")

    def wait() -> None:
        assert replay.wire("").is_quiet(1.5)

    replay.before[late] = wait


def is_over(second: int) -> bool:
    return int(time.time()) > second


def fill_offsets(replay: Replay) -> None:
    """Put m0 to m5 on the topic, a second between m1 and m2, and again between m3 and m4."""
    stage = replay.stage
    if not stage.seconds:
        for number in range(6):
            if number in (2, 4):
                second = int(time.time())
                until(partial(is_over, second))
                stage.seconds.append(int(time.time()))
            stage.publish("proto_offs2", 0, f"m{number}".encode(), number + 1)
    replay.seconds = {
        b"1795230245": str(stage.seconds[0]).encode(),
        b"1795231246": str(int(time.time()) + 1000).encode(),
    }


def held_at_m3(replay: Replay) -> None:
    fill_offsets(replay)
    topic, channel, partition = _subscribed(replay)
    other = connect(replay.address, f"SUB_ADVANCED {topic} {channel} {partition} virtual_queue:96\nRDY 1\n".encode())
    replay.extra.append(other)
    assert other.message().endswith(b"m3")


def two_finished(replay: Replay) -> None:
    fill_offsets(replay)
    topic, channel, partition = _subscribed(replay)
    with connect(replay.address, f"SUB_ADVANCED {topic} {channel} {partition} msgcount:1\nRDY 1\n".encode()) as other:
        for body in (b"m0", b"m1"):
            data = other.message()
            assert data.endswith(body)
            other.send(b"FIN " + message_id(data) + b"\n")
        assert other.message().endswith(b"m2")  # and m3 is in hand
    replay.until_left()


def partition_1(replay: Replay) -> None:
    replay.address = replay.stage.address("proto_plain", 1)


def partition_0(replay: Replay) -> None:
    replay.address = replay.stage.address("proto_plain", 0)


def elsewhere(replay: Replay) -> None:
    """A node that holds nothing of proto_plain."""
    cluster = replay.stage.cluster
    holders = {cluster.leader("proto_plain", 0), cluster.leader("proto_plain", 1)}
    replay.address = next(address for name, address in cluster.nsqds.items() if name not in holders)


def follower(replay: Replay) -> None:
    topic, _ = first_target(replay.exchange)
    cluster = replay.stage.cluster
    replay.address = cluster.nsqds[cluster.followers(topic)[0]]


def two_consumers(replay: Replay) -> None:
    """Connections A and B, both subscribed; A holds the first of four."""
    stage = replay.stage
    replay.address = stage.address("proto_ord")
    stage.make_channel("proto_ord", 0, "both", ordered=True)
    for name in "AB":
        wire = replay.wires[name] = connect(replay.address, b"SUB_ORDERED proto_ord both 0\nRDY 1\n")
        assert wire.answer() == b"OK"
        if name == "A":
            stage.publish("proto_ord", 0, b"m1")
            until(lambda: not replay.wires["A"].is_quiet(0))
    for number in (2, 3, 4):
        stage.publish("proto_ord", 0, f"m{number}".encode())


def subscribed_together(replay: Replay) -> None:
    """All connections are subscribed before the first message is read, as they were when this was recorded."""
    put_messages(replay.stage, replay.exchange)
    steps = replay.exchange["steps"]
    ready = [number for number, step in enumerate(steps) if step.get("cmd") == "RDY"]
    first = [n for last in ready for n, s in enumerate(steps) if n <= last and s.get("conn") == steps[last].get("conn")]
    rest = [step for number, step in enumerate(steps) if number not in first]
    replay.exchange = {**replay.exchange, "steps": [*(steps[number] for number in first), *rest]}


def duplicate(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange, ordered=False)


def _set_order(replay: Replay, topic: str, channel: str, order: str) -> None:
    stage = replay.stage
    url = stage.web(topic)
    stage.post(f"{url}/channel/setorder", topic=topic, partition=0, channel=channel, order=order)


def switched_channel(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange, ordered=True)
    _, channel, _ = _subscribed(replay)
    last = len(replay.exchange["steps"]) - 1
    replay.before[last] = lambda: _set_order(replay, "proto_pl2", channel, "false")


def order_switched_off(replay: Replay) -> None:
    replay.stage.make_channel("proto_pl2", 0, "switched", ordered=True)
    wire = replay.wires[""] = connect(replay.stage.address("proto_pl2"), b"SUB proto_pl2 switched 0\n")
    assert wire.answer() == b"OK"
    replay.before[0] = lambda: _set_order(replay, "proto_pl2", "switched", "false")


# ------------------------------------------------------------ leaders that move and die


def moved_before(step: int) -> Preface:
    def preface(replay: Replay) -> None:
        put_messages(replay.stage, replay.exchange)
        topic, partition = first_target(replay.exchange)

        def move() -> None:
            replay.stage.cluster.move_leader(topic, partition)

        replay.before[step] = move

    return preface


def held_by_former_leader(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange)
    _consumer(replay).message()
    replay.stage.cluster.move_leader("proto_lead2")
    replay.address = replay.stage.address("proto_lead2")


def writes_disabled(replay: Replay) -> None:
    leader = replay.stage.cluster.leader("proto_lead2")
    replay.stage.cluster.refuse_writes(leader)


def follower_killed(replay: Replay) -> None:
    topic, _ = first_target(replay.exchange)
    replay.stage.cluster.kill(replay.stage.cluster.followers(topic)[0])


def not_writable(replay: Replay) -> None:
    """One replica of two is gone for good: the other leads and may not write."""
    follower_killed(replay)
    topic, _ = first_target(replay.exchange)
    with Wire(replay.address, MAGIC) as probe:

        def refused() -> bool:
            probe.send(pub(topic, b"x"))
            return probe.answer() == b"E_FAILED_ON_NOT_WRITABLE "

        until(refused)


def writable_no_more(stage: Stage, topic: str) -> None:
    """Wait until the nsqlookupd leaves the topic out of ``access=w``."""
    until(lambda: not stage.writable(topic, stage.cluster.lookupd[0]))


def leader_killed(replay: Replay) -> None:
    put_messages(replay.stage, replay.exchange)
    closing = next(n for n, s in enumerate(replay.exchange["steps"]) if s.get("event") == "closed_by_server")
    cluster = replay.stage.cluster

    def kill() -> None:
        leader = cluster.leader("proto_lead2")
        assert leader is not None
        cluster.kill(leader)

    replay.before[closing] = kill


PREFACES: dict[str, Preface] = {
    "consume/fin_other_clients_message": held_by_another,
    "consume/touch_other_clients_message": held_by_another,
    "consume/disconnect_requeues": received_and_dropped,
    "consume/req_0_too_often": requeued_hundred_times,
    "consume/touch_extends": paced,
    "consume/fin_after_timeout": timed_out,
    "ordered/late_fin": timed_out,
    "consume_offset/second_client_offset_ignored": held_at_m3,
    "consume_offset/rewind_existing_channel": two_finished,
    "consume_offset/partition_word_ignored": partition_1,
    "consume_offset/partition_word_not_parsed": partition_1,
    "ordered/two_connections_one_partition": two_consumers,
    "ordered/duplicate_on_switch_to_ordered": duplicate,
    "ordered/plain_sub_on_ordered_channel": switched_channel,
    "ordered/setorder_false_disconnects": order_switched_off,
    "publish/pub_wrong_node": elsewhere,
    "tag_filter/tag_dispatch": subscribed_together,
    "publish/pub_wrong_partition_on_leader_node": partition_0,
    "publish/pub_on_follower": follower,
    "publish/mpub_on_follower": follower,
    "publish/pub_trace_on_follower": follower,
    "publish/pub_no_partition_on_follower": follower,
    "subscribe/sub_wrong_node": elsewhere,
    "subscribe/sub_wrong_partition": partition_0,
    "subscribe/sub_on_follower": follower,
    "leadership/consumer_during_leader_move": moved_before(7),
    "leadership/producer_during_leader_move": moved_before(5),
    "leadership/sub_on_former_leader": follower,
    "leadership/sub_on_new_leader": held_by_former_leader,
    "leadership/pub_writes_disabled_on_node": writes_disabled,
    "leadership/pub_while_follower_dies": follower_killed,
    "leadership/mpub_not_writable_live": not_writable,
    "leadership/pub_trace_not_writable_live": not_writable,
    "leadership/pub_not_writable_live": not_writable,
    "leadership/leader_killed_consumer": leader_killed,
}
"""By ``file/exchange``; others only get the messages that they will deliver."""


def prepare(replay: Replay, name: str) -> None:
    """Do what has to be done before the exchange is replayed."""
    preface = PREFACES.get(name)
    if preface is not None:
        preface(replay)
    elif name.startswith("consume_offset/"):
        fill_offsets(replay)
    else:
        put_messages(replay.stage, replay.exchange)
