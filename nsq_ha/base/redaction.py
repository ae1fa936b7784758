"""Keep this process's secrets out of texts from outside.

A server knows the secret that it received, and may send it back in any text: an
error frame, an HTTP answer, a version. Errors and log lines must not contain it.

The invariant: a secret of ``SHORTEST`` characters or more passed to :func:`conceal` does not appear in the results of
:func:`redact`, :func:`beginning` and :func:`excerpt`, neither unchanged nor in a usual
encoding (escaped, percent-encoded, base64, hexadecimal), in upper or lower case.

Secrets are kept out of what programs print of options, too: their ``repr``, ``dataclasses.asdict``, locals of
tracebacks. No frame of ours that checks options holds a secret whose ``repr`` shows it.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, quote_plus

from nsq_ha.base.forks import Mutex

E = TypeVar("E", bound=BaseException)

REDACTED: Final = "***"
"""Replaces a secret."""

SHORTEST: Final = 4
"""Characters, without blanks around them, of the shortest secret that is hidden. A shorter one is in nearly every text,
which would be unreadable, and everybody guesses it."""

MAX_SECRETS: Final = 256
"""Maximum number of secrets; the one that was given least recently is forgotten, so that new tokens every hour cost
neither memory nor time without bound."""

MOST_READ: Final = 16 * 1024
"""Characters that are searched of a text of which only the beginning is shown."""

_secrets: dict[str, dict[str, str]] = {}
"""By secret, the least recently given first: its forms, by what to look for in a folded text. Replaced and not changed,
since other threads read it."""
_changes = 0
"""How often the secrets have changed."""
_lock: Final = Mutex()

_SHORT: Final = 1_000
"""Characters of a text whose result is kept: when an nsqd is away, thousands of publishes fail with the same error."""


def conceal(secret: str | None) -> None:
    """Hide ``secret`` in all later texts. None is ignored, and what is too short to be searched for."""
    global _changes, _secrets  # noqa: PLW0603 - one registry for the process, as servers know no objects of ours
    if secret is None or len(secret.strip()) < SHORTEST or secret == next(reversed(_secrets), None):
        return
    with _lock:
        others = {other: forms for other, forms in _secrets.items() if other != secret}
        kept = list(others.items())[-(MAX_SECRETS - 1) :]
        _secrets = {**dict(kept), secret: {form.casefold(): form for form in _forms(secret)}}
        _changes += 1


def redact(text: str) -> str:
    """Return ``text`` with every secret replaced."""
    if not _secrets:
        return text
    return _kept(text, _changes) if len(text) <= _SHORT else _redacted(text)


@lru_cache(maxsize=64)
def _kept(text: str, changes: int) -> str:
    """Return the result for a text; another number asks for another one."""
    return _redacted(text)


def _redacted(text: str) -> str:
    found = _found(text)
    if not found:
        return text
    # Longest first, since a form may contain another one.
    pattern = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
    return re.sub(pattern, REDACTED, text, flags=re.IGNORECASE)


def _found(text: str) -> set[str]:
    """Return the forms of secrets in ``text``. A search for each takes less time than one pattern of thousands."""
    folded = text.casefold()
    return {form for forms in _secrets.values() for key, form in forms.items() if key in folded}


def beginning(text: str | bytes, most: int, errors: str = "replace") -> str:
    """Return at most ``most`` characters of a text from outside, without secrets; it may have megabytes.

    Secrets are replaced before the text is cut; otherwise part of one could remain.

    Args:
        text: The text, or its UTF-8.
        most: Maximum length.
        errors: How to decode what is not UTF-8.
    """
    if isinstance(text, bytes):
        text = text[: 8 * MOST_READ].decode("utf-8", errors)
    shown = redact(text[:MOST_READ])
    if len(text) > MOST_READ:  # what was read may end within a secret
        longest = max((len(form) for forms in _secrets.values() for form in forms.values()), default=0)
        shown = shown[: max(len(shown) - longest, 0)]
    return shown[:most]


def excerpt(data: bytes, most: int = 64) -> str:
    """Return the beginning of ``data`` as a literal without secrets, for an error message."""
    shown = data[:most]
    if _secrets:
        shown = beginning(data, most, "surrogateescape").encode("utf-8", "surrogateescape")[:most]
    return repr(shown)


def harmless(error: E) -> E | None:
    """Return ``error`` if its traceback shows no secret, otherwise None; for ``raise ... from``."""
    return error if not _secrets or not _found(trace_of(error)) else None


def trace_of(error: BaseException) -> str:
    """Return the traceback of ``error`` and its causes as text, with secrets."""
    return "".join(traceback.format_exception(error))


def _forms(secret: str) -> tuple[str, ...]:
    """Return the forms in which a server may return a secret."""
    secret = str(secret)  # one of the options hides itself from repr()
    data = secret.encode("utf-8", "surrogatepass")
    in_json = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    # Go programs, such as nsqd and most auth servers, escape these three, too.
    in_go = (form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") for form in in_json)
    escaped = (repr(secret)[1:-1], repr(data)[2:-1], secret.encode("unicode_escape").decode(), *in_json, *in_go)
    encoded = (
        base64.b64encode(data).decode().rstrip("="),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        data.hex(),
    )
    return (secret, *escaped, *encoded, quote(data, safe=""), quote_plus(data))


T = TypeVar("T")

SECRETS: Final = ("auth_secret", "key_password")
"""Options whose texts are secret."""


class HiddenText(str):
    """A text whose ``repr`` does not show it; in all else it is that text."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Show nothing."""
        return REDACTED


def hide(options: Mapping[str, object]) -> None:
    """Replace the secrets among options, in place: the frames of callers hold the same dict."""
    kept = cast("dict[str, object]", options)
    for name in SECRETS:
        if isinstance(options.get(name), str):
            kept[name] = HiddenText(kept[name])


def hides_secrets(cls: type[T]) -> type[T]:
    """Let a dataclass take its secrets as hidden texts."""
    names = [each.name for each in dataclasses.fields(cls)]  # type: ignore[arg-type]  # a dataclass
    init: Any = cls.__init__

    @functools.wraps(init)
    def __init__(self: T, *args: object, **options: object) -> None:  # noqa: N807 - it takes the place of that
        hide(options)
        given = dict(zip(names, args, strict=False))
        hide(given)
        args = (*given.values(), *args[len(given) :])
        init(self, *args, **options)

    cls.__init__ = __init__  # type: ignore[method-assign, assignment]  # of the same arguments
    return cls
