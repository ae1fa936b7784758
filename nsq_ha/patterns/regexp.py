r"""Regular expressions of Go's ``regexp`` (RE2), which nsqd's filters use.

There are no back-references and no look-around. Not supported here, although Go knows them: ``(?<name>...)``, which
older Go versions refuse, and ``\p{...}`` with the name of a script. Whether a repetition is lazy does not matter,
since only the match counts.

Source: Go's ``regexp/syntax/parse.go``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from nsq_ha.patterns.automaton import (
    ANYTHING,
    BEGIN_LINE,
    BEGIN_TEXT,
    BOUNDARY,
    END_LINE,
    END_TEXT,
    NO_BOUNDARY,
    Automaton,
    Char,
    Choice,
    Node,
    Place,
    Repeat,
    Sequence,
)

_Allows = Callable[[str], bool]

_MAX_DEPTH: Final = 100
_MAX_REPEAT: Final = 1000
_COUNT: Final = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}", re.ASCII)
_GROUP_NAME: Final = re.compile(r"\(\?P<([0-9A-Za-z_]+)>", re.ASCII)
_GROUP_FLAGS: Final = re.compile(r"\(\?([imsU]*)(-[imsU]+)?([:)])", re.ASCII)
_OCTAL: Final = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}", re.ASCII)
_HEX: Final = re.compile(r"x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]+)\})", re.ASCII)
_CATEGORY: Final = re.compile(r"[pP](?:([A-Z])|\{(\^?)([A-Za-z_]+)\})", re.ASCII)
_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]", re.ASCII)

_LETTERS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PLACES: Final = {"A": BEGIN_TEXT, "z": END_TEXT, "b": BOUNDARY, "B": NO_BOUNDARY}
_PERL: Final = {"d": "09", "s": "\t\n\f\r  ", "w": "09AZ__az"}
_CLASSES: Final = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\0\x7f",
    "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZ__az",
    "xdigit": "09AFaf",
}
_GENERAL: Final = frozenset(
    kind + more
    for kind, each in {
        "C": "cfos",
        "L": "lmotu",
        "M": "cen",
        "N": "dlo",
        "P": "cdefios",
        "S": "ckmo",
        "Z": "lps",
    }.items()
    for more in ("", *each)
)


def compile_regexp(pattern: str) -> Automaton:
    """Return the automaton for ``pattern``, which may match anywhere in the text.

    Raises:
        ValueError: nsqd refuses the pattern, or it is not supported here.
    """
    return Automaton(Sequence((ANYTHING, _Parser(pattern).parse(), ANYTHING)))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._flags = frozenset[str]()
        self._names = set[str]()

    def parse(self) -> Node:
        node = self._choice()
        if self._position < len(self._pattern):
            raise ValueError("unexpected )")
        return node

    # -- reading

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise ValueError("the expression ends too early")
        self._position += 1
        return char

    def _scan(self, what: re.Pattern[str]) -> re.Match[str] | None:
        found = what.match(self._pattern, self._position)
        if found is not None:
            self._position = found.end()
        return found

    # -- the parts of an expression

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self._position += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        can_repeat = False
        while self._peek() not in ("", "|", ")"):
            repeated = self._repetition()
            if repeated is None:
                parts += self._atom()
                can_repeat = bool(parts)  # after a change of flags, the part before it
                continue
            if not can_repeat:
                raise ValueError(f"nothing to repeat before {self._pattern[self._position - 1]!r}")
            low, high, is_counted = repeated
            node = Repeat(parts.pop(), low, high, is_counted)
            if is_counted and not _is_countable(node, _MAX_REPEAT):
                raise ValueError(f"a repetition of more than {_MAX_REPEAT}")
            parts.append(node)
            can_repeat = False
        return Sequence(tuple(parts))

    def _repetition(self) -> tuple[int, int | None, bool] | None:
        char = self._peek()
        found: tuple[int, int | None, bool]
        if char in ("*", "+", "?"):
            self._position += 1
            found = {"*": (0, None, False), "+": (1, None, False), "?": (0, 1, False)}[char]
        elif char == "{" and (count := self._scan(_COUNT)) is not None:
            low = _number(count[1])
            high = low if count[2] is None else None if count[3] is None else _number(count[3])
            if low > _MAX_REPEAT or (high is not None and not low <= high <= _MAX_REPEAT):
                raise ValueError(f"{count[0]} is no count: the maximum is {_MAX_REPEAT}")
            found = low, high, True
        else:
            return None
        if self._peek() == "?":
            self._position += 1
        return found

    def _atom(self) -> list[Node]:
        """Return the next part; none for a change of flags. Each character of a quotation is a part of its own."""
        char = self._peek()
        if char == "(":
            return self._group()
        self._position += 1
        return self._escaped() if char == "\\" else [self._single(char)]

    def _single(self, char: str) -> Node:
        is_multiline = "m" in self._flags
        match char:
            case "[":
                return Char(self._class())
            case ".":
                return Char((lambda _: True) if "s" in self._flags else (lambda char: char != "\n"))
            case "^":
                return Place(BEGIN_LINE if is_multiline else BEGIN_TEXT)
            case "$":
                return Place(END_LINE if is_multiline else END_TEXT)
            case _:
                return self._literal(char)

    def _escaped(self) -> list[Node]:
        following = self._peek()
        if following == "Q":
            self._position += 1
            quoted, _, _ = self._pattern[self._position :].partition("\\E")
            self._position = min(self._position + len(quoted) + 2, len(self._pattern))
            return [self._literal(each) for each in quoted]
        if following in _PLACES:
            self._position += 1
            return [Place(_PLACES[following])]
        allows = self._class_escape()
        return [self._literal(self._escape()) if allows is None else Char(allows)]

    def _literal(self, char: str) -> Char:
        return Char(self._folded(char.__eq__))

    def _folded(self, allows: _Allows) -> _Allows:
        """Return ``allows`` without regard to case if the flag ``i`` is set."""
        if "i" not in self._flags:
            return allows
        return lambda char: any(allows(each) for each in (char, *_cases(char)))

    def _group(self) -> list[Node]:
        flags = self._flags
        if (name := self._scan(_GROUP_NAME)) is not None:
            if name[1] in self._names:
                raise ValueError(f"two groups have the name {name[1]!r}")
            self._names.add(name[1])
        elif (group := self._scan(_GROUP_FLAGS)) is not None:
            if group[3] == ")" and not group[1] and not group[2]:
                raise ValueError("(?) has no flag")
            self._flags = (flags | frozenset(group[1])) - frozenset((group[2] or "")[1:])
            if group[3] == ")":
                return []
        elif self._pattern.startswith("(?", self._position):
            raise ValueError(f"nsqd knows no group {self._pattern[self._position : self._position + 4]!r}")
        else:
            self._position += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("groups are nested too deep")
        node = self._choice()
        self._depth -= 1
        if self._peek() != ")":
            raise ValueError("a group ( must be closed")
        self._position += 1
        self._flags = flags
        return [node]

    # -- characters

    def _escape(self) -> str:
        if (octal := self._scan(_OCTAL)) is not None:
            return chr(int(octal[0], 8))
        if (number := self._scan(_HEX)) is not None:
            code = int((number[1] or number[2])[-9:], 16)
            if code > 0x10FFFF or len(number[2] or "") > 8:
                raise ValueError(f"\\{number[0]} is no character")
            return chr(code)
        char = self._next()
        if char in _LETTERS:
            return _LETTERS[char]
        if char.isascii() and not char.isalnum():
            return char
        raise ValueError(f"nsqd does not know \\{char}")

    def _class_escape(self) -> _Allows | None:
        r"""Return what ``\d``, ``\pL`` and the like allow. None if there is no such escape."""
        char = self._peek()
        if char and char.lower() in _PERL:
            self._position += 1
            return _negated(_ranges(_PERL[char.lower()]), is_not=char.isupper())
        if char not in ("p", "P"):
            return None
        found = self._scan(_CATEGORY)
        name = "" if found is None else found[1] or found[3]
        if found is None or (name not in _GENERAL and name != "Any"):
            raise ValueError(f"\\{char} needs a general category, such as \\pL or \\p{{Lu}}")
        is_not = (char == "P") is not bool(found[2])
        if name == "Any":
            return lambda _: not is_not
        return _negated(self._folded(lambda each: unicodedata.category(each).startswith(name)), is_not=is_not)

    def _class(self) -> _Allows:
        is_not = self._peek() == "^"
        self._position += is_not
        items: list[_Allows] = []
        is_first = True
        while self._peek() != "]" or is_first:
            is_first = False
            if (posix := self._scan(_POSIX)) is not None:
                if posix[2] not in _CLASSES:
                    raise ValueError(f"there is no class {posix[0]}")
                items.append(_negated(self._folded(_ranges(_CLASSES[posix[2]])), is_not=bool(posix[1])))
                continue
            if self._peek() == "\\":
                self._position += 1
                allows = self._class_escape()
                if allows is not None:
                    items.append(allows)
                    continue
                low = self._escape()
            else:
                low = self._next()
            items.append(self._folded(_ranges(low + self._high(low))))
        self._position += 1
        return _negated(lambda char: any(allows(char) for allows in items), is_not=is_not)

    def _high(self, low: str) -> str:
        """Return the end of a range that begins with ``low``, or ``low`` if it is no range."""
        if self._peek() != "-" or self._pattern[self._position + 1 : self._position + 2] in ("", "]"):
            return low
        self._position += 1
        high = self._next()
        if high == "\\":
            high = self._escape()
        if high < low:
            raise ValueError(f"the range {low}-{high} is empty")
        return high


def _cases(char: str) -> tuple[str, ...]:
    """Return the other forms of a letter."""
    low, high = char.lower(), char.upper()
    return low, high, low.upper(), high.lower()


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 9 else _MAX_REPEAT + 1


def _ranges(pairs: str) -> _Allows:
    """Return what ranges allow, each given by its first and last character."""
    both = tuple(zip(pairs[::2], pairs[1::2], strict=True))
    return lambda char: any(low <= char <= high for low, high in both)


def _negated(allows: _Allows, *, is_not: bool) -> _Allows:
    return (lambda char: not allows(char)) if is_not else allows


def _is_countable(node: Node, most: int) -> bool:
    """Return whether counted repetitions inside one another repeat nothing more often than ``most`` times."""
    match node:
        case Repeat(part, low, high, is_counted):
            count = (low if high is None else high) if is_counted else 1
            if is_counted and high == 0:
                return True
            return count <= most and _is_countable(part, most // count if count else most)
        case Sequence(parts):
            return all(_is_countable(part, most) for part in parts)
        case Choice(options):
            return all(_is_countable(option, most) for option in options)
        case _:
            return True
