"""The parts of a subscription, each alone: which partitions are read, from where, and what is said about it."""

from __future__ import annotations

import asyncio
import logging
import time
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest

from nsq_ha import ConsumerConfig, tracelog
from nsq_ha.admin import nsqd_http
from nsq_ha.admin.nsqd_http import EMPTY_LOG
from nsq_ha.consumer import partitions as partitions_module
from nsq_ha.consumer.delivery import DeliveryCounts
from nsq_ha.consumer.partitions import Partitions
from nsq_ha.consumer.receiving import Receiver
from nsq_ha.consumer.starting import Start
from nsq_ha.consumer.trouble import PartitionTrouble
from nsq_ha.errors import (
    BadNameError,
    ConnectError,
    ConnectionLostError,
    LookupUnavailableError,
    NsqError,
    RemoteProtocolError,
    ServerError,
    SubscribeRefusedError,
    TlsRequiredError,
    TopicNotExistError,
)
from nsq_ha.message import Message
from nsq_ha.observe import SILENT, PartitionReports
from nsq_ha.options.start_from import StartFrom
from nsq_ha.policy.growth import LedPartition
from nsq_ha.policy.timing import FEW_LINES
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.protocol import Identity
from nsq_ha.protocol.messages import DamagedMessage
from tests.consumer.parts import Reports, delivery_for
from tests.support.nsqd import message_id
from tests.support.turns import TURN
from tests.support.waiting import dawdle, turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TOPIC = "orders"
ONE, TWO = Node("10.0.0.1", 4150, 4151), Node("10.0.0.2", 4150, 4151)


def now() -> float:
    return asyncio.get_running_loop().time()


def view_of(*nodes: Node, number: int | None = None, exists: bool = True, **flags: bool) -> TopicView:
    meta = TopicMeta(len(nodes) if number is None else number, **flags) if exists else None
    return TopicView(TOPIC, meta, dict(enumerate(nodes)), complete=True, exists=exists)


def config_of(**options: Any) -> ConsumerConfig:  # noqa: ANN401 - ConsumerConfig's
    return ConsumerConfig(**({"lookupd": ("http://a:1",)} | options))


class FakeWatch:
    """Knows what a test says."""

    topic = TOPIC
    lookupds = ("http://a:1",)
    observer = SILENT

    def __init__(self, view: TopicView | None = None) -> None:
        self.view = view
        self.error: NsqError | None = None
        self.siblings: FakeSiblings | None = None
        self.found = asyncio.Event()

    async def wait_until(self, predicate: Callable[[TopicView], bool]) -> TopicView:
        while self.view is None or not predicate(self.view):
            self.found.clear()
            await self.found.wait()
        return self.view


