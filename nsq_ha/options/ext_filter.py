"""A filter on extension headers that nsqd applies before it delivers a message.

nsqd ignores a wrong filter silently and delivers everything, so everything is checked when a filter is created.

Source: youzan/nsq ``nsqd/ext_filter.go`` ``NewExtFilter``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_FILTER_BYTES, shown
from nsq_ha.options.language import check_all, declared, option
from nsq_ha.options.values import utf8

FilterKind = Literal["equals", "regexp", "glob", "all_of", "any_of"]

_SEVERAL: Final = frozenset(("all_of", "any_of"))
_MOST_PAIRS: Final = 1000
_text: Final = utf8(MAX_FILTER_BYTES, "nsqd ignores a filter with an empty key or value")


def _header_text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"must be text, not {shown(value)}: nsqd compares no other values")
    return _text(value)


def _pairs(pairs: object) -> tuple[tuple[str, str], ...]:
    """Return pairs of text; one may also be written ``name=value``, as in a variable."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise ConfigError(f"must be a mapping or pairs of text, not {shown(pairs)}")
    found: list[tuple[str, str]] = []
    for item in items:
        pair: object = item
        if isinstance(item, str):
            key, equals, value = item.partition("=")
            pair = (key, value) if equals else None
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(f"must consist of a name and a value each, not {shown(item)}")
        found.append((_NAME.check(pair[0]), _VALUE.check(pair[1])))
    return tuple(found)


_NAME: Final = option("the name of a header", Annotated[str, _header_text])
_VALUE: Final = option("the value of a header", Annotated[str, _header_text])


@dataclass(frozen=True, slots=True)
class ExtFilter:
    """Which messages nsqd delivers, by their headers. Create one with a class method.

    nsqd finishes all other messages for the whole *channel*: consumers of one channel should all have the same filter.

    Only the value of a header at the top of the JSON object counts, and only if it is text. ``equals``, ``all_of`` and
    ``any_of`` find no other value. For ``regexp`` and ``glob`` the value is empty if there is no such header or it is
    not text. A message without any header never matches, so ``inverse=True`` delivers it.

    Attributes:
        kind: How to compare.
        key: Name of the header; empty for ``all_of`` and ``any_of``.
        value: The value, or the pattern; empty for ``all_of`` and ``any_of``.
        pairs: Names and values, for ``all_of`` and ``any_of``.
        inverse: Deliver the messages that do not match.
    """

    kind: FilterKind = "equals"
    key: Annotated[str, _header_text] = ""
    value: Annotated[str, _header_text] = ""
    pairs: Annotated[tuple[tuple[str, str], ...], _pairs] = ()
    inverse: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: nsqd would ignore the filter, or would end because of it; or the filter has a pattern, and the
                extra ``filters`` is not installed.
        """
        check_all(self)
        if self.kind in _SEVERAL:
            if self.key or self.value:
                raise ConfigError(f"a filter of the kind {self.kind!r} has pairs, but no key and no value")
            if not 1 <= len(self.pairs) <= _MOST_PAIRS:
                raise ConfigError(f"{self.kind} needs 1..{_MOST_PAIRS} pairs of a header and its value")
            return
        if self.pairs:
            raise ConfigError(f"a filter of the kind {self.kind!r} has a key and a value, but no pairs")
        for name in ("key", "value"):
            declared(type(self))[name].check(getattr(self, name))
        if self.kind != "equals":
            _check_pattern(self.kind, self.value)

    @classmethod
    def equals(cls, key: str, value: str, *, inverse: bool = False) -> Self:
        """Match messages whose header ``key`` is the text ``value``.

        Raises:
            ConfigError: An argument is empty, too long or not text.
        """
        return cls("equals", key, value, inverse=inverse)

    @classmethod
    def regexp(cls, key: str, pattern: str, *, inverse: bool = False) -> Self:
        r"""Match messages whose header ``key`` contains a match of a regular expression.

        Args:
            key: Name of the header.
            pattern: An expression of Go's ``regexp``, which knows no look-around and no back-references. Use ``^`` and
                ``$`` to match the whole value.
            inverse: Deliver the messages that do not match.

        Raises:
            ConfigError: nsqd does not know such an expression, or an argument is empty, too long or not text; or the
                extra ``filters`` is not installed.
        """
        return cls("regexp", key, pattern, inverse=inverse)

    @classmethod
    def glob(cls, key: str, pattern: str, *, inverse: bool = False) -> Self:
        r"""Match messages whose whole header ``key`` matches a glob.

        Args:
            key: Name of the header.
            pattern: ``*`` for any text, ``?`` for one character, ``[abc]``, ``[!abc]`` or ``[a-c]`` for one of a
                class, ``{one,two}`` for one of several patterns; ``\`` before an ordinary character.
            inverse: Deliver the messages that do not match.

        Raises:
            ConfigError: The pattern is not valid, or an argument is empty, too long or not text; or the extra
                ``filters`` is not installed.
        """
        return cls("glob", key, pattern, inverse=inverse)

    @classmethod
    def all_of(cls, pairs: Mapping[str, str] | Iterable[tuple[str, str]], *, inverse: bool = False) -> Self:
        """Match messages that have all these headers with these values.

        Raises:
            ConfigError: There are no pairs, or a name or value is empty, too long or not text.
        """
        return cls("all_of", pairs=pairs, inverse=inverse)  # type: ignore[arg-type]  # brought into form when it is checked

    @classmethod
    def any_of(cls, pairs: Mapping[str, str] | Iterable[tuple[str, str]], *, inverse: bool = False) -> Self:
        """Match messages that have at least one of these headers with its value; a name may occur more than once.

        Raises:
            ConfigError: As for :meth:`all_of`.
        """
        return cls("any_of", pairs=pairs, inverse=inverse)  # type: ignore[arg-type]  # as above


def _check_pattern(kind: str, pattern: str) -> None:
    try:
        from nsq_ha.options.patterns import compile_glob, compile_regexp  # noqa: PLC0415 # an extra
    except ModuleNotFoundError as error:
        raise ConfigError(str(error)) from error
    try:
        (compile_regexp if kind == "regexp" else compile_glob)(pattern)
    except ValueError as error:
        raise ConfigError(f"{kind} {shown(pattern)} is not one that nsqd knows: {error}") from error
