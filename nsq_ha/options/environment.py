"""The options of producers and consumers from environment variables and a TOML file.

Owns the names of the variables and keys, and which source wins. ``language`` has the rules of the values. Everything is
derived from the declarations in ``config``, so a new option needs nothing here.

The invariant: an error names the variable, or the key and the file, and never shows a value that may be secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from nsq_ha.errors import ConfigError
from nsq_ha.options import FILE_VARIABLE, LOOKUPD_VARIABLE, PREFIX
from nsq_ha.options.checks import shown
from nsq_ha.options.config import ClientConfig, ConsumerConfig, ProducerConfig
from nsq_ha.options.language import FLAGS, Option, declared
from nsq_ha.options.suggestions import did_you_mean

if TYPE_CHECKING:
    from nsq_ha.options.keywords import AdminOptions

OF_ADMIN: Final = ("lookupd", "lookupd_tls", "tls")
"""The options that an admin client takes, too."""

MAX_FILE_BYTES: Final = 128 * 1024
"""Of the file; a secret alone may have 64 KiB."""

_MAX_DOTS: Final = 500
"""In a line of the file: the time that ``tomllib`` takes grows with the square of the parts of a key."""

_TEST_PREFIX: Final = f"{PREFIX}TEST_"
"""Begins the names of variables for test suites, which are ignored."""

_OF_A_SERVICE: Final = re.compile(r".*_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_.*)?)")
"""The names of variables that Kubernetes sets for a service, such as one with the name nsq-ha-lookupd."""

_TABLES: Final[Mapping[str, type[ClientConfig]]] = {"producer": ProducerConfig, "consumer": ConsumerConfig}
_EITHER: Final = frozenset({"lookupd", "nsqd"})
"""Options that exclude each other."""

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
    """What a source gives for an option: in a variable, a text; in a file, what TOML makes of it."""

    value: Any
    place: str
    is_text: bool = False


_Layer = dict[str, _Given]
"""What one source gives, by the paths of options, such as ``window`` and ``tls.ca_file``."""


# ---------------------------------------------------------------- of this process


def config_from_env(kind: type[_Config], overrides: Mapping[str, object]) -> _Config:
    """Return the options that ``overrides``, the environment of this process and its TOML file give.

    Args:
        kind: The class of the options.
        overrides: Options that win over both.

    Raises:
        ConfigError: The file cannot be read, a name is unknown, a value is wrong, or no address is given.
    """
    return config_of(kind, settings_from_env(kind), overrides)


def admin_from_env(overrides: AdminOptions) -> AdminOptions:
    """Return the arguments of an admin client, as for :func:`config_from_env`.

    Raises:
        ConfigError: As for :func:`config_from_env`.
    """
    found = settings_from_env(ClientConfig).options
    given = {name: found[name] for name in OF_ADMIN if name in found}
    if not given.get("lookupd") and "lookupd" not in overrides:
        raise _no_address()
    return cast("AdminOptions", {**given, **overrides})


def settings_from_env(kind: type[ClientConfig]) -> Settings:
    """Return the options that the environment of this process and its TOML file give.

    Args:
        kind: The class of the options.

    Raises:
        ConfigError: The file cannot be read, a name is unknown, or a value is wrong.
    """
    file = os.environ.get(FILE_VARIABLE, "")
    return settings_of(kind, os.environ, _text_of(file) if file else "", file)


def _text_of(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) <= MAX_FILE_BYTES:
            return content.decode("utf-8-sig")
        reason = f"it has more than {MAX_FILE_BYTES} bytes"
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
        f"no nsqlookupd is given: set {LOOKUPD_VARIABLE}, or lookupd in the file that {FILE_VARIABLE} names"
    )


def settings_of(
    kind: type[ClientConfig],
    environ: Mapping[str, str],
    toml: str = "",
    file: str = "",
) -> Settings:
    """Return the options of ``kind`` that variables and a file give.

    Args:
        kind: The class of the options. Those of other classes are ignored.
        environ: The variables. They win over the file.
        toml: The text of the file.
        file: Its name, for errors.

    Raises:
        ConfigError: The text is not TOML, a key is unknown, a variable is nearly the one of an option, or a value
            is wrong.
    """
    file = shown(file)[1:-1]
    merged: _Layer = {}
    for layer in (*_of_document(kind, _document(toml, file), file), _of_environ(kind, environ)):
        merged = _over(merged, layer)
    settings = Settings({}, {})
    for option in dict.fromkeys(path.partition(".")[0] for path in merged):
        _read(declared(kind)[option], merged, settings)
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


def _read(option: Option, layer: _Layer, settings: Settings) -> None:
    """Add the value of an option, which may consist of several, such as ``tls``."""
    name, given = option.name, layer.get(option.name)
    parts = {path.partition(".")[2]: each for path, each in layer.items() if path.startswith(f"{name}.")}
    if option.group is None:
        value, place = _value(option, layer[name]), layer[name].place
    elif given is not None and not (given.value is True and option.may_be_none):
        _check_off(option, given)
        value, place = None, given.place
    else:
        place = ", ".join(each.place for each in parts.values()) or (given.place if given is not None else name)
        fields = declared(option.group)
        values = {part: _value(fields[part], each) for part, each in parts.items()}
        try:
            value = option.group(**values) if option.default is None else dataclasses.replace(option.default, **values)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
    settings.options[name], settings.places[name] = value, place


def _value(option: Option, given: _Given) -> Any:  # noqa: ANN401 - of any option
    """Return the value that a source gives. TOML has no null, so an empty text means None."""
    if given.value == "" and option.may_be_none:
        return None
    return (option.from_text if given.is_text else option.from_file)(given.value, given.place)


def _check_off(option: Option, given: _Given) -> None:
    """Refuse a single value for an option that consists of several, unless it turns the option off."""
    if option.may_be_none and (given.value is None or given.value is False):
        return
    parts = list(declared(option.group))
    if given.is_text:
        names = ", ".join(_variable(f"{option.name}.{part}") for part in parts)
        wanted = f"has no value of its own: set {names}"
    else:
        wanted = f"must be a table with any of {', '.join(parts)}"
    raise ConfigError(f"{given.place} {wanted}{', or true or false' if option.may_be_none else ''}")


# ---------------------------------------------------------------- names


def _paths(kind: type[ClientConfig]) -> dict[str, Option]:
    """Return the options, and the parts of those that consist of several, by their paths."""
    found: dict[str, Option] = {}
    for name, option in declared(kind).items():
        found[name] = option
        if option.group is not None:
            found |= {f"{name}.{part}": each for part, each in declared(option.group).items()}
    return found


def _all_paths() -> dict[str, Option]:
    return {path: option for kind in _TABLES.values() for path, option in _paths(kind).items()}


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
            layer[path] = _Given(_given(paths[path], text), name, is_text=True)
    return layer


def _given(option: Option, value: object) -> object:
    """Return what a source gives; for an option that consists of several, whether it is on, if a text says that."""
    return FLAGS.get(value.lower(), value or None) if isinstance(value, str) and option.group is not None else value


def _check_unknown(name: str, known: Mapping[str, str]) -> None:
    """Refuse a variable whose name is nearly the one of an option; others may belong to other programs."""
    if not name.startswith(PREFIX) or name.startswith(_TEST_PREFIX) or name == FILE_VARIABLE:
        return
    if _OF_A_SERVICE.fullmatch(name):
        return
    endings = [each.removeprefix(PREFIX) for each in (*known, FILE_VARIABLE)]
    near = difflib.get_close_matches(name.removeprefix(PREFIX), endings, cutoff=_RESEMBLES)
    if near:
        meant = " or ".join(PREFIX + ending for ending in near)
        raise ConfigError(f"unknown environment variable {shown(name)[1:-1]}: did you mean {meant}?")


# ---------------------------------------------------------------- the file


def _document(toml: str, file: str) -> dict[str, Any]:
    if not toml:
        return {}
    if any(line.count(".") > _MAX_DOTS for line in toml.splitlines()):
        raise ConfigError(f"{file} has a line with more than {_MAX_DOTS} dots; write a long list over several lines")
    try:
        return tomllib.loads(toml)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "a value is too large or too deep"
    raise ConfigError(f"{file} is not TOML: {reason}")


def _of_document(kind: type[ClientConfig], document: dict[str, Any], file: str) -> tuple[_Layer, _Layer]:
    """Return what the top of the file gives, and what the table of ``kind`` does."""
    top: dict[str, Any] = {}
    own = _Layer()
    for key, value in document.items():
        owner = _TABLES.get(key)
        if owner is None:
            top[key] = value
        elif not isinstance(value, dict):
            raise ConfigError(f"{key} in {file} must be a table, as in [{key}], not {type(value).__name__}")
        else:
            layer = _of_table(value, _paths(owner), f"{key}.", file)
            own |= layer if kind is owner else {}
    paths = _paths(kind)
    found = _of_table(top, _all_paths(), "", file, tuple(_TABLES))
    return {path: given for path, given in found.items() if path in paths}, own


def _of_table(
    table: dict[str, Any], paths: Mapping[str, Option], before: str, file: str, tables: tuple[str, ...] = ()
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
            layer[path] = _Given(_given(paths[path], each), place)
    return layer
