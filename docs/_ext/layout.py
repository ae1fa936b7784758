"""The map of the tree: ``.. module-map::`` lists each module with the first line of its docstring.

The lines are the docstrings themselves, so that the map cannot drift. A module without one is an error of the build.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docs._ext.reference import Made, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "nsq_ha"


def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line.

    Raises:
        LookupError: It has none.
    """
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise LookupError(f"{path.relative_to(ROOT)} has no docstring")
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def folders() -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder of the package with its modules, a folder before those in it."""
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        yield folder, sorted(path for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__"))


def module_map() -> str:
    """Return the map: a paragraph for each folder, a row for each module."""
    parts = []
    for folder, modules in folders():
        parts.append(f"**{folder.relative_to(ROOT)}**: {first_line(folder / '__init__.py')}\n")
        if modules:
            rows = [(f"``{path.name}``", first_line(path)) for path in modules]
            parts.append(table(("Module", "What it is"), rows, widths="25 75"))
    return "\n".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("module-map", type("ModuleMap", (Made,), {"make": staticmethod(module_map)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
