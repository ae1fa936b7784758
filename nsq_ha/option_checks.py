"""Rules for single options: what one may be, and the error that says so.

A rule is called with the name and the value of an option. It returns the normalised value, or raises a ConfigError
that names the option, what it may be, and what it is. ``config`` lists the rule of each option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, TypeVar

from nsq_ha.errors import ConfigError

MAX_INT64: Final = 2**63 - 1
"""Largest number that the server reads."""

MAX_SECONDS: Final = MAX_INT64 // 10**9
"""Largest time and delay that mean the same to the server, which counts nanoseconds: later than the year 2261."""

MAX_SECRET_BYTES: Final = 64 * 1024
"""Maximum length of ``auth_secret``; nsqd passes it on in a URL, which no server takes when it is longer."""

_SHOWN: Final = 80

Rule = Callable[[str, Any], Any]
"""Takes the name and the value of an option; returns the normalised value or raises ConfigError."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Check:
    """A rule that changes nothing.

    Attributes:
        wanted: Completes "must be ..." in the error.
        allows: Returns whether a value is legal.
        is_shown: False for values that may be secret; then the error shows only their type.
    """

    wanted: str
    allows: Callable[[Any], bool]
    is_shown: bool = True

    def __call__(self, name: str, value: Any) -> Any:  # noqa: ANN401 - any value may be given
        """Return ``value`` if it is legal.

        Raises:
            ConfigError: It is not.
        """
        if not self.allows(value):
            found = shown(value) if self.is_shown else type(value).__name__
            raise ConfigError(f"{name} must be {self.wanted}, not {found}")
        return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is an int; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return ``value`` as a short literal."""
    try:
        found = repr(value)
    except Exception:  # noqa: BLE001 - Python prints no int of more than 4300 digits, and a repr may raise anything
        found = f"a {type(value).__name__}"
    return found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    import difflib  # noqa: PLC0415 - only errors need it

    near = difflib.get_close_matches(name.lower(), list(known)) if isinstance(name, str) else []
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""


def number(low: float, high: float) -> Rule:
    """Allow numbers of a range."""
    return Check(f"{low:g}..{high:g}", lambda value: is_number(value) and low <= value <= high)


def seconds(low: float, high: float) -> Rule:
    """Allow times of a range."""
    return Check(f"{low:g}..{high:g} seconds", lambda value: is_number(value) and low <= value <= high)


def whole(low: int, high: int) -> Rule:
    """Allow whole numbers of a range."""
    return Check(f"a whole number, {low}..{high}", lambda value: is_whole(value) and low <= value <= high)


def instance_of(kind: type) -> Rule:
    """Allow instances of ``kind``; errors do not show the value, since it may be secret."""
    return Check(f"a {kind.__name__}", lambda value: isinstance(value, kind), is_shown=False)


def optional(rule: Rule) -> Rule:
    """Allow None, too."""
    return lambda name, value: None if value is None else rule(name, value)


def one_of(*words: str, function: bool = False) -> Rule:
    """Allow some words, and functions if ``function``; errors name the words that resemble a wrong one."""
    names = [*map(repr, words), *(["a function"] if function else [])]
    wanted = f"{', '.join(names[:-1])} or {names[-1]}"

    def check(name: str, value: Any) -> Any:  # noqa: ANN401 - any value may be given
        if value in words or (function and callable(value)):
            return value
        raise ConfigError(f"{name} must be {wanted}, not {shown(value)}{did_you_mean(value, words)}")

    return check


def text(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return text that UTF-8 can carry; errors do not show it, since it may be secret.

    Raises:
        ConfigError: It is not text, or holds surrogates, for example from ``surrogateescape``.
    """
    found: str = instance_of(str)(name, value)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be text that UTF-8 can carry; it holds surrogates") from None
    return found


def text_of(most: int, when_empty: str) -> Rule:
    """Allow text of 1 to ``most`` bytes; ``when_empty`` says what to give in the place of an empty one."""

    def check(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
        size = len(text(name, value).encode())
        if size == 0:
            raise ConfigError(f"{name} must not be empty: {when_empty}")
        if size > most:
            raise ConfigError(f"{name} must have at most {most} bytes, not {size}")
        return str(value)

    return check


def file_name(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return the name of a file, given as text or as a path.

    Raises:
        ConfigError: It is neither, or empty.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    found: str = instance_of(str)(name, path)
    if not found:
        raise ConfigError(f"{name} must not be empty: None for no file")
    return found


def several(name: str, value: Any) -> Iterable[Any]:  # noqa: ANN401 - any value may be given
    """Return an iterable, without a look at what it holds.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be one or several in a sequence, not {shown(value)}")
    return value


def named(name: str, check: Callable[[object], _T], value: object) -> _T:
    """Return what ``check`` returns; its error begins with the option's name.

    Raises:
        ConfigError: ``check`` raised it.
    """
    try:
        return check(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