class FakeSiblings:
    """Stands for nsqd's HTTP, where all channels but those of ``there`` are new."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.error: NsqError | None = None
        self.there: dict[int, LedPartition] = {}

    async def held(self, node: Node) -> dict[int, LedPartition]:
        await self._called("held", node)
        return self.there

    async def create(self, *place: object, ordered: bool) -> None:
        await self._called("create", *place, ordered)

    async def report(self, *place: object) -> None:
        await self._called("report", *place)

    async def _called(self, *call: object) -> None:
        await turn()
        self.calls.append(call)
        if self.error is not None:
            raise self.error


class FakeSubscription:
    """A subscription that only records the calls of its methods."""

    made: list[FakeSubscription]

    def __init__(self, *parts: Any, approach: object = None) -> None:  # noqa: ANN401 - what a Subscription takes
        self.approach = approach
        self.watch, self.channel, self.partition, self.config, self.inbox = parts
        self.link = SimpleNamespace(run=self.run)
        self.has_channel = False
        self.counts = DeliveryCounts()
        self.in_flight = self.replaced_in_flight = 0
        self.delivery: object = None
        self.is_subscribed = False
        self.trouble: NsqError | None = None
        self.views: list[TopicView] = []
        self.ended = False
        self.made.append(self)

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True

    def view_changed(self, view: TopicView) -> None:
        self.views.append(view)


class Case:
    """The partitions of one consumer."""

    def __init__(self, group: asyncio.TaskGroup, view: TopicView | None, **options: Any) -> None:  # noqa: ANN401
        self.group = group
        self.watch = FakeWatch(view)
        self.refused: list[str] = []
        self.subscriptions: dict[int, Any] = {}
        self.inbox: Any = SimpleNamespace(refused=lambda error: self.refused.append(str(error)))
        watch: Any = self.watch
        self.config = config_of(**options)
        self.partitions = Partitions(watch, "ch", self.config, self.subscriptions, self.inbox)

    def follow(self, view: TopicView) -> list[int]:
        """Follow a view; return the partitions that are read."""
        self.watch.view = view
        self.watch.found.set()
        self.partitions.follow(view, self.group)
        return sorted(self.subscriptions)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Case]]:
    FakeSubscription.made = []
    monkeypatch.setattr(partitions_module, "Subscription", FakeSubscription)
    cases: list[Case] = []
    async with asyncio.TaskGroup() as group:

        def make(view: TopicView | None = None, **options: Any) -> Case:  # noqa: ANN401 - ConsumerConfig's
            cases.append(Case(group, view, **options))
            return cases[-1]

        yield make
        for case in cases:
            case.partitions.cancel()


async def test_each_partition_gets_a_subscription_with_all_that_it_needs(make: Callable[..., Case]) -> None:
    case = make()
    first, second = view_of(ONE), view_of(ONE, TWO)
    assert case.follow(first) == [0]
    assert case.follow(second) == [0, 1]
    one, two = FakeSubscription.made
    assert (one.watch, one.channel, one.partition, one.config, one.inbox) == (
        case.watch,
        "ch",
        0,
        case.config,
        case.inbox,
    )
    assert (one.views, two.views) == ([first, second], [second])
    assert one.approach is two.approach is not None
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert {"nsq_ha subscription orders-0", "nsq_ha subscription orders-1"} <= names
    await turn(2)
    case.partitions.follow(second, None)
    assert len(FakeSubscription.made) == 2
    assert case.follow(view_of(ONE, number=1)) == [0]
    await turn(2)
    assert (one.ended, two.ended) == (False, True)
    assert case.follow(view_of(exists=False)) == [0]  # it may come back
    case.partitions.cancel()
    await turn(2)
    assert one.ended


async def test_a_leader_beyond_the_number_is_read_too(make: Callable[..., Case]) -> None:
    assert make().follow(view_of(ONE, TWO, number=1)) == [0, 1]


async def test_only_the_partitions_that_were_named_are_read(make: Callable[..., Case]) -> None:
    case = make(partitions=(1, 2))
    assert case.follow(view_of(ONE, ONE, TWO)) == [1, 2]
    assert not case.partitions.are_subscribed()
    assert case.follow(view_of(ONE, number=3)) == [1, 2]
    for subscription in case.subscriptions.values():
        assert not case.partitions.are_subscribed()
        subscription.delivery, subscription.is_subscribed = object(), True
    assert case.partitions.are_subscribed()
    case.subscriptions[1].delivery = None
    assert not case.partitions.are_subscribed()


async def test_nothing_is_subscribed_while_nothing_is_known(make: Callable[..., Case]) -> None:
    case = make()
    assert not case.partitions.are_subscribed()
    case.watch.view = view_of(exists=False)
    assert not case.partitions.are_subscribed()


async def test_a_plain_nsqd_that_nobody_lists_any_more_is_read_but_not_waited_for(make: Callable[..., Case]) -> None:
    case = make()
    both = view_of(ONE, TWO, is_partitioned=False)
    assert case.follow(both) == [0, 1]
    case.subscriptions[0].delivery, case.subscriptions[0].is_subscribed = object(), True
    assert not case.partitions.are_subscribed()
    case.watch.view = TopicView(TOPIC, both.meta, {0: ONE}, complete=True, exists=True)
    assert case.partitions.are_subscribed()


@pytest.mark.parametrize(
    ("options", "view", "text"),
    [
        (
            {"partitions": (0, 2, 5)},
            view_of(ONE, TWO),
            "partitions: topic 'orders' has partitions 0..1, not 2, 5",
        ),
        (
            {"start_from": {3: StartFrom.beginning()}},
            view_of(ONE),
            "start_from: topic 'orders' has only partition 0, not 3",
        ),
        (
            {"tag": "t"},
            view_of(ONE),
            (
                "topic 'orders' has no tags, so tag='t' would receive every message: remove tag=, or create the topic"
                " as an extended one"
            ),
        ),
    ],
)
async def test_options_that_do_not_suit_the_topic_are_refused(
    make: Callable[..., Case], options: dict[str, Any], view: TopicView, text: str
) -> None:
    case = make(**options)
    assert case.follow(view) == []
    assert case.refused == [text]


async def test_options_that_suit_the_topic_are_not(make: Callable[..., Case]) -> None:
    case = make(tag="t", partitions=(1,))
    assert case.follow(view_of(ONE, TWO, extend_support=True)) == [1]
    case = make(partitions=(1,))
    assert case.follow(view_of(exists=False)) == [1]
    case = make(partitions=(1,))
    assert case.follow(view_of(ONE, TWO, number=1)) == [1]  # it has a leader already
    assert case.refused == []


async def test_options_of_partitioned_servers_are_refused_by_plain_ones_before_the_first_subscription(
    make: Callable[..., Case],
) -> None:
    case = make(ordered=True)
    assert case.follow(view_of(ONE, is_partitioned=False)) == []
    assert len(case.refused) == 1
    assert "ordered" in case.refused[0]
    case.subscriptions[0] = FakeSubscription(*[None] * 5)
    case.follow(view_of(ONE, is_partitioned=False))
    assert len(case.refused) == 1


async def test_an_ordered_channel_of_another_topic_is_one_warning(
    make: Callable[..., Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make(ordered=True, partitions=(0,))
    for _ in range(2):
        case.partitions.follow(view_of(ONE), None)
    assert caplog.messages == [
        (
            "orders/ch: the topic is not ordered: ordered=True makes this channel ordered for all its consumers, one"
            " message at a time for each partition, until nsqd's /channel/setorder is called with order=false"
        )
    ]
    make(ordered=True).follow(view_of(ONE, ordered=True))
    make(ordered="auto").follow(view_of(ONE))
    assert len(caplog.messages) == 1


async def test_why_not_all_are_read(make: Callable[..., Case]) -> None:
    case = make()
    why = case.partitions.why_not
    assert why() == "the first lookup was not answered yet"
    case.watch.view = view_of(exists=False)
    assert why() == "there is no topic 'orders': create it (nsq-ha topic create orders)"
    case.watch.view = TopicView(
        TOPIC, TopicMeta(1, is_partitioned=False), {}, complete=True, exists=False, is_plain=True
    )
    assert why() == "no nsqd has topic 'orders' yet: the first publish creates it"
    case.watch.error = LookupUnavailableError("no answer")
    assert why() == "no answer"
    case.follow(view_of(ONE, TWO))
    case.watch.error = None
    silent = [f"partition {number}: nsqd {node.address} has not answered yet" for number, node in enumerate((ONE, TWO))]
    assert why() == "; ".join(silent)
    case.subscriptions[0].is_subscribed = True
    assert why() == silent[1]
    for number in (1, 0):
        case.subscriptions[number].trouble = ConnectionLostError(f"lost {number}")
    assert why() == "partition 0: lost 0 (the same for partition 1)"
    case.subscriptions[1].trouble = ConnectionLostError("closed")
    assert why() == "partition 0: lost 0; partition 1: closed"


async def test_another_thread_may_ask_while_a_partition_is_added(make: Callable[..., Case]) -> None:
    """health() raised RuntimeError: the dictionary changed while its errors were written as text."""
    case = make()
    case.follow(view_of(ONE, TWO))

    class LostError(ConnectionLostError):
        def __str__(self) -> str:
            case.subscriptions[len(case.subscriptions)] = case.subscriptions[0]  # as the loop's thread does meanwhile
            return "lost"

    for number in range(2):
        case.subscriptions[number].trouble = LostError()
    assert case.partitions.why_not() == "partition 0: lost (the same for partition 1)"


async def test_another_thread_may_ask_while_a_partition_recovers(make: Callable[..., Case]) -> None:
    """The reason was "None": the trouble was over when it was written as text."""
    case = make()
    case.follow(view_of(ONE))

    reasons = [ConnectionLostError("lost"), None]

    class Recovering:
        @property
        def trouble(self) -> NsqError | None:
            return reasons.pop(0)

    recovering: Any = Recovering()
    case.subscriptions[0] = recovering
    assert case.partitions.why_not() == "partition 0: lost"


async def test_what_a_plain_consumer_lacks_is_named_by_its_nsqds(
    make: Callable[..., Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make()
    case.follow(view_of(ONE, TWO, is_partitioned=False))
    why = case.partitions.why_not
    silent = [f"nsqd {node.address} has not answered yet" for node in (ONE, TWO)]
    assert why() == "; ".join(silent)
    for number in (1, 0):
        case.subscriptions[number].trouble = ConnectionLostError(f"lost {number}")
    assert why() == f"nsqd {ONE.address}: lost 0 (the same for nsqd {TWO.address})"
    case.subscriptions[0].trouble = ConnectionLostError(f"cannot connect to {ONE.address}")
    case.subscriptions[1].is_subscribed, case.subscriptions[1].trouble = True, None
    assert why() == f"cannot connect to {ONE.address}"
    case.partitions.warn_at_start(now())
    assert caplog.messages[-1].endswith(f"in the background: {why()}")


async def test_naming_a_thousand_nsqds_takes_no_time(make: Callable[..., Case]) -> None:
    nodes = [Node("127.0.0.1", 1 + number, 0, is_plain=True) for number in range(1024)]
    leaders = MappingProxyType(dict(enumerate(nodes)))
    view = TopicView(TOPIC, TopicMeta(1024, is_partitioned=False), leaders, complete=True, exists=True)
    case = make()
    case.follow(view)
    for number, node in enumerate(nodes):
        case.subscriptions[number].trouble = ConnectionLostError(f"cannot connect to {node.address}")
    began = time.thread_time()
    assert case.partitions.why_not().endswith("nsqd 127.0.0.1:1024)")
    assert time.thread_time() - began < TURN


async def test_a_topic_that_is_not_found_is_warned_about_until_it_is(
    make: Callable[..., Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make(view_of(exists=False))
    seeking = asyncio.create_task(case.partitions.seek())
    await dawdle(4.0)
    assert caplog.messages == []
    await dawdle(2.0)
    text = "there is no topic 'orders': create it (nsq-ha topic create orders)"
    assert caplog.messages == [f"orders/ch: nothing to read for 5 s: {text}; still looking"]
    case.partitions.warn_at_start(now())  # it was said
    assert len(caplog.messages) == 1
    await dawdle(2.0)
    case.follow(view_of(ONE))
    await turn(3)
    assert caplog.messages[1:] == ["orders/ch: found the topic after 8 s"]
    caplog.clear()
    case.watch.view = view_of(exists=False)
    assert seeking.done()
    seeking = asyncio.create_task(case.partitions.seek())
    await dawdle(5.5)
    assert len(caplog.messages) == 1
    seeking.cancel()


async def test_the_warning_at_the_start_counts_as_one_about_the_topic(
    make: Callable[..., Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make(view_of(exists=False))
    seeking = asyncio.create_task(case.partitions.seek())
    await dawdle(4.0)
    case.partitions.warn_at_start(now())
    assert caplog.messages == [
        (
            "orders/ch: not all partitions are subscribed yet, continuing in the background: there is no topic"
            " 'orders': create it (nsq-ha topic create orders)"
        )
    ]
    await dawdle(5.0)
    assert len(caplog.messages) == 1
    case.follow(view_of(ONE))
    await turn(3)
    assert caplog.messages[1:] == ["orders/ch: found the topic after 9 s"]
    seeking.cancel()


# ---------------------------------------------------------------- troubles


def trouble_of(**options: Any) -> PartitionTrouble:  # noqa: ANN401 - ConsumerConfig's
    return PartitionTrouble(TOPIC, f"{TOPIC}-3", config_of(**options), PartitionReports(SILENT, TOPIC, "billing", 3))


def test_an_outage_of_a_partition_is_a_warning_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    trouble = trouble_of()
    assert (trouble.reason, trouble.is_open) == (None, False)
    reason = ConnectionLostError("10.0.0.1:4150: lost")
    trouble.failed(100.0, reason, ONE)
    assert (trouble.reason, trouble.is_open) == (reason, True)
    trouble.failed(101.0, reason, ONE)
    trouble.failed(105.5, ConnectionLostError("orders-3 has no leader"))
    trouble.subscribed(107.0)
    assert (trouble.reason, trouble.is_open) == (None, True)
    trouble.settled(ONE)
    assert not trouble.is_open
    trouble.failed(200.0, reason, ONE)
    trouble.settled(ONE)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "orders-3 at nsqd 10.0.0.1:4150: lost"),
        ("DEBUG", "orders-3 at nsqd 10.0.0.1:4150: lost"),
        ("WARNING", "orders-3 has no leader; still trying after 6 s and 3 failures"),
        ("WARNING", "orders-3 at nsqd 10.0.0.1:4150: reading again after 7 s"),
        ("INFO", "orders-3 at nsqd 10.0.0.1:4150: lost"),
    ]


def test_which_errors_no_retry_cures() -> None:
    unordered = ServerError("E_SUB_ORDER_IS_MUST", "no")
    refused = SubscribeRefusedError("E_SUB_SOMETHING", "no")
    for options, permanent in (
        ({}, (True, False, False, False)),
        ({"ordered": False}, (True, True, False, False)),
        ({"lookupd": (), "nsqd": ("a:1",)}, (True, False, True, False)),
    ):
        trouble = trouble_of(**options)
        errors = (BadNameError("E_BAD_TOPIC", "no"), unordered, refused, ConnectionLostError("lost"))
        assert tuple(trouble.ends(error) for error in errors) == permanent, options
    assert not trouble_of(ordered=False).ends(ServerError("E_OTHER", "no"))


def test_a_topic_that_a_given_nsqd_does_not_have_is_explained() -> None:
    known = TopicNotExistError("E_TOPIC_NOT_EXIST", "no")
    assert trouble_of().explained(known) is known
    assert "topic 'orders' is not on this nsqd" in str(trouble_of(lookupd=(), nsqd=("a:1",)).explained(known))


# ---------------------------------------------------------------- channels of slow partitions


async def test_channels_that_no_subscription_has_created_in_time_are_created_over_http(
    make: Callable[..., Case],
) -> None:
    case = make()
    siblings = case.watch.siblings = FakeSiblings()
    case.follow(view_of(ONE, TWO, ONE))
    case.subscriptions[1].has_channel = True
    began = now()
    await case.partitions.create_channels(0.5)
    assert now() - began >= 0.5
    assert siblings.calls == [("create", 0, ONE, "ch", False), ("create", 2, ONE, "ch", False)]
    assert all(subscription.has_channel for subscription in case.subscriptions.values())
    await case.partitions.create_channels(0.0)
    assert len(siblings.calls) == 2


async def test_one_that_cannot_be_created_is_left_to_its_subscription(make: Callable[..., Case]) -> None:
    case = make()
    siblings = case.watch.siblings = FakeSiblings()
    siblings.error = ConnectError("cannot connect")
    case.follow(view_of(ONE))
    await case.partitions.create_channels(0.0)
    assert not case.subscriptions[0].has_channel


@pytest.mark.parametrize(
    ("options", "view"),
    [
        ({}, None),
        ({}, TopicView(TOPIC, TopicMeta(1, is_partitioned=False), {0: ONE}, complete=True, exists=True, is_plain=True)),
        ({"start_from": StartFrom.end()}, view_of(ONE)),
        ({"start_from": {0: StartFrom.end()}}, view_of(ONE)),
    ],
)
async def test_where_it_makes_no_sense_none_is_created(
    make: Callable[..., Case], options: dict[str, Any], view: TopicView | None
) -> None:
    case = make(**options)
    siblings = case.watch.siblings = FakeSiblings()
    if view is not None:
        case.follow(view)
    await case.partitions.create_channels(0.0)
    assert siblings.calls == []


async def test_entering_names_the_partitions_that_may_have_no_channel(
    make: Callable[..., Case], caplog: pytest.LogCaptureFixture
) -> None:
    case = make()
    case.follow(view_of(*[ONE] * 6))
    for partition in (0, 5):
        case.subscriptions[partition].has_channel = True
    case.partitions.warn_at_start(now())
    assert caplog.messages == [
        (
            "orders/ch: not all partitions are subscribed yet, continuing in the background: partitions 0-5: nsqd"
            " 10.0.0.1:4150 has not answered yet. The channel may not exist on partitions 1-4 yet: what is published"
            " there before it does is not delivered to it"
        )
    ]
    for partition in range(6):
        case.subscriptions[partition].has_channel = True
    case.partitions.warn_at_start(now())
    assert "may not exist" not in caplog.messages[-1]


# ---------------------------------------------------------------- start positions


class Http:
    """Stands for nsqd's HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: NsqError | None = None
        monkeypatch.setattr(nsqd_http, "NsqdHttp", self.open)

    def open(self, node: Node, *, timeout: float, local_addr: str | None) -> Http:
        assert local_addr is None
        self.calls.append(("open", node, timeout))
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of NsqdHttp
        async def call(*arguments: object, **more: object) -> object:
            await turn()
            self.calls.append((name, *arguments, *more.items()))
            if self.error is not None:
                raise self.error
            return None

        return call


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> Http:
    return Http(monkeypatch)


