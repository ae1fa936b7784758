"""The options of producers and consumers from environment variables and a TOML file.

Owns the names of the variables and keys, how a text becomes a value, and which source wins. ``config`` has the rules
of the values. Everything is derived from the fields of the dataclasses, so a new option needs nothing here.

A file may have contexts, one for each cluster: ``[contexts.prod]`` holds what the whole file may hold.

The invariant: an error names the variable, or the key and the file, and never shows a value that may be secret.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from nsq_ha.checks import did_you_mean, own_name, shown
from nsq_ha.config import ClientConfig, ConsumerConfig, ProducerConfig, check_option
from nsq_ha.errors import ConfigError
from nsq_ha.options import AdminOptions
from nsq_ha.start_from import StartFrom, start_at

PREFIX: Final = "NSQ_HA_"
"""Begins the names of all variables."""

FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Names the TOML file."""

CONTEXT_VARIABLE: Final = f"{PREFIX}CONTEXT"
"""Names the context in the file."""

_CONTEXTS: Final = "contexts"
"""The table of the file that holds the contexts."""

_TEST_PREFIX: Final = f"{PREFIX}TEST_"
"""Begins the names of variables for test suites, which are ignored."""

_TABLES: Final[Mapping[str, type[ClientConfig]]] = {"producer": ProducerConfig, "consumer": ConsumerConfig}
_EITHER: Final = frozenset({"lookupd", "nsqd"})
"""Options that exclude each other."""

_FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,100}")
_RESEMBLES: Final = 0.75
"""Likeness to the variable of an option from which an unknown variable counts as misspelt."""

_Config = TypeVar("_Config", bound=ClientConfig)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that variables and a file give.

    Attributes:
        options: Values by the names of the options.
        places: By the same names, where the value stands: a variable, or a key and the file.
    """

    options: dict[str, object] = field(repr=False)
    places: dict[str, str]


class _Given(NamedTuple):
    value: object
    place: str


_Layer = dict[str, _Given]
"""What one source gives, by the paths of options, such as ``window`` and ``tls.ca_file``."""


# ---------------------------------------------------------------- of this process


def config_from_env(kind: type[_Config], overrides: Mapping[str, object], context: str | None = None) -> _Config:
    """Return the options that ``overrides``, the environment of this process and its TOML file give.

    Args:
        kind: The class of the options.
        overrides: Options that win over both.
        context: As for :func:`settings_of`.

    Raises:
        ConfigError: The file cannot be read, a name is unknown, a value is wrong, or no address is given.
    """
    return config_of(kind, settings_from_env(kind, context), overrides)


def admin_from_env(overrides: AdminOptions, context: str | None = None) -> AdminOptions:
    """Return the arguments of an admin client, as for :func:`config_from_env`.

    Raises:
        ConfigError: As for :func:`config_from_env`.
    """
    found = settings_from_env(ClientConfig, context).options
    given = {name: found[name] for name in AdminOptions.__annotations__ if name in found}
    if not given.get("lookupd") and "lookupd" not in overrides:
        raise _no_address()
    return cast("AdminOptions", {**given, **overrides})


def settings_from_env(kind: type[ClientConfig], context: str | None = None) -> Settings:
    """Return the options that the environment of this process and its TOML file give.

    Args:
        kind: The class of the options.
        context: As for :func:`settings_of`.

    Raises:
        ConfigError: The file cannot be read, a name is unknown, or a value is wrong.
    """
    file = os.environ.get(FILE_VARIABLE, "")
    return settings_of(kind, os.environ, _text_of(file) if file else "", file, context=context)


def context_names() -> tuple[str, ...]:
    """Return the contexts of the file of this process, sorted.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    file = os.environ.get(FILE_VARIABLE, "")
    return tuple(sorted(_contexts(_document(_text_of(file), file), file))) if file else ()


def _text_of(file: str) -> str:
    try:
        return Path(file).read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "it is not encoded as UTF-8"
    except ValueError:
        reason = "this is no legal name"
    raise ConfigError(f"{FILE_VARIABLE} names the file {shown(file)}, which cannot be read: {reason}")


