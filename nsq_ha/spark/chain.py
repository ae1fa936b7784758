"""The chain rule: which delivered messages belong to ``[start, end)``, and when that is complete.

Owns the decision about every message that a replay channel delivers; no I/O.
Does not own connections: the reader feeds it, sends the finishes it asks for
and tells it when a new channel was opened.

A partition is a queue of bytes: the message at ``offset`` is followed by the
one at ``offset + raw_size``. A channel may deliver strays from before or behind
the place it was set to, so "stop at the first offset beyond the end" loses data
in silence. The invariant here: what was accepted so far is exactly the unbroken
chain ``[start, position)``, each message once and in order.

**Source:** Spark reference 1.3 ("The stale-message trap") and 1.2 (the wrong
partition on a node that leads two).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nsq_ha.errors import ConfigError, DataLossError, RemoteProtocolError
from nsq_ha.message import PARTITION_MASK, PARTITION_SHIFT, Message


class WrongPartitionError(RemoteProtocolError):
    """The channel serves another partition than it was opened for: close it and open another.

    Attributes:
        partition: The one that the message's id names.
    """

    def __init__(self, message: Message, partition: int, wanted: int) -> None:
        """Say which came and which was wanted."""
        super().__init__(f"{message!r} is of partition {partition}, not of {wanted}")
        self.partition = partition


class Chain:
    """The state of one read of ``[start, end)`` of one partition.

    Attributes:
        start: Offset of the first message, in bytes of the partition's queue.
        end: Offset behind the last message; both are message boundaries.
        partition: The only partition accepted; message ids name theirs.
        position: Offset of the next message wanted; grows to ``end`` and no further.
        strays: Messages so far that were not the wanted one when they came.
    """

    __slots__ = ("_stash", "end", "partition", "position", "start", "strays")

    def __init__(self, start: int, end: int, partition: int) -> None:
        """Begin at ``start`` with nothing accepted.

        Raises:
            ConfigError: Not ``0 <= start <= end``.
        """
        if not 0 <= start <= end:
            raise ConfigError(f"a range of offsets needs 0 <= start <= end, not [{start}, {end})")
        self.start: Final = start
        self.end: Final = end
        self.partition: Final = partition
        self.position = start
        self.strays = 0
        self._stash: dict[int, Message] = {}

    @property
    def is_complete(self) -> bool:
        """True when every message of ``[start, end)`` was accepted."""
        return self.position == self.end

    @property
    def stashed(self) -> int:
        """How many messages from further on wait for their turn."""
        return len(self._stash)

    @property
    def next_stashed(self) -> int | None:
        """Lowest offset in the stash: where a gap ends, for error texts. None when it is empty."""
        return min(self._stash, default=None)

    def reopened(self) -> None:
        """Tell that a new channel was opened at ``position``.

        The stash is forgotten: the new channel delivers those messages itself,
        and keeping them would send their finish to a connection that does not hold them.
        """
        self._stash.clear()

    def take(self, messages: Iterable[Message], accepted: list[Message]) -> list[Message]:
        """Decide about ``messages`` in the order they came.

        One at the wanted offset is accepted, and after it whatever the stash
        continues with. One from before is finished again and dropped. One from
        further on, before the end, goes into the stash. One at or beyond the
        end is ignored.

        Args:
            messages: What the channel delivered.
            accepted: Takes the next messages of the chain, each exactly once.
                The caller's own list, so that what was accepted before an
                error is not lost with it: ``position`` counts it already.

        Returns:
            What to FIN now: what was accepted, and repeats of it. Strays from
            further on are *not* among them, since a FIN ahead of the reader
            makes the server skip that message when its turn comes.

        Raises:
            WrongPartitionError: Close the connection, open another at ``position``.
            RemoteProtocolError: A message has no offset (the subscription is
                of the wrong kind) or an impossible size. As above.
            DataLossError: ``end`` cuts a message in two, so the log is not the
                one that the range was planned on. A retry fails the same way.
        """
        finish: list[Message] = []
        end, position, head = self.end, self.position, b""
        for message in messages:
            if message.id[:2] != head:
                head = self._checked(message)
            offset = message.offset
            # The common case by itself: all that a quiet log gives.
            if offset == position < (following := position + (message.raw_size or 0)) <= end and not self._stash:
                # Nothing that can fail stands between these two: a row given out and not counted would come
                # twice, one counted and not given out never.
                accepted.append(message)
                self.position = position = following
                finish.append(message)
                continue
            self._take_one(message, accepted, finish)
            position = self.position
        return finish

    def _checked(self, message: Message) -> bytes:
        """Return the part of the id that names the partition, when it is the wanted one."""
        partition = int.from_bytes(message.id[:8], "big") >> PARTITION_SHIFT & PARTITION_MASK
        if partition != self.partition:
            raise WrongPartitionError(message, partition, self.partition)
        return message.id[:2]

    def _take_one(self, message: Message, accepted: list[Message], finish: list[Message]) -> None:
        """Decide about one, whatever it is."""
        offset = message.offset
        if offset is None:
            raise RemoteProtocolError(f"{message!r} came without an offset: not a replay subscription")
        if offset == self.position < self.end:
            self._accept(message, offset, accepted, finish)
            while self._stash and (follower := self._stash.pop(self.position, None)) is not None:
                self._accept(follower, self.position, accepted, finish)
            return
        self.strays += 1
        if offset < self.position:
            finish.append(message)
        elif offset < self.end:
            self._stash[offset] = message

    def _accept(self, message: Message, offset: int, accepted: list[Message], finish: list[Message]) -> None:
        following = offset + (message.raw_size or 0)
        if following <= offset:
            raise RemoteProtocolError(f"{message!r} at offset {offset} claims a size of {message.raw_size}")
        if following > self.end:
            raise DataLossError(
                f"the end {self.end} lies inside the message [{offset}, {following}) of partition {self.partition}: "
                "the log is not the one that the range was planned on"
            )
        # As above, the two together.
        accepted.append(message)
        self.position = following
        finish.append(message)
