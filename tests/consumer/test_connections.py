"""The connections of a consumer's machine alone: when it connects, pauses, moves, replaces and ends."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha import Backoff, ConsumerConfig, ExtFilter
from nsq_ha.consumer.answers import Said
from nsq_ha.consumer.inflight import ReadPartition, Stage, Subscription
from nsq_ha.consumer.machine import ConsumerMachine
from nsq_ha.consumer.subscriptions import ConnectionAction, LookUps, PartitionEvent, Unreadable
from nsq_ha.errors import (
    AuthError,
    ChannelNotRegisteredError,
    ConnectionLostError,
    NsqError,
    ServerError,
    SubscribeRefusedError,
    TlsRequiredError,
    TopicNotExistError,
)
from nsq_ha.message import Message
from nsq_ha.policy.connect_limit import SETTLED
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.protocol.identify import Identity

ONE, TWO = Node("one", 1, 1), Node("two", 2, 2)
LOST = ConnectionLostError("lost")
ADDRESSES: dict[str, Any] = {"lookupd": ("http://a:1",)}


class Driven:
    """A consumer's machine, and what it wants.

    Attributes:
        now: The time.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - of ConsumerConfig
        addresses = {} if "nsqd" in options else ADDRESSES
        self.now = 100.0
        self.config = ConsumerConfig(**{"backoff": Backoff(0.1, 5.0, jitter=0.0), **addresses, **options})
        self.machine = ConsumerMachine(self.config, lambda: 0.0, self.now, "orders")
        self.subscriptions = self.machine.subscriptions

    def view(
        self,
        leaders: dict[int, Node],
        number: int = 1,
        *,
        plain: bool = False,
        exists: bool = True,
        last_known: dict[int, Node] | None = None,
    ) -> None:
        settings = TopicMeta(number, is_partitioned=not plain) if number else None
        view = TopicView("orders", settings, leaders, True, exists, last_known or {}, plain)
        self.subscriptions.viewed(view, self.now)

    def took(self, *kinds: type | str) -> list[Any]:
        """Return the actions since the last call, without those of other kinds."""
        actions = self.machine.actions[:]
        self.machine.actions.clear()
        return [each for each in actions if not kinds or {type(each), getattr(each, "what", "")} & {*kinds}]

    @property
    def part(self) -> ReadPartition:
        return self.machine.partitions[0]

    def opening(self) -> Subscription:
        conn = self.part.opening
        assert conn is not None
        return conn

    def used(self) -> Subscription:
        conn = self.part.conn
        assert conn is not None
        return conn

    def open(self, lifetime: Lifetime | None = None, conn: Subscription | None = None) -> Subscription:
        conn = conn or self.opening()
        conn.lifetime = lifetime
        assert self.subscriptions.opened(conn, self.now)
        return conn

    def subscribe(self, lifetime: Lifetime | None = None, conn: Subscription | None = None) -> Subscription:
        """Let the attempt succeed."""
        conn = self.open(lifetime, conn)
        conn.opened(Identity(msg_timeout=4000, max_msg_timeout=20_000, max_rdy_count=10))
        conn.source = SimpleNamespace(
            conn=conn, topic="orders", channel="ch", partition=conn.partition.number, nsqd="one:1"
        )
        self.subscriptions.subscribed(conn, self.now)
        return conn

    def deliver(self, conn: Subscription) -> Message:
        message = Message((1).to_bytes(8, "big") + bytes(8), b"x", 1, 1, conn.source)
        self.machine.arrived(conn, [message], self.now, self.now)
        return message

    def after(self, seconds: float) -> None:
        """Let time pass, and do what is due meanwhile."""
        end = self.now + seconds
        while self.subscriptions.wake_at <= end:
            self.now = max(self.now, self.subscriptions.wake_at)
            self.subscriptions.tick(self.now)
        self.now = end

    def pauses(self) -> float:
        """Return the seconds until the partition is tried again."""
        return self.part.retry_at - self.now


@pytest.fixture
def driven() -> Driven:
    driven = Driven()
    driven.view({0: ONE})
    return driven


# ------------------------------------------------------------ failures and pauses


def test_a_partition_is_connected_to_subscribed_and_read(driven: Driven) -> None:
    assert driven.took() == [ConnectionAction("open", driven.opening())]
    assert driven.subscribe() is driven.part.conn
    (event,) = driven.took()
    assert (event.what, event.node, driven.part.counts.reconnects) == ("subscribed", ONE, 0)