# ---------------------------------------------------------------- pure


def config_of(kind: type[_Config], settings: Settings, overrides: Mapping[str, object]) -> _Config:
    """Return ``overrides``, completed by ``settings``, as one object.

    Raises:
        ConfigError: An override is wrong, options do not fit each other, or no address is given.
    """
    hidden = {*overrides, *(_EITHER if _EITHER & overrides.keys() else ())}
    given = {name: value for name, value in settings.options.items() if name not in hidden}
    places = [settings.places[name] for name in given]
    try:
        config = kind.of({**given, **overrides})
    except ConfigError as error:
        if not places or _error_of(kind, overrides) == str(error):
            raise
        raise ConfigError(f"{error} (also set: {', '.join(places)})") from None
    if not config.lookupd and not config.nsqd:
        raise _no_address()
    return config


def _error_of(kind: type[ClientConfig], options: Mapping[str, object]) -> str | None:
    try:
        kind.of(options)
    except ConfigError as error:
        return str(error)
    return None


def _no_address() -> ConfigError:
    return ConfigError(
        f"no nsqlookupd is given: set {PREFIX}LOOKUPD, or lookupd in the file that {FILE_VARIABLE} names"
    )


def settings_of(
    kind: type[ClientConfig],
    environ: Mapping[str, str],
    toml: str = "",
    file: str = "",
    *,
    context: str | None = None,
) -> Settings:
    """Return the options of ``kind`` that variables and a file give.

    A context wins over the rest of the file. If the variable ``NSQ_HA_CONTEXT`` names it, the other variables win over
    it; if ``context`` does, it wins over them, since an address left in the environment must not change which cluster
    is meant.

    Args:
        kind: The class of the options. Those of other classes are ignored.
        environ: The variables. They win over the file.
        toml: The text of the file.
        file: Its name, for errors.
        context: The context in the file. None for the one that the variables name, if any.

    Raises:
        ConfigError: The text is not TOML, a key is unknown, a variable is nearly the one of an option, a value is
            wrong, or there is no such context.
    """
    file = shown(file)[1:-1]
    document = _document(toml, file)
    contexts = _contexts(document, file)
    document.pop(_CONTEXTS, None)
    name = context or environ.get(CONTEXT_VARIABLE)
    top = _of_document(kind, document, file)
    own = _of_document(kind, _chosen(contexts, name, file), file, f"{_CONTEXTS}.{name}.") if name else ()
    variables = _of_environ(kind, environ)
    merged: _Layer = {}
    for layer in (*top, *((variables, *own) if context else (*own, variables))):
        merged = _over(merged, layer)
    settings = Settings({}, {})
    for name in dict.fromkeys(path.partition(".")[0] for path in merged):
        group = _group_of(_types(kind)[name])
        given = merged[name] if group is None else _as_group(kind, name, group, merged)
        settings.options[name] = check_option(kind, name, given.value, given.place)
        settings.places[name] = given.place
    return settings


def _over(weaker: _Layer, stronger: _Layer) -> _Layer:
    """Return both layers as one."""
    merged: _Layer = {}
    for path, given in weaker.items():
        name, _, part = path.partition(".")
        is_replaced = path in stronger or (path in _EITHER and not _EITHER.isdisjoint(stronger))
        is_off = part and name in stronger and stronger[name].value is not True
        is_refined = not part and any(other.startswith(f"{name}.") for other in stronger)
        if not (is_replaced or is_off or is_refined):
            merged[path] = given
    return merged | stronger


