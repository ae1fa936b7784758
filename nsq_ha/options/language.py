"""The language in which options are declared, and how values and texts become options.

An option is one annotated field of a dataclass. Its type says what it may be; ``Annotated`` adds the range
(``msgspec.Meta``), the unit (:data:`Seconds`, :data:`Bytes`), or a function that checks and normalises the value; the
docstring below it says what it changes, and why the default is what it is::

    max_in_flight: Annotated[int, Meta(ge=0, le=1_000_000)] = 200
    \"\"\"Maximum number of unanswered messages over all partitions: enough to hide a round trip. ...\"\"\"

Everything else is derived from that: the checks of keywords, variables, keys of a file and options of Spark, their
error texts, and the tables of the docs.

The invariant: an error begins with the option, says what it may be, and shows no value that may be secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import enum
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_INT64, shown


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    if not isinstance(name, str):
        return ""
    known = list(known)
    # Other clients say lookupd_http_addresses, and nsqd_tcp_addresses.
    begun = [each for each in known if name.lower().startswith(f"{each}_")]
    near = begun[-1:] or difflib.get_close_matches(name.lower(), known)
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""


Seconds = Annotated[float, Meta(extra={"unit": "seconds"})]
"""A time."""

Bytes = Annotated[int, Meta(extra={"unit": "bytes"})]
"""A size."""

FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""The texts that mean True and False."""

UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "seconds": {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600},
    "bytes": {"b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30},
}
"""What may stand behind a number in a text, as in ``500ms`` and ``64k``."""

_EXAMPLES: Final = {"seconds": ", such as 5s or 500ms", "bytes": ", such as 1000000, 512k or 64m"}
_UNBOUNDED: Final = (MAX_INT64, 1e300)
"""Upper bounds that nobody reaches, which errors do not name."""

_AMOUNT: Final = re.compile(r"([0-9.]+)\s*([a-z]+)")
_CONTINUES: Final = ("must ", "names ", "of ")
"""How a problem begins that continues the name of its option."""

_NATIVE: Final = (bool, int, float, types.NoneType)
_NAMED: Final = {bool: ("True", "False"), types.NoneType: ()}


class FromText(msgspec.Struct, frozen=True):
    """In ``Annotated``: reads a value from a text, or from what a file holds instead of it."""

    read: Callable[[Any], Any]


class _Kind(msgspec.Struct, frozen=True):
    """One of the types that an option may have.

    Attributes:
        type: The type, without its range.
        wanted: What it allows, for errors.
        convert: Returns the normalised value. Raises ConfigError with the exact problem, or another ValueError.
        words: The texts that it consists of, if it does.
        unit: Its unit. Empty for none.
        range: Its range, with the unit. Empty for none.
        read: Reads it from a text or a file. None if ``convert`` takes what stands there.
        is_shown: Whether errors may show a wrong value.
    """

    type: Any
    wanted: tuple[str, ...]
    convert: Callable[[Any], Any]
    words: tuple[str, ...] = ()
    unit: str = ""
    range: str = ""
    read: Callable[[Any], Any] | None = None
    is_shown: bool = True


class Option(msgspec.Struct, frozen=True):
    """A declared option.

    Attributes:
        name: Its name.
        default: Its default.
        kinds: The types that it may have.
        notes: What else ``Annotated`` says of it.
    """

    name: str
    default: Any
    kinds: tuple[_Kind, ...]
    notes: tuple[Any, ...] = ()

    @property
    def group(self) -> Any:  # noqa: ANN401 - a dataclass
        """The dataclass whose fields the option consists of, such as ``TlsConfig``; None for a single value."""
        return next((kind.type for kind in self.kinds if dataclasses.is_dataclass(kind.type)), None)

    @property
    def may_be_none(self) -> bool:
        """Whether None is legal."""
        return any(kind.type is types.NoneType for kind in self.kinds)

    @property
    def unit(self) -> str:
        """Its unit. Empty for none."""
        return next((kind.unit for kind in self.kinds if kind.unit), "")

    @property
    def range(self) -> str:
        """Its range, with the unit. Empty for none."""
        return next((kind.range for kind in self.kinds if kind.range), "")

    @property
    def wanted(self) -> str:
        """What the option may be besides None; completes "must be"."""
        *others, last = (each for kind in self.kinds for each in kind.wanted)
        return f"{', '.join(others)} or {last}" if others else last

    def check(self, value: Any, place: str = "") -> Any:  # noqa: ANN401 - any value may be given
        """Return a value, normalised.

        Args:
            value: The value.
            place: Where it stands; every error begins with it. Empty for the name of the option.

        Raises:
            ConfigError: The value is wrong.
        """
        return self._converted(value, place or self.name, value)

    def from_text(self, text: str, place: str) -> Any:  # noqa: ANN401 - of any type
        """Return the value that a text means.

        Raises:
            ConfigError: The text is wrong.
        """
        return self._converted(self._meant(text), place, text, _EXAMPLES.get(self.unit, ""))

    def from_file(self, value: Any, place: str) -> Any:  # noqa: ANN401 - of any type
        """Return the value for one of TOML.

        Raises:
            ConfigError: The value is wrong.
        """
        return self._converted(value, place, value, "")

    def _converted(self, value: Any, place: str, given: object, examples: str | None = None) -> Any:  # noqa: ANN401
        """Return a value; if there may be examples of texts, for what somebody wrote outside of a program."""
        problem = ""
        for kind in self.kinds:
            try:
                return kind.convert(value if kind.read is None or examples is None else kind.read(value))
            except ConfigError as error:
                problem = str(error)
            except ValueError:
                pass
        if not problem:
            words = [word for kind in self.kinds for word in kind.words]
            found = shown(given) if all(kind.is_shown for kind in self.kinds) else type(given).__name__
            wanted = self.wanted
            if examples is None:
                examples = ", or None" if self.may_be_none else ""
            else:
                wanted = wanted.replace("True or False", "true or false")  # as files and the environment write them
            problem = f"must be {wanted}{examples}, not {found}{did_you_mean(given, words)}"
        if problem.startswith(_CONTINUES):
            raise ConfigError(f"{place} {problem}")
        raise ConfigError(problem if problem.startswith(place) else f"{place.removesuffix(':')}: {problem}")

    def _meant(self, text: str) -> Any:  # noqa: ANN401 - of any type
        """Return the word, flag, number or list that a text means; the text itself if it is none."""
        for kind in self.kinds:
            for word in kind.words:
                if text.lower() == word.lower():
                    return word
            if kind.type is bool and text.lower() in FLAGS:
                return FLAGS[text.lower()]
        for kind in self.kinds:
            if kind.type in (int, float):
                return _number(text, kind.type, kind.unit)
            if typing.get_origin(kind.type) in (tuple, frozenset):
                item = typing.get_args(kind.type)[0]
                return [_number(each.strip(), item) for each in text.split(",")] if text else ()
        return text


