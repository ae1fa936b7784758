"""An index entry leads to the section that it stands in, so that a search opens this section and shows its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class IndexPlaces(SphinxTransform):
    """Gives the entries of ``{index}`` the anchor of their section; that of MyST is an empty element."""

    default_priority = 500  # before Sphinx collects the entries

    def apply(self) -> None:
        """Change the entries that stand directly in a section."""
        for index in self.document.findall(addnodes.index):
            if isinstance(index.parent, nodes.section):
                place = index.parent["ids"][0]
                # A main entry, "!docker", is of a page. Others are of names that autodoc describes.
                index["entries"] = [
                    (kind, entry, place if main else target, main, key)
                    for kind, entry, target, main, key in index["entries"]
                ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.add_transform(IndexPlaces)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
