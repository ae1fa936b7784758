"""Checks of one option each, in the words of one kind of error: the option, what it may be, what it is.

What each option may be is ``config``'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeGuard, TypeVar

from nsq_ha.errors import ConfigError

MAX_INT64: Final = 2**63 - 1
"""Largest number that the server reads."""

MAX_SECONDS: Final = MAX_INT64 // 10**9
"""Largest time and delay that mean the same to the server, which counts nanoseconds: later than the year 2261."""

_T = TypeVar("_T")


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether ``value`` is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def in_range(config: object, name: str, low: float, high: float) -> None:
    """Check that an option is a number of a range.

    Raises:
        ConfigError: It is not.
    """
    value = getattr(config, name)
    if not is_number(value) or not low <= value <= high:
        raise ConfigError(f"{name} must be {low}..{high}, not {value!r}")


def count_in_range(config: object, name: str, low: int, high: int) -> None:
    """Check that an option is an int of a range.

    Raises:
        ConfigError: It is not.
    """
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number, {low}..{high}, not {value!r}")


def is_a(config: object, name: str, kind: type, *others: None) -> None:
    """Check the type of an option; its value is not shown, since it may be secret.

    Raises:
        ConfigError: It has another.
    """
    value = getattr(config, name)
    if not (isinstance(value, kind) or (others and value is None)):
        raise ConfigError(f"{name} must be a {kind.__name__}{' or None' * len(others)}, not {type(value).__name__}")


def text(config: object, name: str, *others: None) -> None:
    """Check that an option is text that UTF-8 can carry; its value is not shown, since it may be secret.

    Raises:
        ConfigError: It is not text, or holds surrogates, for example from ``surrogateescape``.
    """
    is_a(config, name, str, *others)
    value = getattr(config, name)
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be text that UTF-8 can carry; it holds surrogates") from None


def function(config: object, name: str) -> None:
    """Check that an option is a function or None.

    Raises:
        ConfigError: It is neither.
    """
    value = getattr(config, name)
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function or None, not {value!r}")


def file_name(config: object, name: str) -> str | None:
    """Return an option that names a file as text; None for none.

    Raises:
        ConfigError: It is neither a str nor a path.
    """
    value = getattr(config, name)
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is not None and not isinstance(path, str):
        raise ConfigError(f"{name} must be a str or None, not {type(value).__name__}")
    return path


def one_of(config: object, name: str, allowed: tuple[object, ...]) -> None:
    """Check that an option is one of some values.

    Raises:
        ConfigError: It is none of them.
    """
    value = getattr(config, name)
    if value not in allowed:
        words = ", ".join(entry for entry in allowed if isinstance(entry, str))
        raise ConfigError(f"{name} must be one of {words} (or as documented), not {value!r}")


def iterable(config: object, name: str) -> Any:  # noqa: ANN401 - what it holds is checked by the caller
    """Return an option that holds several values, not looking at these.

    Raises:
        ConfigError: It does not.
    """
    value = getattr(config, name)
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be one or several in a sequence, not {value!r}")
    return value


def named(name: str, check: Callable[[object], _T], value: object) -> _T:
    """Return what ``check`` returns; its error says which option it is about.

    Raises:
        ConfigError: ``check`` raised it.
    """
    try:
        return check(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
