"""A channel under any sequence of what clients do."""

import functools
import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.devcluster.storage.any_channel import AnyConsumer, Refusal
from nsq_ha.devcluster.storage.channel import MAX_CONFIRM_WINDOW, Channel
from nsq_ha.devcluster.storage.log import Cursor, Draft, Log, Record

_numbers = itertools.count(1)


class Client(AnyConsumer[Record]):
    """A consumer that remembers."""

    def __init__(self, ready: int = 1, msg_timeout: float = 60.0) -> None:
        super().__init__(next(_numbers), msg_timeout, 900.0)
        self.ready = ready
        self.wanted = True
        self.got: list[tuple[bytes, int]] = []
        self.in_hand: list[int] = []
        self.dropped = False

    def wants(self, message: Record) -> bool:
        assert message.body
        return self.wanted

    def deliver(self, message: Record, attempts: int, *, at_once: bool) -> None:
        assert at_once in (True, False)
        self.got.append((message.body, attempts))
        self.in_hand.append(message.internal_id)

    def flush(self) -> None:
        pass

    def drop(self) -> None:
        self.dropped = True


def channel_with(count: int) -> tuple[Channel, Log]:
    log = Log(0, extended=False)
    channel = Channel("billing", log, Cursor(0), functools.partial(refresh, log), lambda _: None)
    add(channel, log, count)
    return channel, log


def write(log: Log, count: int) -> None:
    """Publish what is acknowledged and cannot be read yet."""
    for _ in range(count):
        log.append(Draft(b"m%d" % len(log.records)), 0)
    log.commit()


def refresh(log: Log, channel: Channel) -> None:
    """Flush when the channel's reader is at its end, as the partition's leader does."""
    if log.flush():
        channel.grow(log.flushed)


def add(channel: Channel, log: Log, count: int) -> None:
    """Publish what can be read at once."""
    write(log, count)
    refresh(log, channel)


def joined(channel: Channel, ready: int = 1, msg_timeout: float = 60.0) -> Client:
    client = Client(ready, msg_timeout)
    channel.add(client)
    channel.dispatch(0.0)
    return client


def test_a_disconnect_gives_back_in_reverse_with_attempts_unchanged() -> None:
    channel, _ = channel_with(3)
    leaving = joined(channel, ready=3)
    channel.remove(leaving, 0.0)
    channel.remove(leaving, 0.0)
    staying = joined(channel, ready=3)
    assert staying.got == [(b"m2", 1), (b"m1", 1), (b"m0", 1)]


def test_a_window_full_of_finished_messages_stops_reading() -> None:
    channel, log = channel_with(3 * MAX_CONFIRM_WINDOW)
    client = joined(channel, ready=2500)
    for internal_id in client.in_hand[1 : 2 * MAX_CONFIRM_WINDOW + 4 : 2]:  # every second one: each is a run
        channel.finish(internal_id, client, 0.0)
    before = len(client.got)
    add(channel, log, 5)
    channel.dispatch(0.0)
    assert len(client.got) == before
    with pytest.raises(Refusal, match="Too much deferred"):
        channel.requeue(client.in_hand[0], client, 120.0, 0.0)
    for internal_id in client.in_hand[0:9:2]:
        channel.finish(internal_id, client, 0.0)
    assert len(client.got) > before


def test_touch_cannot_keep_a_message_for_ever() -> None:
    channel, _ = channel_with(1)
    client = joined(channel, msg_timeout=600.0)
    (internal_id,) = client.in_hand
    channel.touch(internal_id, client, 590.0)
    channel.tick(899.0)
    assert len(client.got) == 1
    channel.tick(901.0)
    assert client.got == [(b"m0", 1), (b"m0", 2)]


def test_consumers_take_turns_when_messages_come_singly() -> None:
    channel, log = channel_with(0)
    clients = [joined(channel), joined(channel)]
    for _ in range(10):
        add(channel, log, 1)
        channel.dispatch(0.0)
        (holder,) = [client for client in clients if client.holds]
        channel.finish(holder.in_hand[-1], holder, 0.0)
    assert [len(client.got) for client in clients] == [5, 5]


def test_what_is_in_hand_overtakes_what_is_given_back() -> None:
    channel, _ = channel_with(3)
    client = joined(channel)
    channel.requeue(client.in_hand[-1], client, 0.0, 0.0)
    channel.requeue(client.in_hand[-1], client, 0.0, 0.0)
    for _ in range(3):
        channel.finish(client.in_hand[-1], client, 0.0)
    assert client.got == [(b"m0", 1), (b"m1", 1), (b"m0", 2), (b"m1", 2), (b"m2", 1)]
    assert channel.requeued == 2