def start_of(
    view: TopicView | None = None,
    channel: str = "ch",
    siblings: FakeSiblings | None = None,
    **options: Any,  # noqa: ANN401 - ConsumerConfig's
) -> Start:
    watch: Any = FakeWatch(view)
    watch.siblings = siblings
    return Start(watch, channel, 3, config_of(lookup_timeout=0.75, **options))


WHERE = (TOPIC, 3, "ch")


@pytest.mark.parametrize("by_partition", [False, True])
async def test_a_position_is_set_once_over_http(http: Http, *, by_partition: bool) -> None:
    position = StartFrom.beginning()
    start = start_of(start_from={3: position} if by_partition else position)
    assert (start.is_checked, start.is_set) == (False, False)
    assert await start.prepare(ONE, is_ordered=False) is None
    assert http.calls == [("open", ONE, 0.75), ("start_channel_from", *WHERE, str(position))]
    assert (start.is_checked, start.is_set) == (False, True)
    start.done()
    assert await start.prepare(ONE, is_ordered=False) is None
    assert (len(http.calls), start.is_set) == (2, False)


async def test_a_new_ordered_channel_is_made_ordered_before_its_position_is_set(http: Http) -> None:
    start = start_of(start_from=StartFrom.beginning())
    await start.prepare(ONE, is_ordered=True)
    assert [call[0] for call in http.calls] == ["open", "create_channel", "set_order", "start_channel_from"]
    assert http.calls[1:3] == [("create_channel", *WHERE), ("set_order", *WHERE, ("ordered", True))]


