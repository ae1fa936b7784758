"""Where long words of code may break: behind their punctuation and between their words, never inside a word.

Names of tests and options are longer than a column or a phone is wide. A ``<wbr>`` is not copied with the text, and
the style sheet forbids all other breaks in code, also those behind the hyphens of flags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SHORT: Final = 22
"""Words of up to this many letters fit everywhere."""

_WORD: Final = re.compile(r'(?<=<span class="pre">)[^<]+(?=</span>)')
_ENTITY: Final = re.compile(r"&#?\w+;")
_BREAK: Final = re.compile(r"(?<=[_/.=,(\[:])(?=[\w&\"'])|(?<=[a-z])(?=[A-Z])|(?<=\w-)(?=\w)")


def with_breaks(page: str) -> str:
    """Return the HTML of a page in which long words of code may break."""
    return _WORD.sub(_broken, page)


def _broken(word: re.Match[str]) -> str:
    text = word.group()
    if len(_ENTITY.sub("-", text)) <= SHORT:
        return text
    return _BREAK.sub("<wbr>", text)


def change_page(_: Sphinx, __: str, ___: str, context: dict[str, Any], ____: object) -> None:
    """Change the text of a page before it is written."""
    if context.get("body"):
        context["body"] = with_breaks(context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("html-page-context", change_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