def test_a_node_that_accepts_and_then_fails_is_tried_less_and_less_often(driven: Driven) -> None:
    pauses = []
    for _ in range(8):
        driven.subscriptions.lost(driven.subscribe(), LOST, driven.now)
        pauses.append(driven.pauses())
        driven.after(driven.pauses())
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


def test_one_loss_after_a_long_life_is_followed_at_once_whatever_was_before(driven: Driven) -> None:
    for _ in range(6):
        driven.subscriptions.lost(driven.subscribe(), LOST, driven.now)
        driven.after(driven.pauses())
    driven.subscribe()
    driven.after(SETTLED)
    assert [each.what for each in driven.took(PartitionEvent)][-1] == "settled"
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    assert driven.pauses() == pytest.approx(0.1)


def test_a_lookup_without_the_partition_leaves_its_connection(driven: Driven) -> None:
    conn = driven.subscribe()
    for number in (1, 0):
        driven.view({}, number)
        assert driven.part.conn is conn


def test_news_of_another_partition_ends_no_pause() -> None:
    driven = Driven()
    driven.view({0: ONE, 1: TWO}, 2)
    driven.subscriptions.failed(driven.opening(), LOST, driven.now)
    driven.view({0: ONE, 1: ONE}, 2)
    assert driven.part.opening is None
    driven.view({0: TWO, 1: ONE}, 2)
    assert driven.opening().node == TWO


# ------------------------------------------------------------ another leader


def test_the_former_leader_is_read_until_the_new_one_is_open(driven: Driven) -> None:
    first = driven.subscribe()
    driven.took()
    driven.view({0: TWO})
    assert [type(each) for each in driven.took()] == [PartitionEvent, ConnectionAction]
    assert driven.part.conn is first
    second = driven.open()
    assert driven.part.conn is None
    assert first.stage is Stage.CLOSED
    assert driven.took("abort")[0].conn is first
    driven.subscriptions.subscribed(second, driven.now)
    assert driven.part.conn is second


def test_a_leader_that_comes_back_keeps_its_connection(driven: Driven) -> None:
    first = driven.subscribe()
    driven.view({0: TWO})
    tried = driven.opening()
    driven.view({0: ONE})
    assert driven.part.opening is None
    assert driven.part.conn is first
    assert tried.stage is Stage.CLOSED
    assert not driven.subscriptions.opened(tried, driven.now)
    driven.subscriptions.subscribed(tried, driven.now)
    driven.subscriptions.failed(tried, LOST, driven.now)
    assert driven.part.failures == 0


def test_a_new_leader_that_refuses_is_tried_again_while_the_former_one_is_read(driven: Driven) -> None:
    first = driven.subscribe()
    driven.view({0: TWO})
    driven.subscriptions.failed(driven.opening(), LOST, driven.now)
    assert (driven.part.conn, driven.part.opening) == (first, None)
    driven.subscriptions.lost(first, LOST, driven.now)
    assert driven.opening().node == TWO, "a pause that ends with what was read meanwhile"


def test_failures_before_it_was_read_do_not_count_for_the_next_leader(driven: Driven) -> None:
    for _ in range(4):
        driven.subscriptions.failed(driven.opening(), LOST, driven.now)
        driven.after(driven.pauses())
    driven.subscribe()
    driven.took()
    driven.view({0: TWO})
    assert driven.took(LookUps) == []
    driven.subscriptions.failed(driven.opening(), LOST, driven.now)
    assert driven.pauses() == pytest.approx(0.1)


# ------------------------------------------------------------ refusals that stay


@pytest.mark.parametrize(
    ("error", "options", "ends", "then"),
    [
        (AuthError("E_UNAUTHORIZED"), {}, True, True),
        (AuthError("E_UNAUTHORIZED"), {"auth_secret": "s"}, True, False),
        (ChannelNotRegisteredError("E_CHANNEL_NOT_REGISTER"), {}, True, False),
        (TlsRequiredError("", "give tls="), {}, True, True),
        (ServerError("E_SUB_ORDER_IS_MUST"), {}, False, False),
        (ServerError("E_SUB_ORDER_IS_MUST"), {"ordered": False}, True, True),
        (SubscribeRefusedError("E_SUB_FAILED"), {}, False, False),
        (SubscribeRefusedError("E_SUB_FAILED"), {"nsqd": ("one:1",)}, True, True),
        (LOST, {}, False, False),
    ],
)
def test_which_refusals_end_a_partition(error: NsqError, options: dict[str, Any], ends: bool, then: bool) -> None:
    for was_subscribed, is_final in ((False, ends), (True, then)):
        driven = Driven(**options)
        driven.view({0: ONE})
        if was_subscribed:
            driven.subscriptions.lost(driven.subscribe(), LOST, driven.now)
            driven.after(1.0)
        driven.took()
        driven.subscriptions.failed(driven.opening(), error, driven.now)
        assert bool(driven.took(Unreadable)) is is_final
        assert driven.part.is_over is is_final
        driven.after(60.0)
        assert (driven.part.opening is None) is is_final