NO_HTTP = TlsRequiredError("", "it takes HTTPS only")


def alone() -> TopicView:
    return TopicView(TOPIC, TopicMeta(2), {0: TWO, 1: ONE}, complete=True, exists=True)


async def test_without_http_sub_carries_the_position_if_the_nsqd_leads_one_partition(http: Http) -> None:
    http.error = NO_HTTP
    position = StartFrom.beginning()
    start = start_of(alone(), start_from=position)
    assert await start.prepare(ONE, is_ordered=False) == str(position)
    assert (start.is_checked, start.is_set) == (True, True)
    http.error = None
    assert await start.prepare(ONE, is_ordered=False) is None
    assert (start.is_checked, start.is_set) == (False, True)


@pytest.mark.parametrize(
    ("view", "is_ordered"),
    [
        (alone(), True),
        (None, False),
        (TopicView(TOPIC, TopicMeta(2), {0: ONE, 1: ONE}, complete=True, exists=True), False),
        (TopicView(TOPIC, TopicMeta(3), {0: TWO, 1: ONE}, complete=False, exists=True), False),
    ],
)
async def test_elsewhere_that_is_an_error(http: Http, view: TopicView | None, *, is_ordered: bool) -> None:
    http.error = NO_HTTP
    with pytest.raises(TlsRequiredError) as caught:
        await start_of(view, start_from=StartFrom.beginning()).prepare(ONE, is_ordered=is_ordered)
    assert str(caught.value).strip() == (
        "start_from cannot be applied to orders-3: it takes HTTPS only, and SUB takes a position only for an unordered"
        " topic of which the nsqd leads one partition. Leave start_from out, and set the channel's position over nsqd's"
        " HTTPS (/channel/setoffset)"
    )


