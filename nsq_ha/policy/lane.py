"""One partition's publish queue: which publish is next, which is retried, which is in doubt.

Owns the order of publishes to one partition. The owner has the connection, the
clock and the callers. It reports what happened, and the lane decides what
follows.

The invariants, for all events in any order:

* Each key has at most one unanswered publish, so a retry never overtakes a
  later message of its key.
* Publishes of one key are first written in the order of their submission.
* A publish is *not stored* only if every attempt was refused promptly, refused
  before the server stores anything, or not written to its end. After one attempt in doubt it stays in doubt.
* A publish that its caller has given up holds its key until its attempt is
  answered or its connection is lost.
* A publish that went to another partition leaves a ghost in the order of
  answers, since answers have no number. The ghost is never written again.
* A publish that is written once more over another connection, to ask whether a
  silent leader answers there, keeps its place and its keys, and stays in doubt.

Source: server failures 1.1, 4.2.
"""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Generic, Self, TypeVar

import msgspec

PROMPT_REFUSAL: Final = 1.0
"""Seconds after the write within which a refusal means *not stored*. After a longer hang (a
follower that does not answer) the leader may have stored it."""


class Stage(enum.Enum):
    """Where a publish stands."""

    BLOCKED = enum.auto()
    """An earlier publish of one of its keys is not done yet."""
    READY = enum.auto()
    """May be written."""
    SENT = enum.auto()
    """Written, not answered."""
    DONE = enum.auto()
    """Answered, failed, or given up before it was written."""


# Reading a member from its enum takes as long as the rest of an iteration in the loops below.
_READY: Final = Stage.READY
_SENT: Final = Stage.SENT
_DONE: Final = Stage.DONE


_MANY: Final = 16
"""Keys of an entry above which calls in C are faster than a loop. A whole batch of keys would hold the event loop."""


class Entry(msgspec.Struct, eq=False, kw_only=True):
    """One publish (a PUB or a whole MPUB) in a lane; subclass it to add what the owner needs.

    Attributes:
        keys: Keys whose publishes must keep their order; none for messages without order.
        stage: Where it stands.
        attempts: How often it was written.
        maybe_stored: Whether one of its attempts is in doubt.
        given_up: Whether its caller has stopped waiting for this attempt.
        original: For a ghost, the publish that went to another partition; else None.
        sent_at: Time of the last write.
        blocked_by: Number of its keys that an earlier publish holds.
    """

    keys: tuple[Hashable, ...] = ()
    stage: Stage = Stage.READY
    attempts: int = 0
    maybe_stored: bool = False
    given_up: bool = False
    original: Self | None = None
    sent_at: float = 0.0
    blocked_by: int = 0

    @property
    def is_ghost(self) -> bool:
        """Whether it only takes the answer to a publish that went to another partition."""
        return self.original is not None


T = TypeVar("T", bound=Entry)


