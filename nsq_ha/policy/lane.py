"""One partition's publish queue: who is next, what is retried, what is in doubt.

Owns the order of publishes to one partition. Does not own the connection, the
clock or the callers: it is told what happened and says what follows.

The invariants, whatever happens in whatever order:

* Of one key at most one publish is unanswered, so a retry never overtakes a
  later message of its key.
* Publishes of one key are first written in the order of their submission.
* A publish is *not stored* only when every attempt was refused promptly or
  never written; one attempt in doubt makes it in doubt for good.
* A publish that its caller has given up holds its key until its attempt is
  answered or its connection is gone.
* A publish that went elsewhere leaves a ghost in the order of answers, since
  answers carry no number; the ghost is never written again.
* While one connection replaces another one to the same leader, publishes on the
  old one are answered apart from those on the new one. All of the above holds
  over both: a publish whose key is unanswered on the old connection is not
  written to the new one.

Source: failures reference 1 ("When a refusal means not stored") and 4
(Producer 3-6).
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nsq_ha.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

PROMPT_REFUSAL: Final = 1.0
"""Seconds after the write within which a refusal means *not stored*. After a longer hang (a
follower that does not answer) the leader may hold it."""

T = TypeVar("T")


class Stage(enum.Enum):
    """Where a publish stands."""

    BLOCKED = enum.auto()
    """An earlier publish of one of its keys is not done."""
    READY = enum.auto()
    """May be written."""
    SENT = enum.auto()
    """Written, not answered."""
    DONE = enum.auto()
    """Answered, failed, or given up before it was written."""


# To read a member from its enum takes as long as all the rest of a turn of the loops below.
_READY: Final = Stage.READY
_SENT: Final = Stage.SENT
_DONE: Final = Stage.DONE


class Entry(Generic[T]):
    """One publish (a PUB or a whole MPUB) on its way.

    An owner that makes many may derive from it and be its own ``item``.

    Attributes:
        item: What the owner needs to write it and to report its end.
        keys: The keys that it must not be reordered with; none for messages
            without order.
        stage: Where it stands.
        attempts: How often it was written.
        maybe_stored: An attempt of it is in doubt.
        given_up: Its caller does not wait any more, or not here.
        is_ghost: It only stands for a publish that went to another partition.
        sent_at: Time of the last write.
    """

    # Class attributes stand for the values of a new entry: one is made for each publish.
    keys: tuple[Hashable, ...] = ()
    stage = Stage.READY
    attempts = 0
    maybe_stored = False
    given_up = False
    is_ghost = False
    sent_at = 0.0
    blocked_by = 0

    def __init__(self, item: T, keys: Iterable[Hashable] = ()) -> None:
        """Wrap ``item``; repeated keys count once."""
        self._item = item
        if keys:
            self.keys = tuple(dict.fromkeys(keys))

    @property
    def item(self) -> T:
        """What was wrapped."""
        return self._item


class Lane(Generic[T]):
    """The queue of one partition. See the module for what it guarantees.

    Attributes: (only read from outside)
        unanswered: Publishes written and not answered, given up ones included.
        waiting: Publishes not written yet, or to be written again, whose callers wait.
    """

    __slots__ = ("_apart", "_by_key", "_ready", "_sent", "unanswered", "waiting")

    def __init__(self) -> None:
        """Start empty."""
        self._ready: deque[Entry[T]] = deque()
        self._sent: deque[Entry[T]] = deque()
        self._apart: deque[Entry[T]] = deque()
        self._by_key: dict[Hashable, deque[Entry[T]]] = {}
        self.unanswered = 0
        self.waiting = 0

    @property
    def oldest(self) -> Entry[T] | None:
        """The oldest unanswered publish. None when there is none."""
        sent = self._apart or self._sent
        return sent[0] if sent else None

    @property
    def unanswered_apart(self) -> int:
        """Unanswered publishes of the previous connection."""
        return len(self._apart)

    def set_apart(self) -> None:
        """Set unanswered publishes apart, since later ones are written to another connection.

        Raises:
            LocalProtocolError: Publishes that were set apart before are still unanswered.
        """
        if self._apart:
            raise LocalProtocolError(f"{len(self._apart)} publishes are unanswered on the previous connection")
        self._apart, self._sent = self._sent, deque()

    def submit(self, entry: Entry[T]) -> None:
        """Put a new publish at the end of the queue of each of its keys."""
        self.waiting += 1
        if not entry.keys:
            self._ready.append(entry)
            return
        for key in entry.keys:
            queue = self._by_key.get(key)
            if queue is None:
                self._by_key[key] = deque((entry,))
            else:
                queue.append(entry)
                entry.blocked_by += 1
        if entry.blocked_by:
            entry.stage = Stage.BLOCKED
        else:
            entry.stage = _READY
            self._ready.append(entry)

    def take(self, now: float, window: int) -> list[Entry[T]]:
        """Take what may be written now; the caller writes it in this order.

        Args:
            now: The time of the write.
            window: Maximum number of unanswered publishes, over both connections if there are two.
        """
        ready, sent = self._ready, self._sent
        count = min(len(ready), window - self.unanswered)
        if count <= 0:
            return []
        taken = [ready.popleft() for _ in range(count)]
        for entry in taken:
            entry.stage = _SENT
            entry.attempts += 1
            entry.sent_at = now
        sent += taken
        self.unanswered += count
        self.waiting -= count
        return taken

    def answered(self, *, apart: bool = False) -> Entry[T]:
        """Take the oldest unanswered publish as done and release its keys.

        Args:
            apart: The answer came over the previous connection.

        Raises:
            IndexError: None is unanswered; the connection counts its requests,
                so this is a bug.
        """
        entry = (self._apart if apart else self._sent).popleft()
        self.unanswered -= 1
        entry.stage = _DONE
        if entry.keys:
            self._finish(entry)
        return entry

    def all_answered(self, count: int, *, apart: bool = False) -> list[Entry[T]]:
        """Take the ``count`` oldest unanswered publishes as done, as :meth:`answered` does one by one.

        Raises:
            IndexError: So many are not unanswered; nothing was done.
        """
        sent = self._apart if apart else self._sent
        if count > len(sent):
            raise IndexError(f"{count} answers came to {len(sent)} publishes")
        done = [sent.popleft() for _ in range(count)]
        self.unanswered -= count
        for entry in done:
            entry.stage = _DONE
            if entry.keys:
                self._finish(entry)
        return done

    def refused(self, now: float, *, retry: bool, apart: bool = False) -> Entry[T]:
        """Take the oldest unanswered publish as refused by the server.

        Args:
            now: The time of the refusal; a late one leaves doubt.
            retry: True puts it back to the front of its keys, unless its
                caller has given up. False ends it.
            apart: The answer came over the previous connection.

        Returns:
            The publish; its ``stage`` is READY when it will be written again.
        """
        entry = (self._apart if apart else self._sent).popleft()
        self.unanswered -= 1
        if now - entry.sent_at > PROMPT_REFUSAL:
            entry.maybe_stored = True
        if retry and not entry.given_up:
            self._again((entry,))
        else:
            self._finish(entry)
        return entry

    def lost(self, *, apart: bool = False) -> list[Entry[T]]:
        """Take unanswered publishes as in doubt: their connection is gone.

        They go back to the head of the lane in their old order; those that
        their callers have given up end.

        Args:
            apart: Only the previous connection is gone. False: all connections are.

        Returns:
            All that were unanswered there.
        """
        lost = list(self._apart)
        self._apart.clear()
        if not apart:
            lost += self._sent
            self._sent.clear()
        self.unanswered -= len(lost)
        for entry in lost:
            entry.maybe_stored = True
        self._again([entry for entry in lost if not entry.given_up])
        for entry in lost:
            if entry.given_up:
                self._finish(entry)
        return lost

    def give_up(self, entry: Entry[T]) -> None:
        """Note that the caller of ``entry`` does not wait any more.

        One that is not written at this moment ends at once; one that is written becomes in
        doubt and keeps its keys and its place in the order of answers.
        """
        if entry.stage is Stage.DONE:
            return
        entry.given_up = True
        if entry.stage is Stage.SENT:
            entry.maybe_stored = True
            return
        if entry.stage is Stage.READY:
            # At or near the front in practice, since limits end in the order of submission.
            self._ready.remove(entry)
        self.waiting -= 1
        self._finish(entry)

    def withdraw(self) -> list[Entry[T]]:
        """Take out all publishes without keys that are not written, to send them by another partition.

        Their attempts and doubt stay with them.
        """
        out = [entry for entry in self._ready if not entry.keys]
        if out:
            self._ready = deque(entry for entry in self._ready if entry.keys)
            self.waiting -= len(out)
        return out

    def divert(self, sent_until: float) -> list[Entry[T]]:
        """Take out publishes without keys that have waited long for an answer, to send them by another partition.

        They are in doubt from now on. The answer that may still come is taken
        by the ghost of each: an entry with the same ``item`` that is given up.

        Args:
            sent_until: Those written at this time or before.
        """
        out = []
        for sent in (self._apart, self._sent):
            for place, entry in enumerate(sent):
                if entry.sent_at > sent_until:
                    break
                if entry.keys or entry.given_up:
                    continue
                sent[place] = _ghost_of(entry)
                entry.maybe_stored = True
                entry.stage = Stage.READY
                out.append(entry)
        return out

    def pending(self) -> list[Entry[T]]:
        """List all publishes that are not done, each once, ghosts included; for closing."""
        found = dict.fromkeys(self._apart)
        found.update(dict.fromkeys(self._sent))
        found.update(dict.fromkeys(self._ready))
        for queue in self._by_key.values():
            found.update(dict.fromkeys(queue))
        return list(found)

    def _again(self, entries: Iterable[Entry[T]]) -> None:
        again = list(entries)
        for entry in again:
            entry.stage = Stage.READY
        self._ready.extendleft(reversed(again))
        self.waiting += len(again)

    def _finish(self, entry: Entry[T]) -> None:
        entry.stage = _DONE
        for key in entry.keys:
            queue = self._by_key[key]
            if queue[0] is not entry:
                queue.remove(entry)  # given up behind others, which still hold the key
                continue
            queue.popleft()
            if not queue:
                del self._by_key[key]
                continue
            head = queue[0]
            head.blocked_by -= 1
            if not head.blocked_by:
                head.stage = _READY
                self._ready.append(head)


def _ghost_of(entry: Entry[T]) -> Entry[T]:
    ghost = Entry(entry.item)
    ghost.stage = Stage.SENT
    ghost.attempts = entry.attempts
    ghost.maybe_stored = ghost.given_up = ghost.is_ghost = True
    ghost.sent_at = entry.sent_at
    return ghost