async def test_an_empty_partition_is_subscribed_without_a_position(http: Http) -> None:
    http.error = NO_HTTP
    start = start_of(alone(), start_from=StartFrom.beginning())
    empty = ServerError("E_SUB", EMPTY_LOG)
    assert start.after_refusal(empty) is empty
    await start.prepare(ONE, is_ordered=False)
    other, lost = ServerError("E_SUB", "other"), ConnectionLostError(EMPTY_LOG)
    assert start.after_refusal(other) is other
    assert start.after_refusal(lost) is lost
    error = start.after_refusal(empty)
    assert type(error) is ConnectionLostError
    assert str(error) == "the partition is empty and takes no start position: subscribing without one"
    assert await start.prepare(ONE, is_ordered=False) is None


async def test_messages_of_another_partition_are_refused() -> None:
    delivery = delivery_for(Reports())
    delivery.nsqd = "here:1"
    start = start_of()
    start.check([Message(message_id(2, 3), b"x", 1, 7, delivery)])
    with pytest.raises(RemoteProtocolError) as caught:
        start.check([Message(message_id(2, partition), b"x", 1, 7, delivery) for partition in (3, 1023)])
    assert str(caught.value) == (
        "here:1 delivers partition 1023 instead of orders-3: it leads both, and SUB with a start position does not"
        " choose between them"
    )