class Lane(Generic[T]):
    """The queue of one partition. The module docstring lists its guarantees.

    Attributes: (only read from outside)
        unanswered: Number of publishes written and not answered, given up ones included.
        waiting: Number of publishes to be written, for the first time or again, whose callers wait.
    """

    __slots__ = ("_by_key", "_left_behind", "_ready", "_sent", "unanswered", "waiting")

    def __init__(self) -> None:
        self._ready: deque[T] = deque()
        # Those in _ready that were given up: to look for each would take a time that grows with their square.
        self._left_behind = 0
        self._sent: deque[T] = deque()
        # Most keys have one publish, and a queue for each takes longer and 600 bytes more.
        self._by_key: dict[Hashable, T | OrderedDict[T, None]] = {}
        self.unanswered: int = 0
        self.waiting: int = 0

    @property
    def oldest(self) -> T | None:
        """The oldest unanswered publish. None if there is none."""
        return self._sent[0] if self._sent else None

    def submit(self, entry: T) -> None:
        """Append a new publish to the queue of each of its keys."""
        self.waiting += 1
        if not entry.keys:
            self._ready.append(entry)
            return
        if len(entry.keys) > 1:
            entry.keys = tuple(dict.fromkeys(entry.keys))
        by_key = self._by_key
        if len(entry.keys) > _MANY and by_key.keys().isdisjoint(entry.keys):
            by_key.update(dict.fromkeys(entry.keys, entry))
            entry.stage = _READY
            self._ready.append(entry)
            return
        for key in entry.keys:
            queue = by_key.get(key)
            if queue is None:
                by_key[key] = entry
                continue
            if isinstance(queue, OrderedDict):
                queue[entry] = None
            else:
                by_key[key] = OrderedDict.fromkeys((queue, entry))
            entry.blocked_by += 1
        if entry.blocked_by:
            entry.stage = Stage.BLOCKED
        else:
            entry.stage = _READY
            self._ready.append(entry)

    def take(self, now: float, window: int) -> list[T]:
        """Take the publishes that may be written now; the caller writes them in this order.

        Args:
            now: The time of the write.
            window: Maximum number of unanswered publishes.
        """
        ready, sent = self._ready, self._sent
        count = min(len(ready) - self._left_behind, window - self.unanswered)
        if count <= 0:
            return []
        taken = self._pop_ready(count) if self._left_behind else [ready.popleft() for _ in range(count)]
        for entry in taken:
            entry.stage = _SENT
            entry.attempts += 1
            entry.sent_at = now
        sent += taken
        self.unanswered += count
        self.waiting -= count
        return taken

    def answered(self) -> T:
        """Finish the oldest unanswered publish and release its keys.

        Raises:
            IndexError: No publish is unanswered. The connection counts its requests,
                so this is a bug.
        """
        return self.all_answered(1)[0]

    def all_answered(self, count: int) -> list[T]:
        """Finish the ``count`` oldest unanswered publishes, as :meth:`answered` does one by one.

        Raises:
            IndexError: Fewer are unanswered; nothing was changed.
        """
        sent = self._sent
        if count > len(sent):
            raise IndexError(f"{count} answers came to {len(sent)} publishes")
        done = [sent.popleft() for _ in range(count)]
        self.unanswered -= count
        for entry in done:
            entry.stage = _DONE
            if entry.keys:
                self._finish(entry)
        return done

    def refused(self, now: float, *, retry: bool, is_certain: bool = False) -> T:
        """Record that the server refused the oldest unanswered publish.

        Args:
            now: The time of the refusal; a late one leaves doubt.
            retry: Whether it goes back to the front of its keys, unless its
                caller has given up. If not, it ends.
            is_certain: Whether even a late refusal says that it was not stored.

        Returns:
            The publish; its ``stage`` is READY if it will be written again.
        """
        entry = self._sent.popleft()
        self.unanswered -= 1
        if now - entry.sent_at > PROMPT_REFUSAL and not is_certain:
            entry.maybe_stored = True
        if retry and not entry.given_up:
            self._again((entry,))
        else:
            self._finish(entry)
        return entry

    def lost(self, *, is_read: bool = True, cut: T | None = None) -> list[T]:
        """Record that the connection is lost: all unanswered publishes are in doubt.

        Args:
            is_read: Whether the server may have read them.
            cut: The one of them that was not written to its end. None if all may have been.

        They go back to the head of the lane in their old order. Publishes that
        their callers have given up end instead.

        Returns:
            All publishes that were unanswered.
        """
        lost = list(self._sent)
        self._sent.clear()
        self.unanswered = 0
        if is_read:
            for entry in lost:
                entry.maybe_stored = entry.maybe_stored or entry is not cut
        self._again([entry for entry in lost if not entry.given_up])
        for entry in lost:
            if entry.given_up:
                self._finish(entry)
        return lost

    def give_up(self, entry: T) -> None:
        """Record that the caller of ``entry`` has stopped waiting.

        A publish that was not written ends at once. A written one is in doubt from now on, and
        keeps its keys and its place in the order of answers.
        """
        if entry.stage is Stage.DONE:
            return
        entry.given_up = True
        if entry.stage is Stage.SENT:
            entry.maybe_stored = True
            return
        self.waiting -= 1
        self._left_behind += entry.stage is Stage.READY
        self._finish(entry)
        if self._left_behind > len(self._ready) // 2:
            self._drop_left_behind()

    def withdraw(self) -> list[T]:
        """Remove and return unwritten publishes without keys; the caller sends them to another partition.

        They keep their attempts and doubt.
        """
        self._drop_left_behind()
        out = [entry for entry in self._ready if not entry.keys]
        if out:
            self._ready = deque(entry for entry in self._ready if entry.keys)
            self.waiting -= len(out)
        return out

    @property
    def is_awaited(self) -> bool:
        """Whether the caller of an unanswered publish waits."""
        return next(self._awaited(), None) is not None

    def ask_again(self) -> T | None:
        """Return an unanswered publish that asks over another connection, in doubt from now on.

        It is the one that was written least often, the oldest of these. None if no caller waits for one.
        """
        entry = min(self._awaited(), key=lambda entry: entry.attempts, default=None)
        if entry is not None:
            entry.attempts += 1
            entry.maybe_stored = True
        return entry

    def _awaited(self) -> Iterator[T]:
        return (entry for entry in self._sent if not entry.given_up)

    def divert(self, sent_until: float) -> list[T]:
        """Remove and return unanswered publishes without keys; the caller sends them to another partition.

        They are in doubt from now on. A ghost of each stays behind for the
        answer that may still come.

        Args:
            sent_until: Take only publishes written at this time or before.
        """
        out = []
        for index, entry in enumerate(self._sent):
            if entry.sent_at > sent_until:
                break
            if entry.keys or entry.given_up:
                continue
            self._sent[index] = _ghost_of(entry)
            entry.maybe_stored = True
            entry.stage = Stage.READY
            out.append(entry)
        return out

    def pending(self) -> list[T]:
        """Return all publishes that are not done, each once, ghosts included."""
        found = dict.fromkeys(self._sent)
        self._drop_left_behind()
        found.update(dict.fromkeys(self._ready))
        for queue in self._by_key.values():
            found.update(queue if isinstance(queue, OrderedDict) else {queue: None})
        return list(found)

    def _pop_ready(self, count: int) -> list[T]:
        """Remove and return the first publishes that were not given up."""
        found: list[T] = []
        while len(found) < count:
            entry = self._ready.popleft()
            if entry.stage is _READY:
                found.append(entry)
            else:
                self._left_behind -= 1
        return found

    def _drop_left_behind(self) -> None:
        if self._left_behind:
            self._ready = deque(entry for entry in self._ready if entry.stage is _READY)
            self._left_behind = 0

    def _again(self, entries: Iterable[T]) -> None:
        again = list(entries)
        for entry in again:
            entry.stage = Stage.READY
        self._ready.extendleft(reversed(again))
        self.waiting += len(again)

    def _finish(self, entry: T) -> None:
        entry.stage = _DONE
        by_key, keys = self._by_key, entry.keys
        if len(keys) > _MANY:
            held = list(map(by_key.pop, keys))
            if held.count(entry) == len(keys):
                return
            shared = {key: queue for key, queue in zip(keys, held, strict=True) if queue is not entry}
            by_key.update(shared)
            keys = tuple(shared)
        for key in keys:
            queue = by_key[key]
            if not isinstance(queue, OrderedDict):
                del by_key[key]
                continue
            is_first = next(iter(queue)) is entry
            del queue[entry]
            if not is_first:
                continue  # given up behind others that still hold the key
            if not queue:
                del by_key[key]
                continue
            head = next(iter(queue))
            head.blocked_by -= 1
            if not head.blocked_by:
                head.stage = _READY
                self._ready.append(head)


def _ghost_of(entry: T) -> T:
    ghost = copy.copy(entry)
    ghost.original = entry
    ghost.maybe_stored = ghost.given_up = True
    return ghost
