"""Single decisions of the producer's machine, which random schedules meet rarely or cannot judge."""

from contextlib import nullcontext
from typing import Any

import pytest

from nsq_ha.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    LookupUnavailableError,
    NoLeaderError,
    NotLeaderError,
    PublishError,
    RemoteProtocolError,
    TopicNotFoundError,
    server_error,
)
from nsq_ha.message import Receipt
from nsq_ha.options.types import Backoff
from nsq_ha.policy.liveness import DOUBTED_AFTER, OVERDUE_AFTER, STALLED_AFTER
from nsq_ha.policy.topology import TopicMeta, TopicView
from nsq_ha.producer.actions import ForgetTopic, KeysMove, LookUp
from nsq_ha.producer.lanes import LATE_AT_ONCE
from nsq_ha.producer.machine import UNKNOWN_TOPIC_PATIENCE
from nsq_ha.producer.messages import CheckedMessage, check_accepted
from nsq_ha.producer.state import ConnectionStep, Gate, PublishRequest
from tests.producer.driven import NODES, PLAIN, Driven, Pub

# ---------------------------------------------------------------- the choice of a partition


def free(driven: Driven, count: int) -> list[int]:
    """Publish without a key; return the partitions."""
    return [request.lane.number for request in (driven.publish() for _ in range(count)) if request.lane is not None]


def test_messages_without_a_key_take_turns_over_what_accepts_writes() -> None:
    driven = Driven()
    driven.view(None, *NODES[1:3])
    assert free(driven, 5) == [2, 1, 2, 1, 2]
    assert [lane.number for lane in driven.topic.routes] == [1, 2]
    driven.view(None, None, None)
    assert free(driven, 3) == [0, 1, 2]  # none: each waits for its leader


@pytest.mark.parametrize(("nodes", "options"), [(NODES[:3], {"strategy": "least_loaded"}), (PLAIN[:3], {})])
def test_the_less_loaded_of_two_is_chosen_where_that_is_asked_for_or_the_cluster_is_plain(
    nodes: tuple[Any, ...], options: dict[str, Any]
) -> None:
    driven = Driven(*nodes, **options)
    driven.machine.prepare(driven.topic, driven.now)
    driven.serve()
    free(driven, 6)
    assert [lane.load for lane in driven.topic.routes] == [2, 2, 2]
    driven.ok(driven.lane(0).conn, 2)
    assert free(driven, 6) == [1, 0, 0, 2, 0, 0]


@pytest.mark.parametrize(
    ("fields", "meta", "text"),
    [
        ({"partition": 4}, {}, "partition 4 of 't' does not exist: it has 4 (0..3)"),
        ({"partition": -1}, {}, "partition -1 of 't' does not exist: it has 4 (0..3)"),
        ({}, {"ordered": True}, "topic 't' is ordered: give key= or partition="),
    ],
)
def test_what_a_topic_does_not_offer_is_refused(fields: dict[str, Any], meta: dict[str, Any], text: str) -> None:
    driven = Driven()
    driven.view(*NODES, **meta)
    request = driven.publish(**fields)
    assert type(request.error) is ConfigError
    assert str(request.error) == text
    assert driven.machine.finished == [request]


def test_plain_nsqds_have_no_partitions_and_a_rule_may_raise_anything() -> None:
    assert "need the partitioned server" in str(Driven(*PLAIN).publish(key="k", keys=("k",)).error)
    driven = Driven(*NODES, sharding={}.__getitem__)
    assert type(driven.publish(key="k", keys=("k",)).error) is KeyError
    assert [Driven(*NODES, sharding=int).machine.bound_to(driven.topic, key, None) for key in ("6", None)] == [2, None]
    with pytest.raises(ConfigError, match="are not known"):
        driven.machine.bound_to(driven.machine.topic("other", 0.0), None, None)


