"""Doubles of a consumer's parts: a source that keeps the answers, and a shell that leaves messages alone."""

import copy
from typing import Any

from nsq_ha.consumer.inflight import ReadPartition, Subscription
from nsq_ha.message import Message


class Source:
    """Keeps the answers.

    Attributes:
        answers: Number of the message, and ``finish`` or the delay of a requeue.
    """

    topic, channel, nsqd = "orders", "ch", "here:4150"
    partition = 3

    def __init__(self) -> None:
        self.conn = Subscription(ReadPartition(3), is_ordered=False)
        self.answers: list[tuple[int, object]] = []

    def finish(self, message: Message) -> None:
        self.answers.append((message.internal_id & 1023, "finish"))

    def requeue(self, message: Message, delay: float | None) -> None:
        self.answers.append((message.internal_id & 1023, delay))

    def touch(self, message: Message) -> None: ...


class NoMachine:
    """Takes what is reported, and changes nothing."""

    def __getattr__(self, _: str) -> Any:  # noqa: ANN401 - any method
        return lambda message, *_: message

    def reopened(self, message: Message) -> Message:
        again = copy.copy(message)
        again.answered = False
        return again


class Shell:
    """The shell around it."""

    machine = NoMachine()