def _as_group(kind: type[ClientConfig], name: str, group: type[Any], layer: _Layer) -> _Given:
    """Return an option that consists of several values, such as ``tls``."""
    default = getattr(kind(), name)
    whole = layer.get(name)
    may_be_none = types.NoneType in _types(kind)[name]
    if whole is not None and (whole.value is not True or not may_be_none):
        if may_be_none and (whole.value is None or whole.value is False):
            return _Given(None, whole.place)
        parts = [entry.name for entry in dataclasses.fields(group)]
        if whole.place.startswith(PREFIX):
            wanted = f"has no value of its own: set {', '.join(_variable(f'{name}.{part}') for part in parts)}"
        else:
            wanted = f"must be a table with any of {', '.join(parts)}"
        raise ConfigError(f"{whole.place} {wanted}{', or true or false' if may_be_none else ''}")
    given = {path.partition(".")[2]: each for path, each in layer.items() if path.startswith(f"{name}.")}
    place = ", ".join(each.place for each in given.values()) or (whole.place if whole is not None else name)
    values = {part: each.value for part, each in given.items()}
    try:
        return _Given(group(**values) if default is None else dataclasses.replace(default, **values), place)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


# ---------------------------------------------------------------- names and types


def _types(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field of a dataclass may have."""
    return {
        name: typing.get_args(hint) if isinstance(hint, types.UnionType) or _is(hint, typing.Union) else (hint,)
        for name, hint in typing.get_type_hints(kind).items()
        if name in {entry.name for entry in dataclasses.fields(kind)}
    }


def _is(hint: object, origin: object) -> bool:
    return typing.get_origin(hint) is origin


def _group_of(alternatives: tuple[Any, ...]) -> type[Any] | None:
    """Return the dataclass whose fields an option consists of; None for a single value."""
    for hint in alternatives:
        if isinstance(hint, type) and dataclasses.is_dataclass(hint) and hint is not StartFrom:
            return hint
    return None


def _paths(kind: type[ClientConfig]) -> dict[str, tuple[Any, ...]]:
    """Return the path of each value, and the types that it may have; a whole group is a switch."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, alternatives in _types(kind).items():
        group = _group_of(alternatives)
        if group is None:
            found[name] = alternatives
        else:
            found[name] = (bool, types.NoneType)
            found |= {f"{name}.{part}": hints for part, hints in _types(group).items()}
    return found


def _all_paths() -> dict[str, tuple[Any, ...]]:
    return {path: hints for kind in _TABLES.values() for path, hints in _paths(kind).items()}


def _variable(path: str) -> str:
    return PREFIX + path.replace(".", "_").upper()


# ---------------------------------------------------------------- variables


def _of_environ(kind: type[ClientConfig], environ: Mapping[str, str]) -> _Layer:
    known = {_variable(path): path for path in _all_paths()}
    paths, layer = _paths(kind), _Layer()
    for name, text in environ.items():
        path = known.get(name)
        if path is None:
            _check_unknown(name, known)
        elif path in paths:
            layer[path] = _Given(_from_text(text, paths[path], name), name)
    return layer


def _check_unknown(name: str, known: Mapping[str, str]) -> None:
    """Refuse a variable whose name is nearly the one of an option; others may belong to other programs."""
    if not name.startswith(PREFIX) or name.startswith(_TEST_PREFIX) or name in (FILE_VARIABLE, CONTEXT_VARIABLE):
        return
    own = f"{PREFIX}{own_name(name.removeprefix(PREFIX)) or ''}".upper()
    endings = [each.removeprefix(PREFIX) for each in (*known, FILE_VARIABLE, CONTEXT_VARIABLE)]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), endings, cutoff=_RESEMBLES)
    if own in known:
        near = [own.removeprefix(PREFIX)]
    if near:
        meant = " or ".join(PREFIX + ending for ending in near)
        raise ConfigError(f"unknown environment variable {shown(name)[1:-1]}: did you mean {meant}?")


def _from_text(text: str, alternatives: tuple[Any, ...], place: str) -> object:
    """Return the value that a text means. What is none remains a text, which the rule of the option refuses."""
    if not text and types.NoneType in alternatives:
        return None
    if StartFrom in alternatives:
        pairs = [item.partition("=") for item in text.split(",")]
        return _start({key: at for key, _, at in pairs} if "=" in text else text, place)
    found = _plain_value(text, alternatives, place)
    if found is text:
        for hint in alternatives:
            if _is(hint, tuple) or _is(hint, frozenset):
                items = typing.get_args(hint)[:1]
                return tuple(_plain_value(item.strip(), items, place) for item in text.split(",")) if text else ()
    return found