def test_a_partition_in_trouble_is_left_out_and_tried_by_single_publishes() -> None:
    driven = Driven(*NODES[:3])
    driven.machine.prepare(driven.topic, driven.now)
    driven.serve()
    refused = driven.publish(partition=1, keys=("k",))
    driven.answer(driven.lane(1).conn, b"E_FAILED_ON_NOT_WRITABLE")
    driven.machine.cancel(refused, driven.now)
    assert free(driven, 9).count(1) == 1  # it is not answered yet
    driven.wait(0.3)
    driven.ok(driven.lane(1).conn)
    assert free(driven, 9).count(1) == 3


def test_an_nsqd_that_cannot_be_connected_to_is_tried_without_a_publish() -> None:
    driven = Driven(*PLAIN[:2])
    driven.opens = False
    first, second = driven.publish(), driven.publish()
    driven.open(driven.attempts[0])
    driven.machine.closed(driven.attempts[1], ConnectError("refused"), driven.now)
    driven.serve()
    ill = driven.attempts[1].nsqd
    assert {request.lane for request in (first, second)} == {lane for lane in driven.topic.routes if lane.conn}
    (good,) = (lane.conn for lane in driven.topic.routes if lane.conn)
    attempts = len(driven.attempts)
    for seconds in (0.5, 1.0, 1.0, 1.0, 1.0):
        driven.ok(good, len(good.sent))
        driven.wait(seconds)
        assert len(set(free(driven, 4))) == 1
        if driven.attempts[-1].step is ConnectionStep.OPENING:
            driven.machine.closed(driven.attempts[-1], ConnectError("refused"), driven.now)
    assert len(driven.attempts) - attempts == 2  # after 1 and after 2 more seconds
    driven.ok(good, len(good.sent))
    driven.wait(30.0)
    driven.opens = True
    free(driven, 4)
    assert not ill.is_suspect


# ---------------------------------------------------------------- ends


def test_a_message_that_two_nsqds_acknowledge_is_counted_once() -> None:
    for is_late in (False, True):
        for first in (0, 1):
            driven = Driven(*NODES[:2])
            request = driven.publish(partition=None)
            home = request.lane
            assert home is not None
            before = home.conn
            driven.publish(partition=1 - home.number)
            driven.ok(driven.lane(1 - home.number).conn)
            driven.wait(STALLED_AFTER + 0.01)
            assert request.lane is not home
            assert request.lane is not None
            conns = [before, request.lane.conn]
            if is_late:
                driven.machine.cancel(request, driven.now)
            driven.ok(conns[first])
            driven.ok(conns[1 - first])
            assert sum(lane.counts.published for lane in driven.topic.lanes.values()) == 2
            assert request.receipts is not None
            assert driven.machine.finished.count(request) == (not is_late)


def test_a_batch_that_is_acknowledged_late_counts_as_its_messages() -> None:
    driven = Driven(NODES[0])
    batch, single = driven.publish(count=2, limit=0.5), driven.publish(limit=0.5)
    driven.wait(0.6)
    assert [isinstance(each.error, PublishError) for each in (batch, single)] == [True, True]
    driven.ok(driven.lane().conn, 2)
    counts = driven.lane().counts
    assert (counts.failed, counts.uncertain, counts.timed_out, counts.published) == (3, 3, 3, 3)


def test_a_refusal_of_what_went_elsewhere_is_nobodys() -> None:
    driven = Driven(*NODES[:2])
    request = driven.publish()
    home = request.lane
    assert home is not None
    before = home.conn
    driven.wait(STALLED_AFTER + 0.01)
    assert (request.lane is home, request.attempts) == (False, 2)
    driven.answer(before, b"E_FAILED_ON_NOT_LEADER")
    assert (request.is_over, request.attempts, home.refusals) == (False, 2, 0)
    assert not home.ready
    assert request.lane is not None
    driven.ok(request.lane.conn)
    assert request.receipts


def test_what_a_lost_connection_did_not_answer_is_written_again_in_its_order() -> None:
    driven = Driven(NODES[0])
    requests = [driven.publish() for _ in range(3)]
    first = driven.lane().conn
    assert first is not None
    driven.machine.closed(first, ConnectionLostError("lost"), driven.now)
    later = driven.publish()
    driven.wait(0.2)
    assert driven.lane().conn is not first
    assert driven.written[driven.attempts[-1]] == [*requests, later]


