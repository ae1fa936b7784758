"""The map of the tree and its layers, each module with the first line of its docstring.

.. module-map::   each module, by folder
.. layers::       what is directly in the package, by layer: those of import-linter in pyproject.toml, the top one first

The lines are the docstrings themselves, so that nothing can drift. A module without one is an error of the build.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docs._ext.reference import Made, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "nsq_ha"
SETTINGS: Final = ROOT / "pyproject.toml"


@cache
def first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line.

    Raises:
        LookupError: It has none.
    """
    # The first thing of its file: reading all modules whole would take seconds.
    found = re.match(r'r?""".+?"""', path.read_text(encoding="utf-8"), re.DOTALL)
    if not found:
        raise LookupError(f"{path.relative_to(ROOT)} has no docstring")
    return " ".join(inspect.cleandoc(ast.literal_eval(found[0])).partition("\n\n")[0].split())


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


def layers(settings: Path = SETTINGS, package: str = PACKAGE.name) -> list[list[Path]]:
    """Return the modules and folders of each layer of a package, from the top to the bottom.

    Raises:
        LookupError: The settings have no layers of this package.
    """
    for contract in tomllib.loads(settings.read_text("utf-8"))["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract["containers"] == [package]:
            folder = settings.parent / package
            named = [[folder / name for name in re.findall(r"\w+", layer)] for layer in contract["layers"]]
            # A name in parentheses may be of a module that does not exist.
            found = [[_existing(path) for path in layer] for layer in named]
            return [kept for layer in found if (kept := [path for path in layer if path])]
    raise LookupError(f"{settings.name} has no layers of {package}")


def _existing(path: Path) -> Path | None:
    return next((found for found in (path.with_suffix(".py"), path) if found.exists()), None)


def module_file(path: Path) -> Path:
    """Return the file of a module or folder that has its docstring."""
    return path if path.is_file() else path / "__init__.py"


def layer_table() -> str:
    """Return the layers of the package as a table."""
    rows = [
        (str(number) if place == 0 else "", f"``{path.stem}``", first_line(module_file(path)))
        for number, layer in enumerate(layers(), start=1)
        for place, path in enumerate(layer)
    ]
    return table(("Layer", "Module", "What it is"), rows, widths="10 20 70")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("module-map", type("ModuleMap", (Made,), {"make": staticmethod(module_map)}))
    app.add_directive("layers", type("Layers", (Made,), {"make": staticmethod(layer_table)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
