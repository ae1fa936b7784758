r"""Globs of Go's ``gobwas/glob``, which nsqd's filters use without separators.

``*`` and ``**`` stand for any text, ``?`` for one character, ``[abc]``, ``[!abc]``, ``[a-c]`` and ``[!a-c]`` for one of
or none of these, ``{one,two}`` for one of these patterns; ``\`` makes the next character an ordinary one. A class has
either characters or one range.

That library panics on some patterns with empty or open braces, which ends nsqd. Here they are errors. It also finds the
empty text in a pattern of only ``?`` or ``[!abc]``, as here, and misses some texts that are not ASCII.

Source: github.com/gobwas/glob v0.2.3 ``syntax/lexer/lexer.go``, ``syntax/ast/parser.go``.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.patterns.automaton import ANYTHING, Automaton, Char, Choice, Node, Sequence

_MAX_DEPTH: Final = 100
_BREAKERS: Final = "?*[{"


def compile_glob(pattern: str) -> Automaton:
    """Return the automaton for ``pattern``; it must match the whole text.

    Raises:
        ValueError: nsqd refuses the pattern.
    """
    if "\0" in pattern or "\ufffd" in pattern:  # these mean "end" and "error" there
        raise ValueError("a glob must not contain the characters U+0000 and U+FFFD")
    node = _Parser(pattern).parse()
    if pattern == "?" or (pattern.startswith("[!") and isinstance(node, Sequence) and len(node.parts) == 1):
        node = Choice((node, Sequence(())))
    return Automaton(node)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0

    def parse(self) -> Node:
        parts: list[Node] = []
        while (char := self._peek()) and not (self._depth and char in ",}"):
            parts.append(self._part(char))
        return Sequence(tuple(parts))

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _braces(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("braces are nested too deep")
        options: list[Node] = []
        end = ","
        while end == ",":
            before = self._position
            options.append(self.parse())
            if self._position == before:
                raise ValueError("braces {...} must be closed, and have no empty pattern")
            end = self._peek()
            self._position += 1
        if not end:
            raise ValueError("braces {...} must be closed, and have no empty pattern")
        self._depth -= 1
        return Choice(tuple(options))

    def _part(self, char: str) -> Node:
        if char not in _BREAKERS:
            return self._text()
        self._position += 1
        if char == "?":
            return Char(lambda _: True)
        if char == "*":
            return ANYTHING
        return self._class() if char == "[" else self._braces()

    def _text(self) -> Node:
        text = self._until(_BREAKERS + (",}" if self._depth else ""))
        return Sequence(tuple(Char(char.__eq__) for char in text))

    def _until(self, breakers: str) -> str:
        found: list[str] = []
        is_escaped = False
        while (char := self._peek()) and (is_escaped or char not in breakers):
            self._position += 1
            is_escaped = char == "\\" and not is_escaped
            if not is_escaped:
                found.append(char)
        return "".join(found)

    def _class(self) -> Node:
        rest = self._pattern[self._position :]
        is_not = rest.startswith("!")
        self._position += is_not
        rest = rest[is_not:]
        if rest[1:2] == "-":
            low, high, end = rest[0], rest[2:3], rest[3:4]
            if end != "]":
                raise ValueError("a class [...] must be closed, and have either characters or one range")
            if high < low:
                raise ValueError(f"the range {low}-{high} is empty")
            self._position += 4
            return Char(lambda char: (low <= char <= high) is not is_not)
        chars = self._until("]")
        if not self._peek():
            raise ValueError("a class [...] must be closed")
        if not chars:
            raise ValueError("a class [...] must not be empty")
        self._position += 1
        return Char(lambda char: (char in chars) is not is_not)
