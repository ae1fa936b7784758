"""Match text against a pattern in time that is proportional to the length of the text.

A pattern is a tree of nodes. :class:`Automaton` turns it into states, and follows all of them at once; it never goes
back in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_STATES: Final = 20_000
"""Largest pattern; more than nsqd's filters need."""

_MAX_KEPT: Final = 5000
"""Number of steps to remember."""

BEGIN_TEXT: Final = 1
END_TEXT: Final = 2
BEGIN_LINE: Final = 4
END_LINE: Final = 8
BOUNDARY: Final = 16
NO_BOUNDARY: Final = 32

_WORD: Final = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")


@dataclass(frozen=True, slots=True)
class Char:
    """One character that ``allows`` accepts."""

    allows: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the text, one of the constants of this module; it takes no character."""

    kind: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """The parts one after another; none of them for the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The part ``low`` to ``high`` times; None for any number.

    Attributes:
        is_counted: Written with braces.
    """

    part: Node
    low: int
    high: int | None
    is_counted: bool = False


Node = Char | Place | Sequence | Choice | Repeat

ANYTHING: Final = Repeat(Char(lambda _: True), 0, None)
"""Any text."""


class Automaton:
    """A compiled pattern.

    Args:
        root: The pattern, which must match the whole text.

    Raises:
        ValueError: It has too many states.
    """

    def __init__(self, root: Node) -> None:
        self._chars: list[Callable[[str], bool] | None] = [None]  # state 0: the end of the pattern
        self._places: list[int] = [0]
        self._next: list[tuple[int, ...]] = [()]
        self._reached: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._taken: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._first = self._compile(root, 0)

    @property
    def states(self) -> int:
        """Number of states; the time for a text is at most in proportion to this and to its length."""
        return len(self._next)

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole ``text``."""
        states = frozenset((self._first,))
        before = ""
        for char in text:
            states = self._take(self._reach(states, _places(before, char)), char)
            if not states:
                return False
            before = char
        return 0 in self._reach(states, _places(before, ""))

    def _add(self, following: tuple[int, ...], *, allows: Callable[[str], bool] | None = None, place: int = 0) -> int:
        if len(self._next) >= MAX_STATES:
            raise ValueError("the pattern is too large")
        self._chars.append(allows)
        self._places.append(place)
        self._next.append(following)
        return len(self._next) - 1

    def _compile(self, node: Node, following: int) -> int:
        """Return the first state of ``node``; after it comes the state ``following``."""
        match node:
            case Char(allows):
                return self._add((following,), allows=allows)
            case Place(kind):
                return self._add((following,), place=kind)
            case Sequence(parts):
                for part in reversed(parts):
                    following = self._compile(part, following)
                return following
            case Choice(options):
                return self._add(tuple(self._compile(option, following) for option in options))
            case Repeat(part, low, high):
                if high is None:
                    loop = self._add(())
                    self._next[loop] = (self._compile(part, loop), following)
                    following = loop
                else:
                    end = following
                    for _ in range(high - low):
                        following = self._add((self._compile(part, following), end))
                for _ in range(low):
                    following = self._compile(part, following)
                return following

    def _reach(self, states: frozenset[int], places: int) -> frozenset[int]:
        """Return the states that can be reached from ``states`` without taking a character."""
        found = self._reached.get((states, places))
        if found is not None:
            return found
        seen = set(states)
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if self._chars[state] is None and (not self._places[state] or self._places[state] & places):
                fresh = [each for each in self._next[state] if each not in seen]
                seen.update(fresh)
                waiting += fresh
        if len(self._reached) >= _MAX_KEPT:
            self._reached.clear()
        found = self._reached[states, places] = frozenset(
            state for state in seen if self._chars[state] is not None or not state
        )
        return found

    def _take(self, states: frozenset[int], char: str) -> frozenset[int]:
        """Return the states after ``char``."""
        found = self._taken.get((states, char))
        if found is None:
            if len(self._taken) >= _MAX_KEPT:
                self._taken.clear()
            after = set[int]()
            for state in states:
                allows = self._chars[state]
                if allows is not None and allows(char):
                    after.update(self._next[state])
            found = self._taken[states, char] = frozenset(after)
        return found


def _places(before: str, after: str) -> int:
    """Return what is true of the place between two characters; each is empty at an end of the text."""
    places = BOUNDARY if (before in _WORD) is not (after in _WORD) else NO_BOUNDARY
    if not before:
        places |= BEGIN_TEXT | BEGIN_LINE
    elif before == "\n":
        places |= BEGIN_LINE
    if not after:
        places |= END_TEXT | END_LINE
    elif after == "\n":
        places |= END_LINE
    return places