def _plain_value(text: str, alternatives: tuple[Any, ...], place: str) -> object:
    """Return a word, a flag or a number; ``text`` itself if it is none that the option may have."""
    if any(text in typing.get_args(hint) for hint in alternatives if _is(hint, Literal)):
        return text
    if bool in alternatives and text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    if int in alternatives and _WHOLE.fullmatch(text):
        return int(text)
    if float in alternatives:
        with contextlib.suppress(ValueError):
            return float(text)
    if alternatives == (bool,):
        raise ConfigError(f"{place} must be true or false")
    return text


def _start(value: object, place: str) -> object:
    """Return a start position, or those of partitions."""
    if not isinstance(value, dict):
        return start_at(place, value)
    return {int(key) if _WHOLE.fullmatch(key.strip()) else key: start_at(place, at) for key, at in value.items()}


# ---------------------------------------------------------------- the file


def _document(toml: str, file: str) -> dict[str, Any]:
    if not toml:
        return {}
    try:
        return tomllib.loads(toml)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a value is too large or too deep"
    raise ConfigError(f"{file} is not TOML: {reason}")


def _contexts(document: dict[str, Any], file: str) -> dict[str, Any]:
    found = document.get(_CONTEXTS, {})
    if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
        return found
    raise ConfigError(f"{_CONTEXTS} in {file} must hold tables, as in [{_CONTEXTS}.prod]")


def _chosen(contexts: dict[str, Any], name: str, file: str) -> dict[str, Any]:
    if name in contexts:
        chosen: dict[str, Any] = contexts[name]
        return chosen
    missing = f"there is no context {shown(name)}"
    if not file:
        raise ConfigError(f"{missing}: set {FILE_VARIABLE} to a TOML file that has [{_CONTEXTS}.NAME] tables")
    if not contexts:
        raise ConfigError(f"{missing}: {file} has no [{_CONTEXTS}.NAME] tables")
    raise ConfigError(f"{missing}: {file} has {', '.join(shown(each)[1:-1] for each in sorted(contexts))}")


def _of_document(
    kind: type[ClientConfig], document: dict[str, Any], file: str, before: str = ""
) -> tuple[_Layer, _Layer]:
    """Return what the top of the file, or of a context, gives, and what the table of ``kind`` there does."""
    before = shown(before)[1:-1]
    top: dict[str, Any] = {}
    own = _Layer()
    for key, value in document.items():
        owner = _TABLES.get(key)
        if owner is None:
            top[key] = value
        elif not isinstance(value, dict):
            place = before + key
            raise ConfigError(f"{place} in {file} must be a table, as in [{place}], not {type(value).__name__}")
        else:
            layer = _of_table(value, _paths(owner), f"{before}{key}.", file)
            own |= layer if kind is owner else {}
    paths, tables = _paths(kind), (*_TABLES, *(() if before else (_CONTEXTS,)))
    found = _of_table(top, _all_paths(), before, file, tables)
    return {path: given for path, given in found.items() if path in paths}, own


def _of_table(
    table: dict[str, Any], paths: Mapping[str, tuple[Any, ...]], before: str, file: str, tables: tuple[str, ...] = ()
) -> _Layer:
    layer = _Layer()
    for key, value in table.items():
        is_group = isinstance(value, dict) and any(path.startswith(f"{key}.") for path in paths)
        parts = {f"{key}.{part}": each for part, each in value.items()} if is_group else {key: value}
        for path, each in (parts or {key: True}).items():
            place = f"{before}{path} in {file}"
            if path not in paths:
                hint = did_you_mean(path, (*paths, *tables)) or f"; known are: {', '.join(sorted(paths))}"
                raise ConfigError(f"unknown option {shown(before + path)} in {file}{hint}")
            layer[path] = _Given(_from_toml(each, paths[path], place), place)
    return layer


def _from_toml(value: object, alternatives: tuple[Any, ...], place: str) -> object:
    if value == "" and types.NoneType in alternatives:  # TOML has no null
        return None
    return _start(value, place) if StartFrom in alternatives else value