async def test_a_new_ordered_channel_is_made_known_to_the_replicas_once() -> None:
    siblings = FakeSiblings()
    start = start_of(siblings=siblings)
    for node in (ONE, ONE, TWO):
        await start.replicate(node)
    each = [[("held", node), ("report", 3, node, "ch")] for node in (ONE, TWO)]
    assert siblings.calls == each[0] + each[1]
    await start.replicate(Node("10.0.0.3", 4150, 0))
    await start_of(channel="ch#ephemeral", siblings=siblings).replicate(ONE)
    await start_of(start_from=StartFrom.beginning(), siblings=siblings).replicate(ONE)
    await start_of().replicate(ONE)
    start.done()
    await start.replicate(ONE)
    assert len(siblings.calls) == 4


async def test_the_channel_of_a_topic_that_was_created_again_is_new(http: Http) -> None:
    siblings = FakeSiblings()
    for start in (start_of(siblings=siblings), start_of(start_from=StartFrom.beginning(), siblings=siblings)):
        for _ in range(2):
            await start.prepare(ONE, is_ordered=True)
            await start.replicate(ONE)
            start.done()
            start.forget()
    assert siblings.calls == [("held", ONE), ("report", 3, ONE, "ch")] * 2
    assert [call[0] for call in http.calls].count("start_channel_from") == 1


