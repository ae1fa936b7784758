"""Build HTML so that no text can become markup.

Names, ids, versions and bodies come from outside, and may be hostile. :func:`tag` escapes every text that is not
:class:`Html`, and only :func:`tag` and :func:`join` make :class:`Html` from other values.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, urlencode

Child = str | int | None
"""What an element may contain: :class:`Html` stays as it is, other texts are escaped, None is left out."""

_VOID: Final = frozenset({"input", "link", "meta", "br", "hr"})


class Html(str):
    """Markup that is safe to send."""

    __slots__ = ()


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: str | float | bool | None) -> Html:
    """Return an element.

    Args:
        name: Its name; never from outside.
        *children: Its contents.
        **attributes: Its attributes. A trailing underscore is dropped (``class_``), others become hyphens
            (``data_key``). None and False leave the attribute out; True gives it without a value. A float, such as a
            place in a picture, is written with one digit.
    """
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        parts.append(f" {label}" if value is True else f' {label}="{_attribute(key, value)}"')
    parts.append(">")
    if name in _VOID:
        return Html("".join(parts))
    return Html("".join(parts) + join(*children) + f"</{name}>")


def join(*children: Child | Iterable[Child]) -> Html:
    """Return the children one after another, escaped."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str | int):
            parts.append(html.escape(visible(str(child)), quote=True))
        else:
            parts.append(join(*child))
    return Html("".join(parts))


def _attribute(key: str, value: float | str) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    # What a form sends back must stay what it was.
    return html.escape(text if key == "value" else visible(text), quote=True)


def visible(text: str) -> str:
    """Return ``text`` with control and direction characters replaced, so that it shows what it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else f"\\u{{{ord(each):x}}}" for each in text)


def path(*segments: str) -> str:
    """Return a path of the dashboard; each segment is quoted, slashes, too."""
    return "/" + "/".join(quote(segment.encode("utf-8", "surrogatepass"), safe="") for segment in segments)


def link(text: Child, *segments: str, **attributes: str | bool | None) -> Html:
    """Return a link to a page of the dashboard."""
    return tag("a", text, href=path(*segments), **attributes)


def query(**values: str | int | None) -> str:
    """Return a query with its question mark, without the values that are None or empty."""
    given = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given, errors='surrogatepass')}" if given else ""