def test_many_limits_end_in_time() -> None:
    driven = Driven(NODES[0])
    driven.opens = False
    requests = [driven.publish(limit=1.0 + number / 1000) for number in range(300)]
    many = [driven.publish(limit=2.0) for _ in range(9)]
    driven.wait(1.1)
    assert [request.is_over for request in requests] == [number <= 100 for number in range(300)]
    driven.wait(1.0)
    assert all(request.is_over for request in requests + many)
    assert not list(driven.machine.all_pending())


def test_late_answers_of_a_leader_that_is_gone_are_taken() -> None:
    driven = Driven(*NODES[:2])
    moved = driven.publish()
    home = moved.lane
    assert home is not None
    before, kept = home.conn, driven.publish(keys=("k",), partition=home.number)
    driven.wait(STALLED_AFTER + 0.01)
    driven.view(*(None if number == home.number else NODES[number] for number in range(2)))
    assert (moved.lane is home, kept.lane is home) == (False, True)
    driven.ok(before, 2)
    assert (moved.receipts is None, kept.receipts is None) == (False, False)


def test_an_answer_to_what_went_elsewhere_must_make_sense_too() -> None:
    driven = Driven(*NODES[:2])
    moved = driven.publish()
    assert moved.lane is not None
    before = moved.lane.conn
    driven.wait(STALLED_AFTER + 0.01)
    driven.answer(before, b"nonsense")
    assert (before in driven.closed, moved.is_over, moved.maybe_stored) == (True, False, True)


def test_an_answer_that_makes_no_sense_ends_the_connection() -> None:
    driven = Driven(NODES[0])
    wrong, given_up = driven.publish(keys=("a",), partition=0), driven.publish(keys=("b",), partition=0)
    behind = driven.publish(keys=("b",), partition=0)
    driven.machine.cancel(given_up, driven.now)
    first = driven.lane().conn
    driven.answer(first, b"nonsense", b"OK")
    assert isinstance(wrong.error, PublishError)
    assert wrong.error.maybe_stored
    assert first in driven.closed
    driven.wait(1.0)
    assert behind.attempts == 1
    assert given_up.attempts == 1
    driven.machine.cancel(behind, driven.now)
    driven.answer(driven.lane().conn, b"nonsense")  # to one whose caller is gone
    assert not driven.lane().keys
    plain, odd = driven.publish(), driven.publish(is_plain=False)
    assert odd.error is None
    driven.wait(3.0)
    driven.ok(driven.lane().conn, 2)
    assert plain.receipts


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"closes_when_refused": True}, b"E_BAD_BODY x", "closed the connection after a refused MPUB_EXT"),
        ({}, b"E_UNAUTHORIZED x", "closed the connection to renew its permissions: E_UNAUTHORIZED x"),
        ({}, b"E_STRANGE", "closed the connection after an error that answers no publish: E_STRANGE"),
    ],
)
def test_some_refusals_end_the_connection(fields: dict[str, Any], code: bytes, text: str) -> None:
    driven = Driven(NODES[0], auth_secret="s")
    request = driven.publish(**fields)
    first = driven.lane().conn
    assert first is not None
    driven.answer(first, code, b"OK")
    assert driven.closed[first].startswith(text)
    assert request.is_over is (code != b"E_UNAUTHORIZED x")
    driven.wait(0.2)
    if not request.is_over:
        driven.answer(driven.lane().conn, code)
        assert request.is_over  # its permissions were renewed once


def test_nsqds_that_the_user_named_explain_themselves() -> None:
    driven = Driven(PLAIN[0], nsqd=("h:1",))
    request = driven.publish(limit=0.4)
    driven.answer(driven.lane().conn, b"E_TOPIC_NOT_EXIST ")
    driven.wait(0.5)
    assert "which is one of a partitioned cluster" in str(request.error)
    assert any(isinstance(action, LookUp) and action.how == "soon" for action in driven.log)


