"""Dataclass fields as rows of a table of options, the table of several classes, and the options that a user gave.

``option_table`` has the rows; ``option_parsing`` has the kinds of their values.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, overload

from nsq_ha.spark.options.option_parsing import Kind, wrong

log: Final = logging.getLogger("nsq_ha.spark")

Mode = Literal["batch", "stream", "write"]
"""The use of a set of options."""

Texts = Mapping[str, str]
"""The user's options, by the correct spelling of each name."""

T = TypeVar("T")

_SPARKS_OWN: Final = frozenset(("checkpointlocation", "outputmode", "path", "paths", "queryname"))
_SPARKS_PREFIXES: Final = ("_", "asyncprogresstracking", "spark.")
"""How other options begin that Spark passes on to the source, or takes from those of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option; a row of the table.

    Attributes:
        name: The name. Empty for the name of the field, in camel case.
        modes: The uses that the option applies to.
        kind: The kind of its values.
        meaning: The meaning, for the documentation.
        default: The default as text. Empty for none.
    """

    name: str = ""
    modes: tuple[Mode, ...]
    kind: Kind[Any]
    meaning: str
    default: str = ""


@overload
def row(modes: tuple[Mode, ...], kind: Kind[T], meaning: str, default: str) -> T: ...
@overload
def row(modes: tuple[Mode, ...], kind: Kind[T], meaning: str, *, secret: bool = False) -> T | None: ...
def row(modes: tuple[Mode, ...], kind: Kind[T], meaning: str, default: str = "", *, secret: bool = False) -> Any:
    """Return the field of one option; without a default, its value may be None."""
    option = Option(modes=modes, kind=kind, meaning=meaning, default=default)
    return rows(kind.parse("", default) if default else None, option, secret=secret)


def rows(
    default: object, *options: Option, join: Callable[[Mapping[str, Any]], Any] | None = None, secret: bool = False
) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field whose value ``join`` creates from its options; without ``join``, they exclude each other."""
    return dataclasses.field(default=default, repr=not secret, metadata={"rows": options, "join": join or _only})


def _only(values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any option's value
    exclude(values, *values)
    return next(iter(values.values()))


def exclude(given: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigError if more than one of the options is given."""
    present = [name for name in names if name in given]
    if len(present) > 1:
        raise wrong(present[1], f"cannot be combined with {present[0]!r}: remove one of them")


def _options_of(field: dataclasses.Field[Any]) -> list[Option]:
    first, *others = field.name.split("_")
    name = first + "".join(map(str.capitalize, others))
    return [dataclasses.replace(each, name=each.name or name) for each in field.metadata.get("rows", ())]


def table(*owners: type) -> Mapping[str, Option]:
    """Return the options of all fields by name; an option of several classes applies to the modes of each."""
    found: dict[str, Option] = {}
    for option in (each for owner in owners for field in dataclasses.fields(owner) for each in _options_of(field)):
        known = found.setdefault(option.name, option)
        if known.modes != option.modes:
            meaning = f"{known.meaning}; {option.meaning}"
            found[option.name] = dataclasses.replace(known, modes=known.modes + option.modes, meaning=meaning)
    return MappingProxyType(found)


def spelled(known: Mapping[str, Option], options: Mapping[str, str], mode: Mode) -> dict[str, str]:
    """Return the options that apply to ``mode``, by their correct names and stripped; warn about others.

    Raises:
        ConfigError: An option is unknown, or gives a stream an end.
    """
    spelling = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for each, value in options.items():
        name = spelling.get(each.lower())
        if each.lower() in _SPARKS_OWN or each.lower().startswith(_SPARKS_PREFIXES):
            continue
        if name is None:
            near = difflib.get_close_matches(each.lower(), spelling, n=1)
            hint = f"did you mean {spelling[near[0]]!r}?" if near else "format 'nsq' has no such option, remove it"
            raise wrong(each, f"is unknown: {hint}")
        if mode in known[name].modes:
            given[name] = value.strip()
        elif mode == "stream" and name.startswith("ending"):
            raise wrong(name, "a stream has no end: use spark.read, or the trigger availableNow")
        else:
            log.warning("option %r of format 'nsq' does not apply to a %s and is ignored", name, mode)
    return given


def field_values(owner: type, given: Texts) -> dict[str, Any]:
    """Return the values of the fields whose options are given."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(owner):
        parsed = {
            each.name: each.kind.parse(each.name, given[each.name]) for each in _options_of(field) if each.name in given
        }
        if parsed:
            found[field.name] = field.metadata["join"](parsed)
    return found
