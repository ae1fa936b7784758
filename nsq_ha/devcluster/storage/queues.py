"""Topics and channels of an upstream nsqd: queues of messages, copied from the topic to each channel.

A queue has room for some messages in memory; the others go to its backend, which
a killed process leaves behind. Which of the two gives the next message is a matter
of chance, so there is no order. A message that was finished is gone.

The invariants: a message of a channel is in its queue, in flight or deferred, and
never in two of them; a topic keeps messages only while it has no channel or is paused.

A message id is made of time, node id and a sequence. All nsqds of one host have the same node id, and each topic has a
sequence of its own. So two nsqds give equal ids to messages that come in the same
millisecond, and so do two topics of one nsqd.

Source: nsqio/nsq ``nsqd/guid.go``, ``nsqd/options.go``, ``nsqd/topic.go``, ``nsqd/channel.go``;
nsqio/go-diskqueue ``ioLoop``; seen with a real nsqd.
"""

from __future__ import annotations

import hashlib
import socket
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.storage.any_channel import AnyChannel, AnyConsumer, Delayed, Delivered, Refusal
from nsq_ha.devcluster.storage.log import is_ephemeral

if TYPE_CHECKING:
    import random


_EPOCH: Final = 1288834974288
_SEQUENCES: Final = 4096
_TIME_SHIFT: Final = 22
_NODE_SHIFT: Final = 12


def default_node_id() -> int:
    """Return the node id of every nsqd on this host, as without ``-node-id``."""
    return zlib.crc32(hashlib.md5(socket.gethostname().encode(), usedforsecurity=False).digest()) % 1024


def now() -> int:
    """Return the time in units of 2^20 ns."""
    return time.time_ns() >> 20


class Guids:
    """Gives the ids of one topic, 16 hexadecimal digits each."""

    def __init__(self) -> None:
        self._node = default_node_id() << _NODE_SHIFT
        self._last = 0, 0

    def next(self) -> bytes:
        """Return the next id. Where the real nsqd waits for the clock, this runs ahead of it."""
        tick, sequence = self._last
        present = now()
        if present > tick:
            tick, sequence = present, 0
        elif sequence + 1 < _SEQUENCES:
            sequence += 1
        else:
            tick, sequence = tick + 1, 0
        self._last = tick, sequence
        return b"%016x" % ((tick - _EPOCH) << _TIME_SHIFT | self._node | sequence)


MEMORY_MESSAGES: Final = 10_000
"""Messages of a queue that memory holds (``-mem-queue-size``)."""

_MAX_ATTEMPTS: Final = 2**16


@dataclass(slots=True, eq=False)
class Queued:
    """A message in one queue. Each channel has a copy of its own, since attempts are counted there.

    Attributes:
        message_id: 16 hexadecimal digits.
        timestamp_ns: Time of the publish.
        body: The payload.
        attempts: Deliveries so far.
        delay: Seconds to wait in each channel before the first delivery. A backend forgets it.
    """

    message_id: bytes
    timestamp_ns: int
    body: bytes
    attempts: int = 0
    delay: float = 0.0


class Queue:
    """Messages in memory and in the backend.

    Args:
        chance: Decides whether memory or backend gives the next message.
        ephemeral: There is no backend: what has no room in memory is lost.
    """

    def __init__(self, chance: random.Random, *, ephemeral: bool) -> None:
        self._chance = chance
        self._ephemeral = ephemeral
        self._memory: deque[Queued] = deque()
        self._backend: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._memory) + len(self._backend)

    @property
    def backend_depth(self) -> int:
        """Number of messages in the backend."""
        return len(self._backend)

    def put(self, message: Queued) -> None:
        """Add a message."""
        if len(self._memory) < MEMORY_MESSAGES:
            self._memory.append(message)
        else:
            self.store((message,))

    def take(self) -> Queued:
        """Remove and return the next message; there must be one."""
        if self._memory and (not self._backend or self._chance.random() < 0.5):
            return self._memory.popleft()
        return self._backend.popleft()

    def store(self, messages: Iterable[Queued]) -> None:
        """Write messages to the backend."""
        if not self._ephemeral:
            for message in messages:
                self._backend.append(replace(message, delay=0.0) if message.delay else message)

    def flush(self) -> None:
        """Write the messages in memory to the backend, as a clean exit does."""
        self.store(self._memory)
        self._memory.clear()

    def forget_memory(self) -> None:
        """Lose the messages in memory, as a killed process does."""
        self._memory.clear()

    def clear(self) -> None:
        """Remove all messages."""
        self._memory.clear()
        self._backend.clear()