def test_thousands_that_are_late_end_in_several_ticks() -> None:
    driven = Driven()
    late = [driven.publish(limit=limit) for limit in (1.0, 1.5) for _ in range(LATE_AT_ONCE)]
    driven.now += 2.0
    for ended in (LATE_AT_ONCE, 2 * LATE_AT_ONCE):
        assert driven.machine.wake_at <= driven.now
        driven.machine.tick(driven.now)
        assert sum(request.is_over for request in late) == ended
        driven.machine.finished.clear()
    assert driven.machine.wake_at > driven.now


# ---------------------------------------------------------------- the topic


def test_an_unknown_topic_is_waited_for_a_while() -> None:
    driven = Driven()
    first = driven.publish()
    down = LookupUnavailableError("down")
    driven.topic.lookup_error = down
    late = driven.publish(limit=1.0)
    driven.wait(1.5)
    assert isinstance(late.error, PublishError)
    assert late.error.__cause__ is down
    driven.machine.viewed(driven.topic, TopicView("t", None, {}, complete=False, exists=False), driven.now)
    second = driven.publish()
    driven.wait(UNKNOWN_TOPIC_PATIENCE - 1.5)
    assert (first.is_over, second.is_over) == (True, False)
    assert isinstance(first.error.__cause__, TopicNotFoundError) if first.error else False
    driven.machine.cancel(second, driven.now)
    driven.machine.tick(driven.now)
    driven.machine.viewed(driven.topic, TopicView("t", None, {}, complete=False, exists=True), driven.now)
    assert driven.topic.unsent.failed == 2
    driven.view(NODES[0])
    assert driven.publish().attempts == 1
    driven.machine.viewed(driven.topic, TopicView("t", None, {}, complete=False, exists=False), driven.now)
    third = driven.publish()
    driven.wait(2 * UNKNOWN_TOPIC_PATIENCE)
    assert not third.is_over  # it was known: it may come again
    assert not driven.machine.prepare(driven.topic, driven.now)
    assert driven.topic.count.used == 0


def test_a_batch_that_is_given_up_lets_the_others_pass() -> None:
    driven = Driven(NODES[0])
    gate, other = Gate(topic="t", size=0, limit=9.0), Gate(topic="t", size=0, limit=9.0)
    for each in (gate, other):
        driven.machine.publish(each, driven.now)
    behind = driven.publish()
    driven.machine.cancel(gate, driven.now)
    driven.machine.cancel(gate, driven.now)
    driven.serve()
    assert (driven.topic.gate, behind.lane) == (other, None)
    driven.machine.leave_gate(other, driven.now)
    driven.machine.leave_gate(Gate(topic="gone", size=0, limit=9.0), driven.now)
    assert behind.lane is driven.lane()


def test_more_partitions_are_used_after_a_delay() -> None:
    driven = Driven(*NODES[:2], lookup_interval=0.5)
    driven.view(*NODES[:3])
    assert set(free(driven, 6)) == {0, 1}
    driven.wait(10.0)
    assert set(free(driven, 6)) == {0, 1, 2}
    assert [action[1:] for action in driven.log if isinstance(action, KeysMove)] == [(2, 3)]
    driven.view(*NODES[:3], NODES[3], partition_num=3)  # led, but not a partition yet
    assert len(driven.topic.lanes) == 3
    driven = Driven(*PLAIN[:1])
    driven.view(*PLAIN[:2])
    driven.machine.tick(driven.now)
    assert (driven.topic.count.used, len(driven.topic.routes)) == (2, 2)


def test_what_nobody_uses_is_forgotten() -> None:
    driven = Driven(NODES[0], idle_timeout=20.0)
    driven.publish()
    driven.ok(driven.lane().conn)
    driven.wait(15.0)
    driven.publish()
    driven.ok(driven.lane().conn)
    driven.wait(19.0)
    assert "t" in driven.machine.topics
    driven.wait(400.0)
    assert [type(action) for action in driven.log].count(ForgetTopic) == 1
    assert (driven.machine.topics, driven.machine.conns, driven.machine.past.published) == ({}, {}, 2)
    assert not driven.machine.nsqds
    driven.topic = driven.machine.topic("u", driven.now)
    driven.view(NODES[1])
    driven.machine.prepare(driven.topic, driven.now)
    driven.topic.callers += 1
    driven.topic = driven.machine.topic("t", driven.now)
    driven.view(NODES[0])
    driven.wait(70.0)
    assert (list(driven.machine.topics), list(driven.machine.nsqds)) == (["u"], [NODES[1].address])


