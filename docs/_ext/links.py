"""Links between the pages: a dead one is a warning of the build.

Sphinx checks what a page refers to, but not the links that extensions write.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx

_TAGS: Final = re.compile(r"</script>|<\w[^<>]*\s(?:id|name|href|src)=[^<>]*>")
_LINKS: Final = {"a": "href", "link": "href", "img": "src", "script": "src"}

logger = logging.getLogger(__name__)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        # Nine tags in ten only colour code: to leave them out is a tenth of a build.
        self.feed("".join(_TAGS.findall(text)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record what the tag leads to, and what may lead to it."""
        found = dict(attrs)
        self.names.update(name for name in (found.get("id"), found.get("name")) if name)
        target = found.get(_LINKS.get(tag, ""))
        if target and not re.match(r"[a-z]+:|//", target):
            self.links.append(target)


def dead_links(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each page of a folder, with each link of it that leads to no file or no place in the folder.

    Args:
        folder: The built pages.
        names: The paths of the pages, without their ending.
    """
    paths = [(folder / f"{name}.html").resolve() for name in sorted(names)]
    pages = {path: _Page(path.read_text("utf-8")) for path in paths if path.exists()}
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            address, _, name = link.partition("#")
            target = (path.parent / unquote(address.partition("?")[0])).resolve() if address else path
            if not target.exists() or (name and target in pages and unquote(name) not in pages[target].names):
                yield path.relative_to(folder.resolve()).as_posix(), link


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of each dead link."""
    if error is None and app.builder.format == "html":
        # A file of a page that is gone stays in the folder, and is not looked at.
        for page, link in dead_links(Path(app.outdir), app.env.found_docs):
            logger.warning("%s links to %s, which does not exist", page, link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
