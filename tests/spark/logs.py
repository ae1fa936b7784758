"""Logs made of messages, as a partition's leader would hold them; shared by the tests of this folder."""

import itertools
from dataclasses import dataclass

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.message import Message

PARTITION = 5


@dataclass
class Source:
    """A channel that nobody answers through."""

    topic: str = "flights"
    channel: str = "spark-1#ephemeral"
    partition: int = PARTITION
    nsqd: str = "127.0.0.1:4150"

    def finish(self, message: Message) -> None:
        raise AssertionError("the chain names what to finish, it never finishes")

    def requeue(self, message: Message, delay: float | None) -> None:
        raise AssertionError("a replay never requeues")

    def touch(self, message: Message) -> None:
        raise AssertionError("a replay never touches")


def message(offset: int | None, raw_size: int | None, sequence: int = 2, partition: int = PARTITION) -> Message:
    internal_id = partition << PARTITION_SHIFT | sequence
    body = b"at %d" % (offset or 0)
    return Message(internal_id.to_bytes(8, "big") + bytes(8), body, 1, 1, Source(), offset, raw_size)


def log_of(sizes: list[int], first: int = 0) -> list[Message]:
    starts = itertools.accumulate(sizes[:-1], initial=first)
    return [message(*place, sequence) for sequence, place in enumerate(zip(starts, sizes, strict=True), start=2)]
