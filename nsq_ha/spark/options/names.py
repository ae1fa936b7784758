"""The names of the options of ``format("nsq")``, and the values that a Spark user gave for them.

An option is named like its field, in camel case; a part of one like ``tls`` has both names. The fields are in
the package.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from nsq_ha.errors import ConfigError
from nsq_ha.options.language import UNITS, Option, declared, option
from nsq_ha.options.types import TlsConfig
from nsq_ha.spark import logger

Mode = Literal["batch", "stream", "write"]
"""The use of a set of options."""

T = TypeVar("T")


class For(NamedTuple):
    """In ``Annotated``: the uses that an option applies to, and the ``delivery`` of a read; empty for any."""

    modes: tuple[Mode, ...]
    delivery: str = ""


class Names(NamedTuple):
    """In ``Annotated``: the names of an option that is not named like its field; they mean the same."""

    names: tuple[str, ...]


Batches = Annotated[T, For(("batch",))]
Streams = Annotated[T, For(("stream",))]
Reads = Annotated[T, For(("batch", "stream"))]
Replays = Annotated[T, For(("batch", "stream"), "replay")]
ReplayStreams = Annotated[T, For(("stream",), "replay")]
AckStreams = Annotated[T, For(("stream",), "ack")]
Writes = Annotated[T, For(("write",))]
Everywhere = Annotated[T, For(("batch", "stream", "write"))]

_SPARKS_OWN: Final = frozenset(("checkpointlocation", "outputmode", "path", "paths", "queryname"))
_SPARKS_PREFIXES: Final = ("_", "asyncprogresstracking", "spark.")
"""How other options begin that Spark passes on to the source, or takes from those of the source."""


class Known(NamedTuple):
    """An option by its name in Spark.

    Attributes:
        name: Its name.
        modes: The uses that it applies to.
        delivery: The ``delivery`` that it applies to. Empty for any.
        option: What it may be.
        fields: The classes and the names of the fields that declare it.
    """

    name: str
    modes: tuple[Mode, ...]
    delivery: str
    option: Option
    fields: tuple[tuple[type[Any], str], ...]

    @property
    def default(self) -> str:
        """The default as text. Empty for none."""
        value = self.option.default
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, enum.Enum):
            return str(value.value)
        if value is None or value == ():
            return ""
        for letter, factor in reversed([*UNITS.get(self.option.unit, {}).items()]):
            if len(letter) == 1 and value and value % factor == 0:
                return f"{value // factor:g}{letter}"
        return f"{value * 1000:g}ms" if self.option.unit == "seconds" else str(value)

    def parse(self, text: str) -> Any:  # noqa: ANN401 - of any option
        """Return the value of a text.

        Raises:
            ConfigError: The value is wrong; the message begins with the option's name.
        """
        return _parsed(self.option, self.name, text)


def wrong(name: str, problem: object) -> ConfigError:
    """Return an error about an option; its message begins with the name."""
    return ConfigError(f"option {name!r}: {problem}")


def exclude(given: Mapping[str, Any], *names: str) -> None:
    """Raise ConfigError if more than one of the options is given."""
    present = [name for name in names if name in given]
    if len(present) > 1:
        raise wrong(present[1], f"cannot be combined with {present[0]!r}: remove one of them")


def camel(name: str) -> str:
    """Return the name of the option for the name of a field."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def in_tls_options(text: str) -> str:
    """Return a text about :class:`TlsConfig` with the names of the options instead of its fields."""
    for part in declared(TlsConfig):
        text = re.sub(rf"\b{part}\b=?", camel(f"tls_{part}"), text)
    return text


# ---------------------------------------------------------------- the table


def known_options(*owners: type[Any]) -> Mapping[str, Known]:
    """Return the options of all classes by name; one of several classes applies to the modes of each."""
    found: dict[str, Known] = {}
    for known in (each for owner in owners for each in _known(owner)):
        other = found.get(known.name)
        if other is not None:
            modes = tuple(dict.fromkeys((*other.modes, *known.modes)))
            known = other._replace(modes=modes, fields=(*other.fields, *known.fields))  # noqa: PLW2901
        found[known.name] = known
    return found


def _known(owner: type[Any]) -> Iterator[Known]:
    for field, declaration in declared(owner).items():
        use = next((note for note in declaration.notes if isinstance(note, For)), None)
        if use is None:
            yield from _known(declaration.group)
        elif declaration.group is None:
            yield from (Known(name, *use, declaration, ((owner, field),)) for name in _names(declaration))
        else:
            yield Known(camel(field), *use, option(field, bool, False), ((owner, field),))
            for part, each in declared(declaration.group).items():
                yield Known(camel(f"{field}_{part}"), *use, each, ((declaration.group, part),))


def _names(declaration: Option) -> tuple[str, ...]:
    return next((note.names for note in declaration.notes if isinstance(note, Names)), (camel(declaration.name),))


# ---------------------------------------------------------------- what a user gave


def spelled(known: Mapping[str, Known], options: Mapping[str, str], mode: Mode) -> dict[str, str]:
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
            logger.warning("option %r of format 'nsq' does not apply to a %s and is ignored", name, mode)
    return given


def field_values(owner: type[Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the fields whose options are given.

    Raises:
        ConfigError: A value is wrong; the message begins with the option's name.
    """
    found: dict[str, Any] = {}
    for field, declaration in declared(owner).items():
        if not any(isinstance(note, For) for note in declaration.notes):
            found[field] = declaration.group(**field_values(declaration.group, given))
        elif declaration.group is not None:
            found[field] = _tls(given)
        elif names := [name for name in _names(declaration) if name in given]:
            value, *others = (_parsed(declaration, name, given[name]) for name in names)
            if any(other != value for other in others):
                raise wrong(names[1], f"has the same meaning as {names[0]!r}, but another value")
            found[field] = value
    return found


def _parsed(declaration: Option, name: str, text: str) -> Any:  # noqa: ANN401 - of any option
    return declaration.from_text(text, f"option {name!r}:")


def _tls(given: Mapping[str, str]) -> TlsConfig | None:
    names = {name: part for part in declared(TlsConfig) if (name := camel(f"tls_{part}")) in given}
    parts = {part: _parsed(declared(TlsConfig)[part], name, given[name]) for name, part in names.items()}
    if _parsed(option("tls", bool), "tls", given.get("tls", "false")):
        try:
            return TlsConfig(**parts)
        except ConfigError as error:
            # The text begins with the field's name.
            name, _, problem = in_tls_options(str(error)).partition(" ")
            raise wrong(name, problem) from error
    if names:
        raise wrong(min(names), "needs tls=true")
    return None