def test_an_nsqd_that_fails_is_not_forgotten_with_another_topic() -> None:
    driven = Driven(NODES[0])
    driven.machine.cancel(driven.publish(), driven.now)
    conn = driven.attempts[0]
    conn.nsqd.limit.next_at = driven.now + 20.0
    driven.machine.closed(conn, ConnectionLostError("lost"), driven.now)
    driven.machine.topic("u", driven.now)
    driven.wait(15.0)
    assert (list(driven.machine.topics), list(driven.machine.nsqds.values())) == (["t"], [conn.nsqd])


def test_waiting_for_connections_holds_them() -> None:
    driven = Driven(*NODES[:2], idle_timeout=5.0)
    lanes = driven.machine.prepare(driven.topic, driven.now)
    driven.machine.prepared(driven.machine.prepare(driven.topic, driven.now), driven.now)
    driven.topic.callers += 1
    driven.serve()
    driven.wait(50.0)
    assert [(lane.number, lane.conn is not None) for lane in lanes] == [(0, True), (1, True)]
    driven.topic.callers -= 1
    driven.machine.prepared(lanes, driven.now)
    driven.wait(50.0)
    assert not driven.machine.conns


# ---------------------------------------------------------------- connections


def test_a_refused_attempt_and_a_slow_one_are_reported() -> None:
    driven = Driven(NODES[0])
    driven.opens = False
    request = driven.publish(limit=3.0)
    driven.wait(STALLED_AFTER + 0.1)
    assert "could not be connected to for" in str(driven.lane().trouble)
    driven.machine.closed(driven.attempts[0], server_error(b"E_BAD_TOPIC x"), driven.now)
    driven.serve()
    assert [report.conn for report in driven.reports("refused")] == driven.attempts
    assert isinstance(request.error, PublishError)  # a retry cannot help
    driven.machine.closed(driven.attempts[0], ConnectError("again"), driven.now)
    driven.machine.drop(driven.attempts[0], ConnectError("again"), driven.now)
    assert not driven.machine.actions
    driven.machine.opened(driven.attempts[0], driven.now)
    assert driven.attempts[0].step is ConnectionStep.CLOSED


def test_nothing_more_is_written_to_a_leader_that_is_silent_for_long() -> None:
    driven = Driven(NODES[0])
    driven.publish(keys=(1,), partition=0)
    driven.opens = False
    driven.wait(DOUBTED_AFTER - 0.1)
    assert driven.publish(keys=(2,), partition=0).attempts == 1
    driven.wait(0.2)
    later = driven.publish(keys=(3,), partition=0)
    assert later.attempts == 0
    driven.ok(driven.lane().conn)
    assert later.attempts == 1


def test_a_leader_that_answers_elsewhere_but_not_here_is_connected_to_again() -> None:
    driven = Driven(NODES[0])
    requests = [driven.publish(keys=(number,), partition=0) for number in range(2)]
    silent = driven.lane().conn
    driven.opens = False
    driven.wait(DOUBTED_AFTER + 0.1)
    probe = driven.attempts[1]
    driven.wait(STALLED_AFTER)  # a slow attempt is nobody's trouble
    driven.open(probe)
    driven.ok(probe)
    assert sorted(request.attempts for request in requests) == [1, 2]
    driven.opens = True
    driven.wait(0.3)
    assert silent in driven.closed
    assert "answers over another connection" in str(driven.reports("closing")[0].error)
    driven.ok(driven.lane().conn)
    assert all(request.receipts for request in requests)


def test_a_question_that_comes_too_late_is_not_asked() -> None:
    driven = Driven(NODES[0])
    driven.publish()
    driven.opens = False
    driven.wait(DOUBTED_AFTER + 0.1)
    driven.ok(driven.lane().conn)
    driven.open(driven.attempts[1])
    driven.serve()
    assert driven.written[driven.attempts[1]] == []
    assert driven.closed[driven.attempts[1]] == "the question is over"