def test_a_final_refusal_of_a_new_leader_ends_what_is_read(driven: Driven) -> None:
    first = driven.subscribe()
    driven.view({0: TWO})
    driven.subscriptions.failed(driven.opening(), TlsRequiredError("", "give tls="), driven.now)
    assert driven.took("leave") == [ConnectionAction("leave", first)]
    driven.subscriptions.end(first, LOST, driven.now)
    assert driven.part.conn is None


def test_with_nsqd_a_missing_topic_is_explained() -> None:
    for options in ({"nsqd": ("one:1",)}, {}):
        driven = Driven(**options)
        driven.view({0: ONE}, plain=True)
        driven.subscriptions.failed(driven.opening(), TopicNotExistError("E_TOPIC_NOT_EXIST"), driven.now)
        assert ("give lookupd=" in str(driven.part.trouble)) is bool(options)


# ------------------------------------------------------------ what is read


def test_an_nsqd_that_nobody_lists_is_read_while_its_connection_lasts() -> None:
    driven = Driven()
    driven.view({0: ONE}, plain=True)
    conn = driven.subscribe()
    driven.view({}, plain=True, last_known={0: ONE})
    driven.after(60.0)
    assert driven.part.conn is conn
    assert driven.took("absent") == []
    driven.subscriptions.lost(conn, LOST, driven.now)
    driven.after(60.0)
    assert driven.part.opening is None
    assert driven.took("absent") != []


def test_new_partitions_are_read(driven: Driven) -> None:
    driven.view({0: ONE, 1: TWO}, 2)
    assert [each.opening is not None for each in driven.machine.partitions.values()] == [True, True]


def test_a_partition_that_is_gone_keeps_its_counts() -> None:
    driven = Driven()
    driven.view({0: ONE, 1: ONE}, 2, plain=True)
    conn = driven.subscribe()
    driven.deliver(conn)
    driven.view({1: ONE}, 2, plain=True)
    assert driven.took("leave") == [ConnectionAction("leave", conn)]
    past = driven.subscriptions.past
    assert (past.delivered, past.returned, set(driven.machine.partitions)) == (1, 1, {1})
    driven.took()
    driven.subscriptions.lost(conn, LOST, driven.now)
    assert [each.what for each in driven.took()] == ["disconnected"], "nobody connects again"


NO_TAGS = (
    "topic 'orders' has no tags, so tag='a' would receive every message: remove tag=, or create the topic as an"
    " extended one"
)
NO_HEADERS = (
    "messages of topic 'orders' have no headers, so nsqd would ignore ext_filter= and deliver every message: remove"
    " ext_filter=, or create the topic as an extended one"
)


