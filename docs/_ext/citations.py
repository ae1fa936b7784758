"""Citations of numbered sections, such as "server protocol 3-5, 7", become links, in docstrings and on pages.

A heading of a cited page begins with its number: ``## 6. Publishing``, ``### 6.2. Refusals``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sphinx.application import Sphinx

PAGES: Final[Mapping[str, str]] = {
    "server protocol": "reference/server-protocol",
    "server failures": "reference/server-failures",
    "spark design": "explanation/spark-design",
}
"""What a citation calls a page, in lower case, and its path."""

HEADING: Final = re.compile(r"(\d+(?:\.\d+)*)\. ")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)*")
_NAMES: Final = "|".join(PAGES).replace(" ", r"\s+")
_NUMBERS: Final = r"N(?:(?:-|,\s+|\s+and\s+)N)*".replace("N", _NUMBER.pattern)
_CITATION: Final = re.compile(rf"\b({_NAMES})\s+({_NUMBERS})", re.IGNORECASE)


def cited(text: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield each section that a text cites: its page and number, and where the number begins and ends."""
    for match in _CITATION.finditer(text):
        page = PAGES[" ".join(match[1].lower().split())]
        for number in _NUMBER.finditer(text, match.start(2), match.end(2)):
            yield page, number.group(), number.start(), number.end()


def _label(page: str, number: str) -> str:
    return f"{page}-{number}"


def add_labels(app: Sphinx, page: nodes.document) -> None:
    """Make the numbered sections of a cited page known to links."""
    name = app.env.docname
    if name not in PAGES.values():
        return
    domain = app.env.domains.standard_domain
    for section in page.findall(nodes.section):
        title = section[0].astext()
        number = HEADING.match(title)
        if number:
            domain.labels[_label(name, number[1])] = (name, section["ids"][0], title)
            domain.anonlabels[_label(name, number[1])] = (name, section["ids"][0])


def add_links(app: Sphinx, page: nodes.document) -> None:
    """Make each number of a citation a link; one without a section is a warning of the build."""
    for text in list(page.findall(nodes.Text)):
        found = list(cited(text.astext()))
        if not found or isinstance(text.parent, nodes.literal | nodes.literal_block | nodes.reference):
            continue
        parts: list[nodes.Node] = []
        end = 0
        for target, number, start, stop in found:
            link = addnodes.pending_xref(
                "",
                nodes.inline("", number),
                refdoc=app.env.docname,
                refdomain="std",
                reftype="ref",
                reftarget=_label(target, number),
                refexplicit=True,
                refwarn=True,
            )
            parts += [nodes.Text(text.astext()[end:start]), link]
            end = stop
        text.parent.replace(text, [*parts, nodes.Text(text.astext()[end:])])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both."""
    app.connect("doctree-read", add_labels)
    app.connect("doctree-read", add_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