@pytest.mark.parametrize("unshared", [0, 8])
def test_a_connection_is_replaced_before_nsqd_can_write_no_more(unshared: int) -> None:
    driven = Driven(*NODES[:1] * 2, connections_per_nsqd=unshared)
    driven.lifetime = 5.0
    driven.publish(partition=0)
    first = driven.lane().conn
    driven.ok(first)
    driven.opens = driven.checks = False
    driven.wait(3.0)
    second = driven.attempts[1]
    assert second.replaces is first
    driven.machine.closed(second, ConnectError("refused"), driven.now)
    driven.machine.tick(driven.now)
    assert len(driven.attempts) == 2  # after a pause
    driven.wait(0.5)
    third = driven.attempts[2]
    waiting = driven.publish(partition=1)
    unanswered = driven.publish(partition=0)
    driven.open(third)
    assert first is not None
    assert first.is_draining
    driven.checks = True
    driven.wait(0.1)
    driven.ok(first)
    driven.opens = True
    driven.wait(0.5)
    assert driven.lane().conn is third
    assert (unanswered.attempts, first in driven.closed) == (1, True)
    assert waiting.lane is driven.lane(1)


def test_what_is_unanswered_when_nsqd_can_write_no_more_is_written_again_one_by_one() -> None:
    driven = Driven(NODES[0])
    driven.lifetime = 5.0
    requests = [driven.publish() for _ in range(3)]
    driven.wait(4.7)
    assert sorted(request.attempts for request in requests) == [1, 1, 1]
    driven.wait(0.3)
    assert sorted(request.attempts for request in requests) == [1, 1, 2]
    assert all(request.maybe_stored for request in requests)
    lonely = Driven(NODES[0])
    lonely.lifetime = 5.0
    lonely.publish()
    lonely.opens = False
    lonely.ok(lonely.lane().conn)
    while lonely.now < 104.1:
        lonely.wait(0.1)
        for conn in lonely.attempts[1:]:
            lonely.machine.closed(conn, ConnectError("refused"), lonely.now)
    assert len(lonely.attempts) > 5
    assert not lonely.machine.conns  # nothing is due any more: it is left early


def test_a_full_socket_holds_back_and_what_it_cut_is_not_stored() -> None:
    driven = Driven(NODES[0], on_unreachable="fail")
    whole, cut = driven.publish(), driven.publish(size=100_000)
    conn = driven.lane().conn
    assert conn is not None
    driven.machine.full(conn, is_cut=True)
    waiting = driven.publish()
    assert waiting.attempts == 0
    driven.machine.closed(conn, ConnectionLostError("lost"), driven.now)
    errors = [each.error for each in (whole, cut, waiting)]
    assert [isinstance(error, PublishError) and error.maybe_stored for error in errors] == [True, False, False]


def test_a_request_is_asked_whether_it_suits_the_topic() -> None:
    class Unsuitable(Pub, eq=False, kw_only=True):
        def suit(self, view: TopicView, largest: int) -> None:
            raise ConfigError(f"{view.topic} takes {largest} bytes")

    driven = Driven(NODES[0], max_message_bytes=5)
    request = Unsuitable(topic="t", size=9, limit=1.0, needs_check=True)
    driven.machine.publish(request, driven.now)
    assert str(request.error) == "t takes 5 bytes"
    assert driven.publish(needs_check=True).error is None


def test_an_answer_that_does_not_fit_ends_a_run() -> None:
    class Odd(Pub, eq=False, kw_only=True):
        def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
            raise RemoteProtocolError("it does not fit")

    driven = Driven(NODES[0])
    before = driven.publish()
    odd = Odd(topic="t", size=1, limit=9.0, is_plain=False)
    driven.machine.publish(odd, driven.now)
    after = driven.publish()
    first = driven.lane().conn
    driven.ok(first, 3)
    assert first in driven.closed
    assert [before.receipts is None, odd.receipts is None, after.receipts is None] == [False, True, True]
    driven.wait(0.2)
    assert after.attempts == 2