def _number(text: str, kind: Any, unit: str = "") -> object:  # noqa: ANN401 - a type
    """Return the number that a text means, in seconds or bytes; the text itself if it is none."""
    amount = _AMOUNT.fullmatch(text.lower())
    factor = UNITS.get(unit, {}).get(amount[2]) if amount else None
    with contextlib.suppress(msgspec.ValidationError, UnicodeEncodeError):
        if kind in (int, float):
            found: float = msgspec.convert(text if factor is None or amount is None else amount[1], kind, strict=False)
            return found if factor is None else found * factor
    return text


# ---------------------------------------------------------------- declarations


_declared: Final[dict[type[Any], Mapping[str, Option]]] = {}


def declared(owner: type[Any]) -> Mapping[str, Option]:
    """Return the options that a dataclass declares, by name; its annotations must not be texts."""
    if owner not in _declared:
        fields = dataclasses.fields(owner)
        _declared[owner] = {field.name: option(field.name, field.type, field.default) for field in fields}
    return _declared[owner]


def check_all(options: Any) -> None:  # noqa: ANN401 - a dataclass
    """Check the options of a new frozen dataclass, and normalise them.

    Raises:
        ConfigError: An option is wrong; the text names it and what it may be.
    """
    for name, option in declared(type(options)).items():
        value = getattr(options, name)
        if value is not option.default:
            object.__setattr__(options, name, option.check(value))


def option(name: str, hint: Any, default: object = None) -> Option:  # noqa: ANN401 - a type
    """Return the option that a type declares."""
    inner, *notes = _parts(hint)
    is_union = typing.get_origin(inner) in (types.UnionType, typing.Union)
    kinds = typing.get_args(inner) if is_union and not any(map(callable, notes)) else (hint,)
    return Option(name, default, tuple(map(_kind, kinds)), tuple(notes))


def _parts(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    return typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)


def _kind(hint: Any) -> _Kind:  # noqa: ANN401 - a type
    kind, *notes = _parts(hint)
    origin = typing.get_origin(kind)
    metas = [note for note in notes if isinstance(note, Meta)]
    unit = next((meta.extra["unit"] for meta in metas if meta.extra), "")
    words: tuple[str, ...] = ()
    if origin is Literal:
        words = typing.get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        words = tuple(each.value for each in kind)
    is_native = bool(words) or kind in _NATIVE
    default = functools.partial(_native, hint) if is_native else functools.partial(_instance, origin or kind)
    check = next(filter(callable, notes), default)
    return _Kind(
        type=kind,
        wanted=tuple(meta.description for meta in metas if meta.description) or _wanted(kind, words, metas, unit),
        convert=check,
        words=words,
        unit=unit,
        range=f"{_range(metas)} {unit}".rstrip() if kind in (int, float) else "",
        read=next((note.read for note in notes if isinstance(note, FromText)), None),
        is_shown=is_native or check is not default or origin is Callable,
    )


def _native(hint: Any, value: Any) -> Any:  # noqa: ANN401 - any value may be given
    try:
        # A float of numpy is one of Python, but not to msgspec.
        return msgspec.convert(float(value) if isinstance(value, float) else value, hint)
    except msgspec.ValidationError:
        raise ValueError from None


def _instance(kind: Any, value: object) -> object:  # noqa: ANN401 - a type
    if not isinstance(value, kind):
        raise ValueError  # noqa: TRY004 - as for all wrong values
    return value


def _wanted(kind: Any, words: tuple[str, ...], metas: list[Meta], unit: str) -> tuple[str, ...]:  # noqa: ANN401
    if words:
        return tuple(map(repr, words))
    if kind is int:
        return (f"a whole number{f' of {unit}' if unit else ''}, {_range(metas)}",)
    if kind is float:
        return (f"{_range(metas)} {unit}".rstrip(),)
    if kind in _NAMED:
        return _NAMED[kind]
    name = "function" if typing.get_origin(kind) is Callable else getattr(kind, "__name__", str(kind))
    return (f"{'an' if name[0] in 'AEIOU' else 'a'} {name}",)


def _range(metas: list[Meta]) -> str:
    bounds = {
        name: f"{bound:g}" if isinstance(bound, float) else str(bound)
        for meta in metas
        for name in ("ge", "gt", "le", "lt")
        if (bound := getattr(meta, name)) is not None and bound not in _UNBOUNDED
    }
    most = bounds.get("le") or bounds.get("lt")
    if "gt" in bounds:
        return f"above {bounds['gt']}" + (f" and up to {most}" if most else "")
    least = bounds.get("ge", "any")
    return f"{least}..{most}" if most else f"{least} or more"
