"""Links to tests show the test's name as a tooltip.

A page writes ``[yes](../../tests/test_x.py#test_name)``; the tooltip is ``tests/test_x.py::test_name``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from docutils import nodes
from sphinx.addnodes import download_reference

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_LINK: Final = re.compile(r"\((\S+/(?:tests|integration)/\S+\.py)#(\w+)\)")


def keep_names(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Turn the name into the link's title: Sphinx drops the fragment of a link to a file."""
    source[0] = _LINK.sub(r'(\1 "\2")', source[0])


def show_titles(_app: Sphinx, page: nodes.document) -> None:
    """Give links to files a tooltip, which Sphinx's own links to files lack."""
    for link in page.findall(download_reference):
        title = link.get("reftitle")
        if title:
            path = link["reftarget"].replace("../", "")
            link.children = [nodes.abbreviation("", link.astext(), explanation=f"{path}::{title}")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both."""
    app.connect("source-read", keep_names)
    app.connect("doctree-read", show_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
