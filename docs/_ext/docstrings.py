"""How docstrings become the pages of the reference, where Sphinx's own way reads badly.

- The type of an attribute stands behind its name, as that of a property does, and not in a paragraph of its own.
- What stands before a colon in the first line of an attribute or of "Returns:" is text, and not a type.
- A dash stands between an argument and its meaning. Sphinx writes two hyphens, and curly quotes alone leave them.
- The types of options are shown without their ranges.
- A default that is made for each object is shown as ``...``.
"""

from __future__ import annotations

import re
import types
import typing
from typing import TYPE_CHECKING, Final

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ATTRIBUTE: Final = re.compile(r"( *)\.\. attribute:: ")
_TYPE: Final = re.compile(r" *:type: (.+)")
_MODULE: Final = re.compile(r"(?<![\w.~'\"])(?=(?:[a-z_]\w*\.)+[A-Z])")


def keep_colons(_: Sphinx, what: str, __: str, ___: object, ____: object, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a colon for a type."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(": ", " – ")
    for index, line in enumerate(lines[:-1]):
        if line.strip() == "Returns:":
            lines[index + 1] = re.sub(r":(?= |$)", " –", lines[index + 1])


def types_of_attributes(_: Sphinx, __: str, ___: str, ____: object, _____: object, lines: list[str]) -> None:
    """Make the type that napoleon writes below an attribute an option of its directive."""
    named, indent = None, ""
    for index, line in enumerate(lines):
        attribute, type_ = _ATTRIBUTE.match(line), _TYPE.fullmatch(line)
        if attribute:
            named, indent = index, attribute[1]
        elif type_ and named is not None:
            # Only the last part of a name is shown, as in signatures.
            lines[named] += f"\n{indent}   :type: {_MODULE.sub('~', type_[1])}"
            lines[index] = ""
            named = None
    lines[:] = [part for line in lines for part in line.split("\n")]


def dashes(_: Sphinx, page: nodes.document) -> None:
    """Make the two hyphens behind the name of an argument a dash."""
    for text in [each for each in page.findall(nodes.Text) if each == " -- "]:
        text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def plain_defaults(
    _: Sphinx, __: str, ___: str, ____: object, _____: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Show the factory of a default as an ellipsis, so that Sphinx can read the signature."""
    return (signature.replace("<factory>", "..."), returns) if signature and "<factory>" in signature else None


def plain_types(_: Sphinx, described: object, __: bool) -> None:
    """Show the types of options without their ranges and checks, which the table of options shows."""
    if isinstance(described, types.FunctionType) and "Annotated[" in str(described.__annotations__):
        described.__annotations__ = typing.get_type_hints(described)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it: the colons before napoleon reads them, the types behind it."""
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-docstring", types_of_attributes, priority=600)
    app.connect("autodoc-before-process-signature", plain_types)
    app.connect("autodoc-process-signature", plain_defaults)
    app.connect("doctree-read", dashes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