async def test_an_operators_pause_is_not_taken_back() -> None:
    siblings = FakeSiblings()
    siblings.there = {3: LedPartition(0, {"ch": True})}
    await start_of(siblings=siblings).replicate(ONE)
    assert siblings.calls == [("held", ONE)]


async def test_replicas_that_cannot_be_told_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    siblings = FakeSiblings()
    start = start_of(siblings=siblings)
    siblings.error = ConnectError("cannot connect")
    for _ in range(2):
        await start.replicate(ONE)
    assert (
        caplog.messages
        == [
            (
                "channel ch of orders-3 may be unknown to the partition's replicas (cannot connect): if it is new"
                " and the leader changes before a message is finished, the messages so far are not delivered"
            )
        ]
        * 2
    )
    siblings.error = None
    await start.replicate(ONE)
    assert siblings.calls[-1][0] == "report"


# ---------------------------------------------------------------- what arrives


class Checks:
    """A start position that records the messages it checks."""

    def __init__(self) -> None:
        self.is_checked = False
        self.checked: list[list[Message]] = []

    def check(self, messages: list[Message]) -> None:
        self.checked.append(messages)


class Wire:
    """Stands for a connection."""

    node = ONE
    identity = Identity(version="fake", msg_timeout=4_000)

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted: list[str] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    write_now = write

    def abort(self, reason: NsqError) -> None:
        self.aborted.append(str(reason))