def test_a_leader_that_is_silent_for_too_long_fails_only_who_waits() -> None:
    driven = Driven(NODES[0], on_unreachable="fail")
    gone, waiting = driven.publish(keys=(1,), partition=0), driven.publish(keys=(2,), partition=0)
    driven.machine.cancel(gone, driven.now)
    driven.wait(OVERDUE_AFTER + 0.5)
    assert (gone.error, isinstance(waiting.error, PublishError)) == (None, True)
    assert not driven.lane().keys


def test_the_base_of_a_request_is_no_command() -> None:
    request = PublishRequest(topic="t", size=1, limit=1.0)
    with pytest.raises(NotImplementedError):
        request.decode(b"OK", 0, "")
    with pytest.raises(NotImplementedError):
        request.encode(0)


def test_a_batch_holds_all_its_keys_and_waits_for_each() -> None:
    driven = Driven(NODES[0])
    first, batch, last = (driven.publish(partition=0, keys=keys) for keys in (("a",), ("a", "b"), ("b",)))
    assert [each.attempts for each in (first, batch, last)] == [1, 0, 0]
    driven.ok(driven.lane().conn)
    assert [each.attempts for each in (first, batch, last)] == [1, 1, 0]
    driven.ok(driven.lane().conn)
    assert last.attempts == 1


def test_a_partition_that_comes_back_at_once_keeps_what_is_unanswered() -> None:
    driven = Driven(*NODES[:1] * 2, connections_per_nsqd=0)
    request = driven.publish(partition=0, keys=("k",))
    driven.publish(partition=1, keys=("k",))
    for node in (NODES[1], NODES[0]):
        driven.view(node, NODES[0])
    driven.publish(partition=0, keys=("j",))
    driven.wait(0.5)
    assert (request.attempts, request.lane and request.lane.conn) == (1, driven.attempts[0])


def test_a_leader_that_no_lookup_names_may_be_well_again() -> None:
    driven = Driven(*NODES[:2])
    request = driven.publish(partition=0, keys=("k",))
    driven.answer(driven.lane().conn, b"E_FAILED_ON_NOT_WRITABLE")
    driven.view(None, NODES[1])
    driven.wait(0.3)
    driven.ok(driven.lane().conn)
    assert (request.error, driven.lane().trouble) == (None, None)


def test_a_leader_that_does_not_lead_yet_is_asked_again_after_a_pause() -> None:
    driven = Driven(NODES[0])
    driven.checks = False
    request = driven.publish()
    conn = driven.attempts[0]
    for _ in range(2):  # the second outcome is of a check that counts no more
        driven.machine.checked(driven.lane(), conn, NoLeaderError("it does not lead yet"), driven.now)
        driven.serve()
    assert (conn in driven.closed, len(driven.attempts), driven.lane().failures) == (True, 1, 1)
    driven.checks = True
    driven.wait(0.3)
    assert request.attempts == 1


def test_failures_of_one_nsqd_before_one_pause_count_as_one() -> None:
    driven = Driven(*NODES[:1] * 2)
    for number in range(2):
        driven.publish(partition=number, keys=("k",))
    for conn in list(driven.attempts):
        driven.machine.closed(conn, ConnectionLostError("lost"), driven.now)
    assert driven.attempts[0].nsqd.failures == 1


def test_a_leader_that_moves_is_left_at_once_if_it_owes_nothing_and_soon_if_it_answers() -> None:
    driven = Driven(NODES[0])
    assert driven.machine.topic("t", driven.now) is driven.topic
    driven.opens = False
    request = driven.publish(keys=("k",), partition=0)
    driven.view(NODES[1])
    assert driven.attempts[0] in driven.closed
    driven.opens = True
    driven.open(driven.attempts[1])
    driven.serve()
    driven.view(NODES[2])
    assert driven.attempts[1] not in driven.closed
    driven.ok(driven.attempts[1])
    assert (driven.attempts[1] in driven.closed, request.attempts) == (True, 1)
    assert len(driven.reports("moved")) == 1