class PlainChannel(AnyChannel[bytes, Delivered[Queued]]):
    """One channel.

    Attributes:
        queue: The messages that wait for a consumer.
        deferred: Messages that wait for the end of a delay.
        received: Number of messages that the topic gave.
    """

    requeued: int

    def __init__(self, name: str, chance: random.Random) -> None:
        super().__init__(name)
        self.queue: Queue = Queue(chance, ephemeral=self.ephemeral)
        self.deferred: Delayed[bytes, Queued] = Delayed()
        self.received: int = 0

    # ------------------------------------------------------------ delivery

    def put(self, message: Queued, now: float) -> None:
        """Take a message from the topic; :meth:`dispatch` delivers it."""
        self.received += 1
        if message.delay > 0:
            self.deferred.add(message.message_id, message, now + message.delay)
        else:
            self.queue.put(message)

    def remove(self, consumer: AnyConsumer[Queued]) -> None:
        """Remove a consumer that left. The messages that it holds come again once they time out."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def dispatch(self, now: float) -> None:
        """Deliver as many messages as possible."""
        while not self.paused and len(self.queue) and (consumer := self._next_consumer()) is not None:
            message = self.queue.take()
            if not consumer.wants(message):
                continue
            message.attempts = (message.attempts + 1) % _MAX_ATTEMPTS
            self._hold(message.message_id, Delivered(message, consumer, now, now + consumer.msg_timeout))
            consumer.deliver(message, message.attempts, at_once=False)

    # ------------------------------------------------------------ answers

    def finish(self, message_id: bytes, consumer: AnyConsumer[Queued], now: float) -> None:
        """FIN.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        self._owned(message_id, consumer)
        self._release(message_id)
        self.dispatch(now)

    def requeue(self, message_id: bytes, consumer: AnyConsumer[Queued], delay: float, now: float) -> None:
        """REQ.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        message = self._owned(message_id, consumer).message
        self._release(message_id)
        self.requeued += 1
        if delay > 0:
            self.deferred.add(message_id, message, now + delay)
        else:
            self.queue.put(message)
        self.dispatch(now)

    def _owned(self, message_id: bytes, consumer: AnyConsumer[Queued]) -> Delivered[Queued]:
        held = self.in_flight.get(message_id)
        if held is None:
            raise Refusal("ID not in flight")
        if held.consumer is not consumer:
            raise Refusal("client does not own message")
        return held

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Queue messages that timed out or whose delay ended."""
        back = [*self.deferred.pop_due(now), *(held.message for held in self._late(now))]
        for message in back:
            self.queue.put(message)
        if back:
            self.dispatch(now)

    # ------------------------------------------------------------ operators, and the end of the process

    def pause(self, now: float, *, paused: bool) -> None:
        """Deliver nothing, or deliver again."""
        self.paused = paused
        for consumer in self.consumers:
            consumer.flush()
        self.dispatch(now)

    def empty(self) -> None:
        """Remove all messages, those in flight and deferred included."""
        for consumer in self.consumers:
            consumer.holds = 0
        self._forget_held()
        self.queue.clear()

    def flush(self) -> None:
        """Write everything to the backend, as a clean exit does; delays are lost."""
        self.queue.flush()
        self.queue.store(held.message for held in self.in_flight.values())
        self.queue.store(self.deferred.clear())
        self._forget_held()

    def forget_memory(self) -> None:
        """Lose what is in memory, in flight or deferred, as a killed process does."""
        self.queue.forget_memory()
        self._forget_held()

    def _forget_held(self) -> None:
        super()._forget_held()
        self.deferred.clear()

    def restart(self) -> None:
        """Begin again with what the backend has: no consumers, no counts."""
        self.consumers.clear()
        self.received = self.requeued = self.timed_out = 0


class PlainNsqdTopic:
    """One topic.

    Attributes:
        name: The name of the topic.
        ephemeral: The topic disappears with its last channel.
        queue: The messages that no channel has so far.
        channels: By name.
        paused: Messages stay in the topic.
        messages: Number of messages published.
        message_bytes: Bytes of their bodies.
        guids: Gives the ids of its messages.
    """

    def __init__(self, name: str, chance: random.Random, guids: Guids) -> None:
        self.name: str = name
        self.guids: Guids = guids
        self.ephemeral: bool = is_ephemeral(name)
        self.queue: Queue = Queue(chance, ephemeral=self.ephemeral)
        self.channels: dict[str, PlainChannel] = {}
        self.paused: bool = False
        self.messages: int = 0
        self.message_bytes: int = 0
        self._chance = chance

    def put(self, message: Queued, now: float) -> None:
        """Publish a message; :meth:`dispatch` delivers it."""
        self.messages += 1
        self.message_bytes += len(message.body)
        if self.channels and not self.paused and not len(self.queue):
            self._copy(message, now)
        else:
            self.queue.put(message)

    def pump(self, now: float) -> None:
        """Give the channels what the topic has, and deliver."""
        while self.channels and not self.paused and len(self.queue):
            self._copy(self.queue.take(), now)
        self.dispatch(now)

    def _copy(self, message: Queued, now: float) -> None:
        first, *others = self.channels.values()
        for channel in others:
            channel.put(replace(message), now)
        first.put(message, now)

    def pause(self, now: float, *, paused: bool) -> None:
        """Keep all messages, or give them to the channels again."""
        self.paused = paused
        self.pump(now)

    def dispatch(self, now: float) -> None:
        """Let all channels deliver."""
        for channel in self.channels.values():
            channel.dispatch(now)

    def add_channel(self, name: str) -> PlainChannel:
        """Create a channel. The first one gets all that the topic has, with the next :meth:`pump`."""
        channel = self.channels[name] = PlainChannel(name, self._chance)
        return channel

    def restart(self, act: Callable[[Queue | PlainChannel], None]) -> None:
        """Begin again with what the backends have: no consumers, no counts, no ephemeral channels.

        Args:
            act: What happens to each queue before: it is flushed, or loses what was in memory.
        """
        act(self.queue)
        self.messages = self.message_bytes = 0
        self.channels = {name: channel for name, channel in self.channels.items() if not channel.ephemeral}
        for channel in self.channels.values():
            act(channel)
            channel.restart()