class Arriving:
    """A receiver with its delivery."""

    def __init__(self, *, is_ordered: bool = False) -> None:
        self.start, self.wire = Checks(), Wire()
        self.arrived: list[tuple[list[bytes], bool]] = []
        start: Any = self.start
        self.receiver = Receiver(TOPIC, f"{TOPIC}-3", start, self._arrived)
        self.delivery = delivery_for(Reports(), is_ordered=is_ordered)
        wire: Any = self.wire
        self.delivery.attach(wire)
        self.lost: list[NsqError] = []
        self.callbacks = self.receiver.callbacks(self.delivery, self.lost.append)

    def _arrived(self, messages: list[Message]) -> None:
        self.arrived.append(([message.body for message in messages], self.delivery.is_arriving))

    def read(self, count: int, size: int = 1, first: int = 2) -> None:
        messages = [Message(message_id(n + first, 3), b"x" * size, 1, 7, self.delivery) for n in range(count)]
        assert self.callbacks.messages is not None
        self.callbacks.messages(messages)


async def test_messages_are_counted_and_passed_on() -> None:
    case = Arriving()
    case.delivery.granted.grant(10)
    case.read(3)
    case.read(2, first=9)
    assert case.arrived == [([b"x"] * 3, True), ([b"x"] * 2, True)]
    delivery = case.delivery
    assert (delivery.delivered, delivery.in_flight, delivery.peak, delivery.is_arriving) == (5, 5, 5, False)
    assert (case.start.checked, delivery.arrived_at) == ([], 0.0)
    delivery.in_flight = 1
    case.start.is_checked = True
    case.read(1, first=20)
    assert (delivery.peak, len(case.start.checked)) == (5, 1)
    ordered = Arriving(is_ordered=True)
    ordered.delivery.granted.grant(1)
    ordered.read(1)
    assert ordered.delivery.arrived_at == pytest.approx(now(), abs=0.01)
    ordered.read(1)  # the first message once more: it comes twice
    assert len(ordered.arrived) == 1
    assert ordered.delivery.delivered == 1
    delivery.detach()
    case.read(1)
    assert len(case.arrived) == 3
    lost = ConnectionLostError("lost")
    case.callbacks.lost(lost)
    assert case.lost == [lost]


async def test_more_than_was_asked_for_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    case = Arriving()
    case.delivery.granted.grant(5)
    case.delivery.granted.grant(2)
    await dawdle(100.0)  # what was on its way has arrived
    case.read(100)
    text = "10.0.0.1:4150 ignores RDY: 100 messages are in flight, RDY is 2 and was 5 at most"
    assert case.wire.aborted == [text]
    assert caplog.messages == [f"orders-3: closing the connection: {text}"]
    assert case.arrived == []


@pytest.mark.parametrize(("attempts", "level", "did"), [(1, "WARNING", "requeued"), (1000, "ERROR", "finished")])
async def test_a_message_that_cannot_be_decoded_is_answered_and_named(
    caplog: pytest.LogCaptureFixture, attempts: int, level: str, did: str
) -> None:
    case = Arriving()
    damaged = DamagedMessage(message_id(2, 3), attempts, 7, "no room")
    assert case.callbacks.damaged is not None
    case.callbacks.damaged([damaged])
    text = f"orders-3: {did} a message that cannot be decoded: {damaged!r}"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [(level, text)]
    (answer,) = case.wire.written
    assert answer.startswith((b"FIN " if did == "finished" else b"REQ ") + message_id(2, 3))


async def test_refusals_of_answers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    case = Arriving()
    assert case.callbacks.refusals is not None
    case.callbacks.refusals([ServerError("E_FIN_FAILED", "FIN of x")])
    assert caplog.messages == ["orders-3: E_FIN_FAILED FIN of x"]
    case.callbacks.refusals([ServerError("E_FIN_FAILED", "FIN of y")] * 20_000)
    assert len(caplog.messages) == FEW_LINES
    assert caplog.messages[-1] == "orders-3: E_FIN_FAILED FIN of y (further ones are counted for 60 s)"


async def test_deliveries_of_a_traced_topic_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, bytes]] = []
    monkeypatch.setattr(tracelog, "log_message", lambda event, message: lines.append((event, message.id)))
    monkeypatch.setattr(tracelog.TraceSwitch, "is_on", lambda _, topic: topic == TOPIC)
    case = Arriving()
    case.delivery.granted.grant(10)
    case.read(1)
    assert lines == []
    tracelog.switch.enable(TOPIC)
    try:
        case.read(2)
    finally:
        tracelog.switch.disable()
    assert lines == [("delivery", message_id(2, 3)), ("delivery", message_id(3, 3))]
