"""Checks of values that a type and a range do not describe.

Each takes a value and returns it normalised, or raises a ConfigError whose text continues the name of the option.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, cast

from nsq_ha.errors import ConfigError
from nsq_ha.events import Event
from nsq_ha.options.checks import check_partition, check_topic, is_host_name, is_ip, is_whole, shown

MAX_LABEL_BYTES: Final = 255
"""Maximum length of a name that nsqd only shows in its statistics."""

MAX_SECRET_BYTES: Final = 64 * 1024
"""Maximum length of ``auth_secret``; nsqd passes it on in a URL, and servers refuse longer ones."""

MAX_HEADER_BYTES: Final = 65535
"""Maximum length of an extension header, and so of a name in it."""

SecretFunction = Callable[[], str | Awaitable[str]]
"""Returns the present secret for AUTH."""

EventFunction = Callable[[Event], object]
"""Takes the events of a client."""


# ---------------------------------------------------------------- texts


def utf8(most: int, when_empty: str) -> Callable[[object], str]:
    """Return a check for text of 1 to ``most`` bytes; ``when_empty`` says what to give instead of an empty one."""

    def check(value: object) -> str:
        size = len(_encoded(value))
        if size == 0:
            raise ConfigError(f"must not be empty: {when_empty}")
        if size > most:
            raise ConfigError(f"must have at most {most} bytes, not {size}")
        return cast("str", value)  # as it is, which may be hidden

    return check


def _encoded(value: object) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"must be a str, not {type(value).__name__}")  # without the value, which may be secret
    try:
        return value.encode()
    except UnicodeEncodeError:
        problem = "must be text that UTF-8 can encode; it contains surrogates"
    raise ConfigError(problem)


def label(value: object) -> str:
    """Check a short text that terminals and log viewers can show; it may be empty."""
    size = len(_encoded(value))
    if not str(value).isprintable():
        raise ConfigError(f"must contain no control characters, not {shown(value)}")
    if size > MAX_LABEL_BYTES:
        raise ConfigError(f"must have at most {MAX_LABEL_BYTES} bytes, not {size}")
    return str(value)


def file_name(value: object) -> str:
    """Check the name of a file, given as text or as a path."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise ConfigError(f"must be a str, not {type(path).__name__}")
    if not path:
        raise ConfigError("must not be empty: leave it out for no file")
    return path


def certificate_name(value: object) -> str:
    """Check the name that a certificate must contain."""
    _encoded(value)
    if not is_host_name(str(value)) and not is_ip(str(value)):
        raise ConfigError(f"{value!r} is not valid: give a host name, or an IP address without brackets")
    return str(value)


def source_host(value: object) -> str:
    """Return the host of a source address, which is given as a host or as ``(host, 0)``."""
    host = value
    if isinstance(value, tuple | list) and len(value) == 2:
        host, port = value
        if not is_whole(port) or port != 0:
            raise ConfigError("must have port 0, since each connection needs one of its own")
    if not isinstance(host, str) or not (is_ip(host) or is_host_name(host)):
        wanted = "an IP address without brackets or a host name of this machine, or a pair of that and 0"
        raise ConfigError(f"must be {wanted}, not {shown(value)}")
    return host


def skipped_headers(value: object) -> str | Mapping[str, object]:
    """Check the name of a header, or names with their values."""
    names = value if isinstance(value, Mapping) else (value,)
    if not names:
        raise ConfigError("names no header: give None to skip nothing")
    for each in names:
        if not isinstance(each, str):
            wanted = "the name of a header, or a mapping from names to values"
            raise ConfigError(f"must be {wanted}, not {shown(value)}")
        _header(each)
    return dict(value) if isinstance(value, Mapping) else str(value)


_header: Final = utf8(MAX_HEADER_BYTES, "None skips nothing")


# ---------------------------------------------------------------- functions

secret_text: Final = utf8(MAX_SECRET_BYTES, "leave it out for servers that do not ask for AUTH")
"""Checks a secret; errors do not show it."""


def secret(value: object) -> str | SecretFunction:
    """Check a secret, or a function that returns it."""
    if not callable(value):
        return secret_text(value)
    try:
        inspect.signature(value).bind()
    except TypeError:
        raise ConfigError("must be text, or a function without arguments") from None
    except ValueError:  # some built-in functions have no signature
        pass
    found: SecretFunction = value
    return found


def plain_function(value: Any) -> EventFunction:  # noqa: ANN401 - any value may be given
    """Check a function that takes an event, and is not awaited."""
    if not callable(value):
        raise ConfigError(f"must be a function or None, not {shown(value)}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise ConfigError("must be a plain function (def): it is called in the event loop and not awaited")
    if any(map(inspect.isgeneratorfunction, (value, type(value).__call__))):
        raise ConfigError("must be a plain function, not a generator, which would never run")
    check_takes_one(value, "must take one argument, the event")
    found: EventFunction = value
    return found


def check_takes_one(function: Callable[..., object], problem: str) -> None:
    """Check that a function can be called with one argument.

    Raises:
        ConfigError: It cannot; the text begins with ``problem``.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise ConfigError(f"{problem}; {name}{signature} does not: {error}") from None


# ---------------------------------------------------------------- topics and partitions


def traced_topics(value: object) -> frozenset[str]:
    """Return one topic or several as a set."""
    if isinstance(value, bool) or not isinstance(value, Iterable):
        raise ConfigError(f"must be True, False or topics, not {shown(value)}")
    topics: Iterable[object] = (value,) if isinstance(value, str) else value
    return frozenset(map(check_topic, topics))


def distinct_partitions(value: object) -> tuple[int, ...]:
    """Return partitions, sorted."""
    if not isinstance(value, Iterable):
        raise ConfigError(f"must be partitions, such as [0, 2], not {shown(value)}")
    numbers = sorted(map(check_partition, value))
    for one, following in itertools.pairwise(numbers):
        if one == following:
            raise ConfigError(f"names partition {one} twice: name each one once")
    return tuple(numbers)
