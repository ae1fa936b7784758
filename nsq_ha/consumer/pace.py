"""How fast messages are asked for: by the speed of their handling, and with pauses after failures.

``consumer.flow`` shares what is asked for among the partitions as RDY, and ``consumer.backoff`` pauses after failures.
This module measures how long handling takes, and so how many messages may wait, and whether each one must be checked.
The invariant: while handling is quick, there is no extra work for each message.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from nsq_ha.consumer.backoff import HandlerBackoff
from nsq_ha.consumer.flow import Flow
from nsq_ha.consumer.giving_up import checked_from
from nsq_ha.observe import SILENT
from nsq_ha.policy.backlog import Speed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsq_ha.consumer.queue import Queue
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.observe import Observer
    from nsq_ha.options.config import ConsumerConfig

_WINDOW: Final = 0.01
"""Seconds of quick iteration that are measured together."""

_SAMPLE: Final = 16
"""Messages after which the speed of an iteration is measured, if no others arrive meanwhile."""


class Pace:
    """The pace of one consumer.

    Args:
        name: Topic and channel, for the log.
        config: The consumer's options.
        queue: The messages that wait.
        subscriptions: One for each partition.
        on_gathered: Called after changes of many partitions; calls :meth:`joined`.
        observer: The consumer's.

    Attributes:
        flow: Asks for messages.
        backoff: Holds messages back after failures.
        handlers: Number of handlers that may run at the same time; 0 if tasks iterate.
        handler_calls: Number of calls of handlers whose time was recorded.
        handler_seconds: How long they took together.
        is_careful: Each message is checked when it is handed out.
        msg_timeout: The shortest of all connections, in seconds.
        speed: How long handling takes.
    """

    def __init__(  # noqa: PLR0917 - the parts of one consumer
        self,
        name: str,
        config: ConsumerConfig,
        queue: Queue,
        subscriptions: Mapping[int, Subscription],
        on_gathered: Callable[[], None],
        observer: Observer = SILENT,
    ) -> None:
        self.backoff: HandlerBackoff = HandlerBackoff(name, config, queue, self.share, observer)
        self.flow: Flow = Flow(config, subscriptions, self.backoff, on_gathered)
        self.handlers: int = 0
        self.handler_calls: int = 0
        self.handler_seconds: float = 0.0
        self.is_careful: bool = True
        self.msg_timeout: float = 60.0
        self.speed: Speed = Speed()
        # Redelivered messages are compared with those that are being worked on.
        self._fine_below = min(checked_from(config), 2)
        self._queue = queue
        self._subscriptions = subscriptions
        self._partitions = 0
        self._arrived = 0
        self._handed_out = 0
        self._window: tuple[float, int] | None = None
        self._careful_until = 0.0
        self._checks_all = False

    # -- what happens

    def used_by(self, handlers: int) -> None:
        """Record that so many more handlers may run, or fewer."""
        self.handlers += handlers
        self.review()  # each handler can begin one more

    def joined(self) -> None:
        """Record that subscriptions succeeded."""
        deliveries = [one.delivery for one in self._subscriptions.values() if one.delivery is not None]
        self.msg_timeout = min((one.msg_timeout for one in deliveries if one.is_alive), default=60.0)
        self._partitions = len(deliveries)
        self.share()

    def left(self) -> None:
        """Record that a connection was lost, with its messages in the queue."""
        self._window = None
        self.review()
        self.backoff.left(self._subscriptions)
        if not self.flow.gathers():
            self.flow.share()

    def arrived(self, now: float, count: int) -> None:
        """Record that ``count`` messages arrived; call this before they are put into the queue."""
        waiting, arrived = len(self._queue.messages), self._arrived
        if self._window is None:
            self._window = (now, arrived - waiting)
        elif not self.handlers:
            self._measure(now, waiting, in_hand=1)
        self._arrived = arrived + count

    def emptied(self) -> None:
        """Record that the queue is empty and a task waits for messages."""
        if self._window is not None:
            if not self.handlers:
                now = monotonic()
                if self.is_careful or now - self._window[0] >= _WINDOW:  # with RDY 1, this is for each message
                    self._measure(now, 0, in_hand=0)
            self._window = None

    def handed_out(self, now: float) -> None:
        """Record that a message was handed out with a check."""
        self._handed_out += 1
        if not self.handlers and self._handed_out % _SAMPLE == 0:
            self._measure(now, len(self._queue.messages), in_hand=1)
        else:
            self.review()

    def freed(self) -> None:
        """Record that messages were answered."""
        if self.flow.is_raise_due:
            self.flow.freed()
        if self.is_careful and not self.handlers and not self.flow.gathers():
            self.review()

    def handled(self, count: int, seconds: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages."""
        self.handler_calls += count
        self.handler_seconds += seconds
        self.speed.took(count, seconds)
        self.review()

    def dropped(self, count: int) -> None:
        """Record that ``count`` messages left the queue unhandled."""
        self._arrived -= count

    def unmeasured(self) -> None:
        """Do not take the messages that left the queue just now for handled ones."""
        self._window = None

    # -- what follows

    def check_all(self) -> None:
        """Check each message from now on, whatever its attempts."""
        self._checks_all = True
        self._queue.fine_below = 0

    def be_careful(self, until: float) -> None:
        """Check each message until then."""
        self._careful_until = until
        self.review()

    def share(self) -> None:
        """Ask for as many messages as wanted now."""
        self.review()
        self.flow.share()

    def review(self) -> None:
        """Update how many messages to ask for, and whether to check each one."""
        most, handlers, queue = self.flow.max_in_flight, max(self.handlers, 1), self._queue
        is_quick = self.speed.is_quick(self.msg_timeout, handlers, most)
        is_careful = not is_quick or self.backoff.is_active or monotonic() < self._careful_until
        if is_careful is not self.is_careful:
            self.is_careful = is_careful
            queue.fine_below = 0 if is_careful or self._checks_all else self._fine_below
        if is_quick:
            self.flow.limit_to(None)
            return
        waiting = self.speed.waiting(self.msg_timeout, handlers)
        if self.speed.seconds is None:
            waiting = max(waiting, self._partitions)  # else some partitions would have to take turns
        in_hand = max(self.handlers, self.flow.in_flight - len(queue.messages))
        # An iterating task works on the last message that it got, or has put it aside and wants the next one.
        self.flow.limit_to(in_hand + max(waiting, 0 if self.handlers else 1))

    def _measure(self, now: float, waiting: int, in_hand: int) -> None:
        if self._window is None:
            return
        began, taken_before = self._window
        if not self.is_careful and now - began < _WINDOW:
            return
        # The last message handed out is still being handled, unless a task waits for the next one.
        done = self._arrived - waiting - taken_before - in_hand
        if done > 0:
            self._window = (now, taken_before + done)
            self.speed.took(done, now - began)
            self.review()