def test_refusals_of_one_moment_pause_once_and_explain_the_loss_that_follows() -> None:
    driven = Driven(NODES[0])
    requests = [driven.publish(limit=0.3) for _ in range(2)]
    driven.opens = False
    driven.answer(driven.lane().conn, *[b"E_FAILED_ON_NOT_LEADER"] * 2)
    assert driven.lane().refusals == 1
    conn = driven.lane().conn
    assert conn is not None
    driven.machine.closed(conn, ConnectionLostError("lost"), driven.now)
    driven.wait(0.4)
    assert [type(each.error.__cause__) for each in requests if each.error] == [NotLeaderError] * 2


def test_each_refusal_after_a_pause_makes_the_next_one_longer() -> None:
    driven = Driven(NODES[0], backoff=Backoff(initial=0.01, maximum=1.0, factor=2.0, jitter=0.0))
    driven.publish()
    pauses = []
    for _ in range(4):
        driven.answer(driven.lane().conn, b"E_FAILED_ON_NOT_WRITABLE")
        pauses.append(driven.lane().paused_until - driven.now)
        driven.wait(pauses[-1] + 0.001)
    assert pauses == pytest.approx([0.01, 0.02, 0.04, 0.08])


@pytest.mark.parametrize(
    ("body", "ext", "is_accepted"), [(99, None, True), (100, None, False), (90, 7, True), (91, 7, False)]
)
def test_the_form_of_a_header_counts_in_the_size_of_a_message(body: int, ext: int | None, is_accepted: bool) -> None:
    checked = CheckedMessage(bytes(body), None, None if ext is None else bytes(ext))
    view = TopicView("t", TopicMeta(1, extend_support=True), {}, complete=False, exists=True)
    refused = (
        nullcontext()
        if is_accepted
        else pytest.raises(ConfigError, match=r"a message of 101 bytes, .* exceeds max_message_bytes=100")
    )
    with refused:
        check_accepted(view, checked, 100)


def test_a_socket_with_space_again_gets_what_waited() -> None:
    driven = Driven(NODES[0])
    driven.publish()
    conn = driven.lane().conn
    assert conn is not None
    driven.machine.full(conn, is_cut=False)
    waiting = driven.publish()
    driven.machine.writable(conn)
    driven.serve()
    assert waiting.attempts == 1


def test_others_are_preferred_to_a_silent_plain_nsqd_and_to_one_that_is_slow_to_connect() -> None:
    driven = Driven(*PLAIN[:2])
    request = driven.publish()
    assert request.lane is not None
    silent = request.lane
    driven.opens = False
    driven.wait(STALLED_AFTER + 0.1)
    assert silent.conn is not None
    assert silent.conn.nsqd.is_suspect
    (slow,) = (conn.nsqd for conn in driven.attempts if conn.step is ConnectionStep.OPENING)
    driven.machine.cancel(request, driven.now)
    driven.wait(2 * STALLED_AFTER)
    assert slow.is_suspect


def test_a_leader_that_refuses_the_question_does_not_answer_elsewhere() -> None:
    driven = Driven(NODES[0])
    driven.publish(keys=("k",), partition=0)
    silent = driven.lane().conn
    driven.wait(DOUBTED_AFTER + 0.1)
    driven.answer(driven.attempts[1], b"E_FAILED_ON_NOT_WRITABLE")
    driven.wait(0.5)
    assert (silent in driven.closed, driven.attempts[1] in driven.closed) == (False, True)


def test_trouble_that_does_not_pass_fails_what_waits_for_a_key_too() -> None:
    driven = Driven(NODES[0], on_unreachable="fail")
    requests = [driven.publish(partition=0, keys=keys) for keys in (("a",), ("b",), ("a", "b"), ("a",))]
    driven.ok(driven.lane().conn)
    assert requests[2].attempts == 0  # it waits for the other one
    conn = driven.lane().conn
    assert conn is not None
    driven.machine.closed(conn, ConnectionLostError("lost"), driven.now)
    assert [each.error is None for each in requests] == [True, False, False, False]
    assert not driven.lane().keys
