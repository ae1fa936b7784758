"""The chain rule: which delivered messages belong to ``[start, end)``, and when that is complete.

This module decides about each message that a replay channel delivers; it does no I/O. The reader passes messages in,
finishes those that :meth:`Chain.take` returns, and calls :meth:`Chain.reopened` after it opened a new channel.

A partition is a queue of bytes: the message at ``offset`` is followed by the
one at ``offset + raw_size``. A channel may deliver stray messages from before or
after the offset it was set to, so "stop at the first offset after the end" would
silently lose data. The invariant: the accepted messages are exactly the unbroken
chain ``[start, position)``, each message once and in order.

**Source:** Spark design 1.2, 1.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from nsq_ha.base.identity import PARTITION_MASK, PARTITION_SHIFT
from nsq_ha.errors import ConfigError, DataLossError, RemoteProtocolError

if TYPE_CHECKING:
    from nsq_ha.message import Message


MOST_STASHED: Final = 512 * 1024 * 1024
"""Bytes of later messages that may wait for a gap to be filled: as many as an nsqd may have in flight that delivers
the largest messages at first. One that ignores RDY would send any number."""

_ROOM: Final = 256  # approximate bytes of a message besides its body and header


class WrongPartitionError(RemoteProtocolError):
    """The channel serves another partition than it was opened for: close it and open another."""


class Chain:
    """The state of one read of ``[start, end)`` of one partition.

    Attributes:
        start: Offset of the first message, in bytes of the partition's queue.
        end: Offset after the last message; both are message boundaries.
        partition: The only partition accepted; message ids name theirs.
        position: Offset of the next message wanted; grows until ``end``.

    Raises:
        ConfigError: Not ``0 <= start <= end``.
    """

    __slots__ = ("_stash", "_stashed", "end", "partition", "position", "start")

    def __init__(self, start: int, end: int, partition: int) -> None:
        if not 0 <= start <= end:
            raise ConfigError(f"a range of offsets needs 0 <= start <= end, not [{start}, {end})")
        self.start: Final = start
        self.end: Final = end
        self.partition: Final = partition
        self.position: int = start
        self._stash: dict[int, Message] = {}
        self._stashed = 0  # bytes

    @property
    def is_complete(self) -> bool:
        """Whether every message of ``[start, end)`` was accepted."""
        return self.position == self.end

    @property
    def next_stashed(self) -> int | None:
        """The lowest offset in the stash, where a gap ends, for error messages. None if the stash is empty."""
        return min(self._stash, default=None)

    def reopened(self) -> None:
        """Start over at ``position`` with a new channel, and drop the stash.

        The new channel delivers the stashed messages itself; finishing the old ones would fail
        on a connection that does not hold them.
        """
        self._stash.clear()
        self._stashed = 0

    def take(self, messages: Iterable[Message], accepted: list[Message]) -> list[Message]:
        """Decide about ``messages`` in their order of arrival.

        Accept a message at the wanted offset, and then the stashed ones that
        follow it. Finish and drop an earlier one. Stash a later one before the
        end. Ignore one at or after the end.

        Args:
            messages: Messages of the channel.
            accepted: List to append the next messages of the chain to, each exactly
                once. It belongs to the caller, so that an error does not lose the
                messages accepted before it: ``position`` counts them already.

        Returns:
            Messages to FIN now: the accepted ones, and repeats of them. Later strays
            are *not* among them, since a FIN ahead of the reader makes the server
            skip that message later.

        Raises:
            WrongPartitionError: Close the connection, open another at ``position``.
            RemoteProtocolError: A message has no offset (the subscription is
                of the wrong kind) or an impossible size, or too many came after
                a gap. As above.
            DataLossError: ``end`` cuts a message in two, so the log is not the
                one that the range was planned on. Retries do not help.
        """
        finish: list[Message] = []
        end, position, head = self.end, self.position, b""
        for message in messages:
            if message.id[:2] != head:
                # The id's first bytes name its partition.
                partition = int.from_bytes(message.id[:8], "big") >> PARTITION_SHIFT & PARTITION_MASK
                if partition != self.partition:
                    raise WrongPartitionError(f"{message!r} belongs to partition {partition}, not to {self.partition}")
                head = message.id[:2]
            offset = message.offset
            # The common case first: the only one on a quiet log.
            if offset == position < (following := position + (message.raw_size or 0)) <= end and not self._stash:
                # Nothing between these two may fail: a row that is appended but not counted would come
                # twice; one that is counted but not appended would never come.
                accepted.append(message)
                self.position = position = following
                finish.append(message)
                continue
            self._take_one(message, accepted, finish)
            position = self.position
        return finish

    def _take_one(self, message: Message, accepted: list[Message], finish: list[Message]) -> None:
        """Decide about one message."""
        offset = message.offset
        if offset is None:
            raise RemoteProtocolError(f"{message!r} has no offset: not a replay subscription")
        if offset == self.position < self.end:
            self._accept(message, offset, accepted, finish)
            while self._stash and (follower := self._stash.pop(self.position, None)) is not None:
                self._stashed -= _size(follower)
                self._accept(follower, self.position, accepted, finish)
        elif offset < self.position:
            finish.append(message)
        elif offset < self.end:
            if (earlier := self._stash.pop(offset, None)) is not None:
                self._stashed -= _size(earlier)
            self._stash[offset] = message
            self._stashed += _size(message)
            if self._stashed > MOST_STASHED:
                raise RemoteProtocolError(
                    f"nsqd ignores RDY: {len(self._stash)} messages arrived after a gap at offset {self.position}"
                )

    def _accept(self, message: Message, offset: int, accepted: list[Message], finish: list[Message]) -> None:
        following = offset + (message.raw_size or 0)
        if following <= offset:
            raise RemoteProtocolError(f"{message!r} at offset {offset} has an impossible size of {message.raw_size}")
        if following > self.end:
            raise DataLossError(
                f"the end {self.end} lies inside the message [{offset}, {following}) of partition {self.partition}: "
                "the log is not the one that the range was planned on"
            )
        # As above: nothing between these two may fail.
        accepted.append(message)
        self.position = following
        finish.append(message)


def _size(message: Message) -> int:
    return len(message.body) + len(message.ext or b"") + _ROOM