def test_a_switch_to_ordered_gives_out_what_is_in_hand_and_begins_again() -> None:
    channel, _ = channel_with(2)
    channel.dispatch(0.0)
    channel.switch_to_ordered()
    client = joined(channel, ready=5)
    assert client.got == [(b"m0", 1), (b"m0", 1)]
    channel.finish(client.in_hand[0], client, 0.0)
    with pytest.raises(Refusal, match="not in flight"):
        channel.finish(client.in_hand[1], client, 0.0)
    assert client.got[2:] == [(b"m1", 1)]


class AnyClients(RuleBasedStateMachine):
    """Publish, answer, lose, leave, wait: nothing is lost, nobody gets what another holds."""

    @initialize(ordered=st.booleans())
    def start(self, ordered: bool) -> None:
        self.ordered = ordered
        self.log = Log(0, extended=False)
        self.channel = Channel("billing", self.log, Cursor(0), functools.partial(refresh, self.log), lambda _: None)
        self.channel.ordered = ordered
        self.peer = Cursor(0)
        self.channel.peers = [self.peer]
        self.clients: list[Client] = []
        self.finished: list[int] = []
        self.now = 0.0

    def holder(self, data: st.DataObject) -> tuple[Client, int] | None:
        held = [(entry.consumer, internal_id) for internal_id, entry in self.channel.in_flight.items()]
        if not held:
            return None
        client, internal_id = data.draw(st.sampled_from(held))
        assert isinstance(client, Client)
        return client, internal_id

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        write(self.log, count)
        if self.channel.waits:
            self.clock()

    @rule()
    def clock(self) -> None:
        refresh(self.log, self.channel)
        self.channel.dispatch(self.now)
        self.channel.replicate()
        assert self.peer.beyond == self.channel.cursor.beyond

    @rule(ready=st.integers(0, 3))
    def join(self, ready: int) -> None:
        client = Client(ready, msg_timeout=10.0)
        self.clients.append(client)
        self.channel.add(client)
        self.channel.dispatch(self.now)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.channel.remove(client, self.now)
        assert client.holds == 0

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if (found := self.holder(data)) is not None:
            client, internal_id = found
            self.finished.append(internal_id)
            self.channel.finish(internal_id, client, self.now)
            with pytest.raises(Refusal):
                self.channel.finish(internal_id, Client(), self.now)

    @rule(data=st.data(), delay=st.sampled_from([0.0, 3.0, 20.0]))
    def requeue(self, data: st.DataObject, delay: float) -> None:
        if (found := self.holder(data)) is not None:
            client, internal_id = found
            self.channel.requeue(internal_id, client, delay, self.now)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        if (found := self.holder(data)) is not None:
            client, internal_id = found
            self.channel.touch(internal_id, client, self.now)

    @rule(seconds=st.floats(0.0, 30.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.channel.tick(self.now)

    @invariant()
    def holds_are_counted(self) -> None:
        if not hasattr(self, "channel"):
            return
        for client in self.clients:
            held = [entry for entry in self.channel.in_flight.values() if entry.consumer is client]
            assert client.holds == len(held) <= max(client.ready, 0)
        assert len(self.channel.in_flight) <= (1 if self.ordered else len(self.log.records))
        assert len(set(self.finished)) == len(self.finished)
        assert self.peer.confirmed == self.channel.cursor.confirmed
        assert self.peer.beyond <= self.channel.cursor.beyond

    @invariant()
    def order_is_kept(self) -> None:
        if hasattr(self, "channel") and self.ordered:
            assert self.finished == sorted(self.finished)

    def teardown(self) -> None:
        """One good consumer gets all the rest, each once."""
        if not hasattr(self, "channel"):
            return
        for client in tuple(self.clients):
            self.channel.remove(client, self.now)
        good = Client(ready=5)
        self.channel.add(good)
        self.now += 1000.0
        self.channel.tick(self.now)
        refresh(self.log, self.channel)
        self.channel.dispatch(self.now)
        while self.channel.in_flight:
            self.finished.append(next(iter(self.channel.in_flight)))
            self.channel.finish(self.finished[-1], good, self.now)
        assert sorted(self.finished) == [record.internal_id for record in self.log.records]
        assert self.channel.depth == 0


TestAnyClients = AnyClients.TestCase
TestAnyClients.settings = settings(stateful_step_count=40)
