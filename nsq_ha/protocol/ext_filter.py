r"""Filters on extension headers in IDENTIFY, and which messages they match.

The key is a path of Go's ``gjson``: ``a.b`` is the value ``b`` inside ``a``, ``*`` and ``?`` are wildcards, and ``\``
makes the next character an ordinary one. A client escapes the name of a header, so that it is only a name.

Source: youzan/nsq ``nsqd/ext_filter.go``; github.com/tidwall/gjson v1.1.3 ``parseObjectPath``, ``parseObject``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

if TYPE_CHECKING:
    from nsq_ha.options.ext_filter import ExtFilter
    from nsq_ha.options.patterns import Pattern

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_EQUALS: Final = 1
_REGEXP: Final = 2
_GLOB: Final = 3
_SEVERAL: Final = 4
_MOST_BYTES: Final = 4096
_TYPES: Final = {"equals": _EQUALS, "regexp": _REGEXP, "glob": _GLOB}
_RELATIONS: Final = {"all_of": "all", "any_of": "any"}


class Pair(msgspec.Struct, frozen=True, omit_defaults=True):
    """One comparison of a rule that has several; null counts as absent."""

    filter_ext_key: str | None = None
    filter_data: str | None = None


class FilterRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A filter as IDENTIFY has it; null counts as absent.

    Attributes:
        type: 1 equal, 2 regular expression, 3 glob, 4 several; 0 for no filter.
        inverse: Deliver what does not match.
        filter_ext_key: Path of the header; with several, ``all`` or ``any``.
        filter_data: The value or the pattern.
        filter_data_list: The comparisons, with several.
    """

    type: _Int | None = None
    inverse: bool | None = None
    filter_ext_key: str | None = None
    filter_data: str | None = None
    filter_data_list: list[Pair] | None = None


def rule_of(given: ExtFilter) -> FilterRule:
    """Return the rule to send for a filter of the user."""
    inverse = given.inverse or None
    if given.kind in _RELATIONS:
        pairs = [Pair(path_of(key), value) for key, value in given.pairs]
        return FilterRule(_SEVERAL, inverse, _RELATIONS[given.kind], filter_data_list=pairs)
    return FilterRule(_TYPES[given.kind], inverse, path_of(given.key), given.value)


def path_of(name: str) -> str:
    """Return the path of the header ``name``: every sign that could have a meaning is escaped."""
    return "".join(f"\\{char}" if char.isascii() and not (char.isalnum() or char in "_- ") else char for char in name)


class Filter:
    """Which messages a rule lets pass.

    Raises:
        ValueError: nsqd ignores such a rule, or it is too large.
    """

    def __init__(self, rule: FilterRule) -> None:
        self._inverse = bool(rule.inverse)
        if not rule.filter_ext_key or (not rule.filter_data and rule.type != _SEVERAL):
            raise ValueError("a filter needs a key and a value")
        if any(len(key.encode()) > _MOST_BYTES for key in _keys(rule)):
            raise ValueError(f"a key is longer than {_MOST_BYTES} bytes")
        self._pattern = _pattern(rule.type, rule.filter_data or "")
        self._matches = _comparison(rule, rule.filter_ext_key, self._pattern)

    def effort(self, header: bytes | None) -> int:
        """Return how many steps :meth:`passes` may need."""
        return 0 if header is None or self._pattern is None else len(header) * self._pattern.size

    def passes(self, header: bytes | None) -> bool:
        """Return whether to deliver a message with this header; None for none, which no rule matches."""
        return (header is not None and self._matches(decoded(header))) is not self._inverse


def _keys(rule: FilterRule) -> list[str]:
    return [rule.filter_ext_key or "", *(pair.filter_ext_key or "" for pair in rule.filter_data_list or ())]


def _pattern(kind: int | None, value: str) -> Pattern | None:
    """Return the compiled pattern of a rule. None if it has none."""
    if kind not in (_REGEXP, _GLOB):
        return None
    from nsq_ha.options.patterns import compile_glob, compile_regexp  # noqa: PLC0415 # an extra

    return (compile_regexp if kind == _REGEXP else compile_glob)(value)


def _comparison(rule: FilterRule, key: str, pattern: Pattern | None) -> Callable[[object], bool]:
    if pattern is not None:
        return lambda header: pattern.matches(text_at(header, key) or "")
    value, pairs = rule.filter_data, rule.filter_data_list
    if rule.type == _EQUALS:
        return lambda header: text_at(header, key) == value
    if rule.type != _SEVERAL or not pairs:
        raise ValueError("a filter has the type 1, 2, 3, or 4 with a list")
    wanted = [(pair.filter_ext_key or "", pair.filter_data or "") for pair in pairs]
    if not all(path and text for path, text in wanted):
        raise ValueError("each pair needs a key and a value")
    if key not in ("all", "any"):  # nsqd takes it, and it never matches
        return lambda _: False
    holds: Callable[[Iterable[bool]], bool] = all if key == "all" else any
    return lambda header: holds(text_at(header, path) == text for path, text in wanted)


class _Pairs(list[tuple[str, object]]):
    """The pairs of a JSON object, in order and with repeated keys."""


def decoded(header: bytes) -> object:
    """Return the value of a header, in which an object is a list of pairs. None if it is not JSON."""
    try:
        return json.loads(header.decode("utf-8", "replace"), object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None


def text_at(header: object, path: str) -> str | None:
    """Return the text at ``path`` in a decoded header. None if there is none, or another value.

    The first of repeated keys counts.
    """
    found = _find(header, path)
    return _of_go(found) if isinstance(found, str) else None


def _of_go(text: str) -> str:
    """Return a text of JSON as Go reads it, which has no lone surrogates."""
    return text if text.isascii() else "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)


def _find(value: object, path: str) -> object:
    """Return the value at ``path``; ``_ABSENT`` if there is none."""
    part, rest, is_wild = _split(path)
    if isinstance(value, _Pairs):
        allows = _wildcards(part).matches if is_wild else part.__eq__
        for key, inside in value:
            if allows(_of_go(key)):
                if rest is None:
                    return inside
                if (found := _find(inside, rest)) is not _ABSENT:
                    return found
    elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(value):
        inside = value[int(part[:9])]
        return inside if rest is None else _find(inside, rest)
    return _ABSENT


_ABSENT: Final = object()


def _split(path: str) -> tuple[str, str | None, bool]:
    """Return the first part of a path, the rest or None, and whether the part has wildcards."""
    part: list[str] = []
    is_wild = False
    position = 0
    while position < len(path):
        char = path[position]
        position += 1
        if char == ".":
            return "".join(part), path[position:], is_wild
        if char == "\\":
            part.append(path[position : position + 1])
            position += 1
            continue
        is_wild |= char in "*?"
        part.append(char)
    return "".join(part), None, is_wild


def _wildcards(part: str) -> Pattern:
    from nsq_ha.options.patterns import compile_wildcards  # noqa: PLC0415 # an extra

    return compile_wildcards(part)
