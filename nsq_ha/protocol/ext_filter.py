r"""Filters on extension headers in IDENTIFY, and which messages they match.

The key is a path of Go's ``gjson``, in which ``\`` makes the next character an ordinary one. A client escapes the name
of a header, so that it is only a name; here it always is one.

Source: youzan/nsq ``nsqd/ext_filter.go``; github.com/tidwall/gjson v1.1.3 ``parseObjectPath``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from nsq_ha.options.checks import MAX_FILTER_BYTES

if TYPE_CHECKING:
    from nsq_ha.options.ext_filter import ExtFilter
    from nsq_ha.options.patterns import Pattern

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_EQUALS: Final = 1
_REGEXP: Final = 2
_GLOB: Final = 3
_SEVERAL: Final = 4
_TYPES: Final = {"equals": _EQUALS, "regexp": _REGEXP, "glob": _GLOB}
_ESCAPED: Final = re.compile(r"\\(.?)", re.DOTALL)
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
        if any(len(key.encode()) > MAX_FILTER_BYTES for key in _keys(rule)):
            raise ValueError(f"a key is longer than {MAX_FILTER_BYTES} bytes")
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


def _comparison(rule: FilterRule, key: str, pattern: Pattern | None) -> Callable[[Mapping[str, object]], bool]:
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


def decoded(header: bytes) -> Mapping[str, object]:
    """Return the values of a header by their names, the first of repeated ones; empty if it is no JSON object."""
    try:
        found = json.loads(header.decode("utf-8", "replace"), object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def text_at(header: Mapping[str, object], path: str) -> str | None:
    """Return the text of the header that ``path`` names. None if there is none, or another value."""
    found = header.get(_ESCAPED.sub(r"\1", path))
    return _of_go(found) if isinstance(found, str) else None


def _of_go(text: str) -> str:
    """Return a text of JSON as Go reads it, which has no lone surrogates."""
    return text if text.isascii() else "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in text)
