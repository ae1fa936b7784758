"""Links to tests show the test's name: a link to a file of the repository has its title as a tooltip.

A page writes ``[yes](../../tests/test_x.py "test_name")``; the tooltip is ``tests/test_x.py::test_name``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.addnodes import download_reference

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def show_titles(_app: Sphinx, page: nodes.document) -> None:
    """Give links to files a tooltip, which Sphinx's own links to files lack."""
    for link in page.findall(download_reference):
        title = link.get("reftitle")
        if title:
            path = link["reftarget"].replace("../", "")
            link.children = [nodes.abbreviation("", link.astext(), explanation=f"{path}::{title}")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("doctree-read", show_titles)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