@pytest.mark.parametrize(
    ("options", "meta", "said"),
    [
        ({"partitions": (0, 7)}, {}, "partitions: topic 'orders' has only partition 0, not 7"),
        ({"tag": "a"}, {}, NO_TAGS),
        ({"ext_filter": ExtFilter.equals("k", "v")}, {}, NO_HEADERS),
        ({"ordered": True}, {"plain": True}, "ordered"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], meta: dict[str, Any], said: str) -> None:
    driven = Driven(**options)
    driven.view({0: ONE}, **meta)
    (unreadable,) = driven.took(Unreadable)
    assert str(unreadable.error).endswith(said) or said == "ordered"
    assert driven.machine.partitions == {}


def test_options_without_effect_are_warned_about_once() -> None:
    driven = Driven(ordered=True, skip_header={"k": "v"})
    driven.view({0: ONE})
    skips, order = driven.took(Said)
    assert skips.text == (
        "messages of this topic have no headers, so skip_header= skips none of them: remove it, or create the topic as"
        " an extended one"
    )
    assert order.text == (
        "the topic is not ordered: ordered=True makes this channel ordered for all its consumers, one message at a time"
        " for each partition, until nsqd's /channel/setorder is called with order=false"
    )
    assert driven.opening().is_ordered


def test_what_is_learned_counts_from_the_next_look(driven: Driven) -> None:
    view = driven.subscriptions.view
    driven.subscriptions.learn(replace(view, leaders={0: TWO}), driven.now)
    assert driven.opening().node == ONE
    driven.after(0.0)
    assert driven.opening().node == TWO


def test_what_comes_after_the_end_of_a_connection_changes_nothing(driven: Driven) -> None:
    conn = driven.subscribe()
    driven.subscriptions.answered(conn, driven.now)
    assert conn.stage is Stage.IN_USE
    driven.subscriptions.end(conn, LOST, driven.now)
    driven.took()
    driven.subscriptions.end(conn, LOST, driven.now)
    assert driven.took() == []


# ------------------------------------------------------------ connections with a limited lifetime


def limited(driven: Driven) -> Lifetime:
    return Lifetime(driven.now, 5.0, 0.0)


def test_what_is_closed_is_not_lost_again(driven: Driven) -> None:
    first = driven.subscribe()
    driven.subscriptions.lost(first, LOST, driven.now)
    before, _ = (driven.part.failures, driven.part.opening), driven.took()
    driven.subscriptions.lost(first, LOST, driven.now)
    assert ((driven.part.failures, driven.part.opening), driven.took()) == (before, [])


def test_the_next_connection_is_replaced_in_time_also_if_cls_was_never_answered(driven: Driven) -> None:
    driven.subscribe(limited(driven))
    for _ in range(2):
        driven.after(3.0)
        second = driven.subscribe(limited(driven))
        driven.after(1.8)
        assert driven.part.conn is second


def test_so_is_one_without_messages(driven: Driven) -> None:
    first = driven.subscribe(limited(driven))
    driven.part.retry_at = driven.now + 100.0
    driven.after(4.8)
    assert first.stage is Stage.CLOSED
    assert driven.took("abort")[0].reason is driven.part.trouble
    assert driven.part.failures == 1


def test_one_that_is_lost_takes_its_successor_with_it(driven: Driven) -> None:
    first = driven.subscribe(limited(driven))
    driven.after(3.0)
    second = driven.opening()
    driven.subscriptions.lost(first, LOST, driven.now)
    assert second.stage is Stage.CLOSED
    assert driven.part.opening is None


def test_a_successor_that_is_lost_while_it_waits_is_replaced(driven: Driven) -> None:
    driven.subscribe(limited(driven))
    driven.after(3.0)
    second = driven.subscribe(limited(driven))
    assert second.stage is Stage.SUBSCRIBED
    driven.subscriptions.lost(second, LOST, driven.now)
    driven.after(0.5)
    assert driven.opening().replaces is driven.part.conn


def test_an_earlier_connection_outlives_its_successor(driven: Driven) -> None:
    first = driven.subscribe(limited(driven))
    driven.deliver(first)
    driven.after(3.0)
    second = driven.subscribe()
    driven.subscriptions.stopped(first, driven.now)
    driven.subscriptions.lost(second, LOST, driven.now)
    driven.after(1.0)
    driven.subscribe()
    assert first.stage is Stage.DRAINING


def test_another_leader_ends_earlier_connections(driven: Driven) -> None:
    first = driven.subscribe(limited(driven))
    driven.deliver(first)
    driven.after(3.0)
    second = driven.subscribe(limited(driven))
    driven.subscriptions.stopped(first, driven.now)
    driven.view({0: TWO})
    driven.open()
    assert (first.stage, second.stage) == (Stage.CLOSED, Stage.CLOSED)


# ------------------------------------------------------------ the end


def test_closing_stops_messages_and_connects_to_nothing() -> None:
    driven = Driven()
    driven.view({0: ONE, 1: TWO}, 2)
    conn = driven.subscribe()
    opening = driven.machine.partitions[1].opening
    assert opening is not None
    driven.took()
    driven.machine.close(driven.now)
    assert driven.took("stop") == [ConnectionAction("stop", conn)]
    assert opening.stage is Stage.CLOSED
    assert not driven.subscriptions.are_stopped
    driven.view({0: TWO, 1: ONE}, 2)
    driven.subscriptions.stopped(conn, driven.now)
    assert driven.subscriptions.are_stopped
    driven.subscriptions.lost(conn, LOST, driven.now)
    driven.subscriptions.stopped(conn, driven.now)
    driven.after(60.0)
    assert driven.took("open") == []


def test_closing_waits_for_a_limited_connection_no_longer_than_it_can_answer(driven: Driven) -> None:
    conn = driven.subscribe(limited(driven))
    driven.deliver(conn)
    driven.machine.close(driven.now)
    driven.after(4.8)
    assert driven.subscriptions.are_stopped
    assert conn.stage is Stage.DRAINING
