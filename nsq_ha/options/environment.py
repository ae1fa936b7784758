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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from nsq_ha.errors import ConfigError
from nsq_ha.options import FILE_VARIABLE, LOOKUPD_VARIABLE, PREFIX
from nsq_ha.options.checks import shown
from nsq_ha.options.config import ClientConfig, ConsumerConfig, ProducerConfig
from nsq_ha.options.language import FLAGS, Option, declared, did_you_mean

if TYPE_CHECKING:
    from nsq_ha.options.keywords import AdminOptions

OF_ADMIN: Final = ("lookupd", "lookupd_tls", "tls")
"""The options that an admin client takes, too."""

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
"""What one source gives, by the names of options, and of the parts of those that consist of several (``tls.ca_file``).

The name of such an option itself has what turns it on or off."""


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
        return Path(file).read_text("utf-8-sig")
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
    merged: _Layer = {}
    for layer in (*_of_document(kind, toml, shown(file)[1:-1]), _of_environ(environ)):
        names = set(map(_option_of, layer))
        replaced = names | _EITHER if names & _EITHER else names
        off = {name for name, given in layer.items() if not _is_on(given)}
        weaker = {path: given for path, given in merged.items() if path not in replaced and _option_of(path) not in off}
        merged = weaker | layer
    settings, known = Settings({}, {}), declared(kind)
    for name in dict.fromkeys(map(_option_of, merged)):
        if name in known:
            settings.options[name], settings.places[name] = _read(known[name], merged)
    return settings


def _option_of(path: str) -> str:
    return path.partition(".")[0]


def _read(option: Option, layer: _Layer) -> tuple[object, str]:
    """Return the value of an option, and where it stands."""
    single = layer.get(option.name)
    if single is not None and not (option.group and _is_on(single) and (option.may_be_none or single.value == {})):
        return _value(option, single), single.place
    fields = declared(option.group)
    given = {part: layer[path] for part in fields if (path := f"{option.name}.{part}") in layer}
    place = ", ".join(each.place for each in given.values()) or layer[option.name].place
    values = {part: _value(fields[part], each) for part, each in given.items()}
    try:
        found = option.group(**values) if option.default is None else dataclasses.replace(option.default, **values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return found, place


def _value(option: Option, given: _Given) -> Any:  # noqa: ANN401 - of any option
    """Return the value that a source gives. TOML has no null, so an empty text means None."""
    if option.may_be_none and (given.value == "" or (option.group and _flag(given) is False)):
        return None
    if option.group is None:
        return (option.from_text if given.is_text else option.from_file)(given.value, given.place)
    parts = list(declared(option.group))
    names = ", ".join(_variable(f"{option.name}.{part}") for part in parts)
    wanted = f"has no value of its own: set {names}"
    if not given.is_text:
        wanted = f"must be a table with any of {', '.join(parts)}"
    raise ConfigError(f"{given.place} {wanted}{', or true or false' if option.may_be_none else ''}")


def _is_on(given: _Given) -> bool:
    return given.value == {} or _flag(given) is True


def _flag(given: _Given) -> object:
    return FLAGS.get(given.value.lower()) if isinstance(given.value, str) else given.value


# ---------------------------------------------------------------- sources


def _all_options() -> dict[str, Option]:
    return {name: option for kind in _TABLES.values() for name, option in declared(kind).items()}


def _paths(options: Mapping[str, Option]) -> Iterator[str]:
    """Return the names of options, and of the parts of those that consist of several, as in ``tls.ca_file``."""
    for name, option in options.items():
        yield name
        yield from (f"{name}.{part}" for part in (declared(option.group) if option.group else ()))


def _variable(path: str) -> str:
    return PREFIX + path.replace(".", "_").upper()


def _of_environ(environ: Mapping[str, str]) -> _Layer:
    layer, known = _Layer(), {_variable(path): path for path in _paths(_all_options())}
    for variable, text in environ.items():
        if variable in known:
            layer[known[variable]] = _Given(text, variable, is_text=True)
        else:
            _check_unknown(variable, known)
    return layer


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


def _of_document(kind: type[ClientConfig], toml: str, file: str) -> tuple[_Layer, _Layer]:
    """Return what the top of the file gives, and what the table of ``kind`` does."""
    reason = "a value is too large or too deep"
    try:
        document = tomllib.loads(toml)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else reason
        document = None
    if document is None:  # not in the clause above: a kept error would hold the text
        raise ConfigError(f"{file} is not TOML: {reason}")
    layers: dict[type[ClientConfig] | None, _Layer] = {}
    for key, owner in _TABLES.items():
        table = document.pop(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{key} in {file} must be a table, as in [{key}], not {type(table).__name__}")
        layers[owner] = _of_table(table, declared(owner), f"{key}.", file)
    return _of_table(document, _all_options(), "", file), layers.get(kind, {})


def _of_table(table: dict[str, Any], options: Mapping[str, Option], before: str, file: str) -> _Layer:
    layer = _Layer()
    known = list(_paths(options))
    for key, value in table.items():
        is_group = key in options and options[key].group is not None and isinstance(value, dict) and value
        for path, each in (
            {f"{key}.{part}": each for part, each in value.items()}.items() if is_group else ((key, value),)
        ):
            if path not in known:
                hint = did_you_mean(path, (*known, *(() if before else _TABLES)))
                hint = hint or f"; known are: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown option {shown(before + path)} in {file}{hint}")
            layer[path] = _Given(each, f"{before}{path} in {file}")
    return layer
