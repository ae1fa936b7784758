"""Keep this process's secrets out of texts from outside.

A server knows the secret that it received, and may send it back in any text: an
error frame, an HTTP answer, a version. Errors and log lines must not contain it.

The invariant: a secret passed to :func:`conceal` does not appear in the results of
:func:`redact` and :func:`excerpt`, neither unchanged nor in a usual encoding
(escaped, percent-encoded, base64, hexadecimal), in upper or lower case.
"""

from __future__ import annotations

import base64
import json
import re
import traceback
from typing import Final, TypeVar
from urllib.parse import quote, quote_plus

from nsq_ha.forks import Mutex

E = TypeVar("E", bound=BaseException)

REDACTED: Final = "***"
"""Replaces a secret."""

MAX_SECRETS: Final = 1000
"""Maximum number of secrets; the oldest is forgotten, so that new tokens every hour do not fill the memory."""

_secrets: Final[dict[str, tuple[str, ...]]] = {}
_lock: Final = Mutex()
_pattern: re.Pattern[str] | None = None


def conceal(secret: str | None) -> None:
    """Hide ``secret`` in all later texts. None and an empty secret are ignored."""
    global _pattern  # noqa: PLW0603 - one registry for the process, as servers know no objects of ours
    if not secret or secret in _secrets:
        return
    with _lock:
        while len(_secrets) >= MAX_SECRETS:
            del _secrets[next(iter(_secrets))]
        forms = _forms(secret)
        # Longest first, since a form may contain another one.
        all_forms = sorted({form for each in (*_secrets.values(), forms) for form in each}, key=len, reverse=True)
        _pattern = re.compile("|".join(map(re.escape, all_forms)), re.IGNORECASE)
        _secrets[secret] = forms  # last: who finds it here, in another thread or a forked child, relies on the pattern


def redact(text: str) -> str:
    """Return ``text`` with every secret replaced."""
    return text if _pattern is None else _pattern.sub(REDACTED, text)


def excerpt(data: bytes, most: int = 64) -> str:
    """Return the beginning of ``data`` as a literal without secrets, for an error message.

    Secrets are replaced before the text is cut; otherwise part of one could remain.
    """
    shown = data[:most]
    if _pattern is not None:
        shown = redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")[:most]
    return repr(shown)


def harmless(error: E) -> E | None:
    """Return ``error`` if its traceback shows no secret, otherwise None; for ``raise ... from``."""
    return error if _pattern is None or _pattern.search(trace_of(error)) is None else None


def trace_of(error: BaseException) -> str:
    """Return the traceback of ``error`` and its causes as text, with secrets."""
    return "".join(traceback.format_exception(error))


def forget() -> None:
    """Forget all secrets."""
    global _pattern  # noqa: PLW0603 - see conceal()
    with _lock:
        _secrets.clear()
        _pattern = None


def _forms(secret: str) -> tuple[str, ...]:
    """Return the forms in which a server may return a secret."""
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
