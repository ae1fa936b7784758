"""Links between the pages: those back from the source view are corrected, and a dead one is a warning of the build.

Sphinx checks what a page refers to, but not the links that extensions write. The source view guesses the name under
which a class is on its page, and guesses wrong where a class has a name other than that of its module.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from sphinx.util import logging

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

SOURCES: Final = "_modules/"
_BACK: Final = re.compile(r'<a class="viewcode-back" href="([^"#]*)#([^"]*)">.*?</a>')
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


def corrected(body: str, page: str, objects: Iterable[tuple[str, str]]) -> str:
    """Return the source view of a module with links to what is on the pages; other links are left out.

    Args:
        body: The HTML.
        page: Its path.
        objects: Each documented name, with the path of its page.
    """
    known = {(posixpath.relpath(at, posixpath.dirname(page)), name) for name, at in objects}

    def link(match: re.Match[str]) -> str:
        address, name = match.groups()
        if (address, name) in known:
            return match.group()
        # A method is found by its class and its name.
        for parts in (2, 1):
            tail = "." + ".".join(name.split(".")[-parts:])
            found = {other for at, other in known if at == address and other.endswith(tail)}
            if len(found) == 1:
                return match.group().replace(f"#{name}", f"#{found.pop()}")
        return ""

    return _BACK.sub(link, body)


def correct_sources(app: Sphinx, page: str, _: str, context: dict[str, Any], __: object) -> None:
    """Correct the links of a page of the source view."""
    if page.startswith(SOURCES) and context.get("body"):
        found = app.env.domains.python_domain.objects.items()
        context["body"] = corrected(
            context["body"],
            f"{page}.html",
            ((entry.node_id, f"{entry.docname}.html") for _, entry in found if not entry.aliased),
        )


def forget_sources(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave modules without a source, such as those in C, out of the list, and write all others anew.

    A page of the source view is otherwise kept until its module changes, with links to what is not there any more.
    """
    shutil.rmtree(Path(app.outdir, SOURCES), ignore_errors=True)
    sources = getattr(env, "_viewcode_modules", {})
    for name in [name for name, found in sources.items() if not found]:
        del sources[name]


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of each dead link."""
    if error is None and app.builder.format == "html":
        folder = Path(app.outdir)
        sources = (path.relative_to(folder).with_suffix("") for path in (folder / SOURCES).rglob("*.html"))
        # A file of a page that is gone stays in the folder, and is not looked at.
        for page, link in dead_links(folder, {*app.env.found_docs, *(path.as_posix() for path in sources)}):
            logger.warning("%s links to %s, which does not exist", page, link)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("env-check-consistency", forget_sources)
    app.connect("html-page-context", correct_sources)
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
