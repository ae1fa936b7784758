"""Write the folder ``reference``: options, errors, calls and the protocol as Markdown, for those who build no pages.

``python scripts/reference.py`` writes it, ``--check`` only says what is out of date; a test does the same. All texts
are those of the code.
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from docs._ext import reference  # noqa: E402 - of this tree

FOLDER: Final = ROOT / "reference"
MADE: Final = "<!-- Made from the code by `make reference`; a test keeps it so. -->\n"
CALLS: Final = {
    "nsq_ha": None,
    "nsq_ha.admin": ("AdminClient",),
    "nsq_ha.dead_letters": None,
    "nsq_ha.devcluster": None,
    "nsq_ha.events": None,
    "nsq_ha.prometheus": None,
    "nsq_ha.stats": None,
    "nsq_ha.sync": None,
    "nsq_ha.telemetry": ("enable", "disable", "process"),
    "nsq_ha.testing": None,
    "nsq_ha.tracelog": ("write_to", "switch", "TraceSwitch"),
}
"""Public modules, and their names if they are not all in ``__all__``."""
PROTOCOL: Final = ("nsq_ha.protocol.encoding", "nsq_ha.protocol.frames", "nsq_ha.protocol.commands")


def plain(text: str) -> str:
    """Return reStructuredText of a docstring as Markdown."""
    text = re.sub(r":(?:\w+:)?\w+:`~?(?:[^`<]*<)?([^`>]+)>?`", r"`\1`", text)
    return text.replace("``", "`")


def cells(*values: str) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(plain(" ".join(value.split())).replace("|", "\\|") for value in values) + " |"


def options() -> str:
    """Return the options of the clients and of Spark."""
    rows = [
        cells(f"``{option.name}``", option.owner, f"``{option.type}``", option.range, option.default, option.meaning)
        for option in reference.options()
    ]
    spark = [row.splitlines() for row in re.split(r"^   \* - ", reference.spark_options_table(), flags=re.MULTILINE)]
    shown = [cells(*(line.removeprefix("     - ") for line in row if line.strip())) for row in spark[2:]]
    head = "| option | of | type | range | default | meaning |\n|---|---|---|---|---|---|\n"
    return (
        "# Options\n\n## Of producers and consumers\n\nTimes are in seconds, sizes in bytes.\n\n"
        + head
        + "\n".join(rows)
        + '\n\n## Of `format("nsq")`\n\n| option | for | default | meaning |\n|---|---|---|---|\n'
        + "\n".join(shown)
        + "\n"
    )


def errors() -> str:
    """Return the tree of errors."""
    rows = [
        cells(
            "&emsp;" * depth + f"``{error.__name__}``",
            "yes" if error.retriable else "",
            "yes" if error.stale_leader else "",
            (inspect.getdoc(error) or "").partition("\nAttributes:")[0],
        )
        for error, depth in reference.error_classes()
    ]
    head = "| error | may work later | look up again | what happened, what to do |\n|---|---|---|---|\n"
    return "# Errors\n\n" + head + "\n".join(rows) + "\n"


def calls() -> str:
    """Return every public class and function with its docstring."""
    parts = ["# Calls\n"]
    for module, names in CALLS.items():
        found = importlib.import_module(module)
        parts.append(f"## `{module}`\n")
        for name in names or found.__all__:
            if not (inspect.isclass(thing := getattr(found, name)) and issubclass(thing, BaseException)):
                parts += entry(name, thing)
    return "\n".join(parts)


def protocol() -> str:
    """Return the functions and values of the wire."""
    parts = ["# Protocol\n\nThe rules of the servers are in `docs/reference/server-protocol.md`.\n"]
    for module in PROTOCOL:
        found = importlib.import_module(module)
        parts += [f"## `{module}`\n", plain(inspect.getdoc(found) or "") + "\n"]
        for name, thing in vars(found).items():
            if not name.startswith("_") and getattr(thing, "__module__", "") == module and inspect.getdoc(thing):
                parts += entry(name, thing)
    return "\n".join(parts)


def entry(name: str, thing: object) -> Iterator[str]:
    """Yield the Markdown of a class or a function; of other things only the name."""
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    yield f"### `{name}`\n"
    yield f"```python\n{signature(thing, name)}\n```\n\n{indented(inspect.getdoc(thing) or '')}\n"
    if inspect.isclass(thing):
        for method, value in members(thing):
            yield f"#### `{name}.{method}`\n"
            if not isinstance(value, property):
                yield f"```python\n{signature(value, method)}\n```\n"
            yield indented(inspect.getdoc(value) or "") + "\n"


def members(owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties of a class and of our classes above it."""
    seen: dict[str, object] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("nsq_ha"):
            seen |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    for name, value in seen.items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if (inspect.isfunction(inner) or isinstance(inner, property)) and inspect.getdoc(inner):
            yield name, inner


def signature(thing: object, name: str) -> str:
    """Return what a call looks like, as the source has it."""
    function = vars(thing).get("__init__") if inspect.isclass(thing) else thing
    if not inspect.isfunction(inner := inspect.unwrap(function) if callable(function) else None):
        return name
    if (of_sync := getattr(inner, "__signature__", None)) is not None:
        shown = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", str(of_sync))  # types without their modules
        return name + re.sub(r"^\(self(?:, )?", "(", shown).replace("'", '"')
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    except (OSError, IndexError):  # made by a decorator
        return f"{name}(...)"
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        raise TypeError(f"{name} is no function")
    given = re.sub(r"^(?:self|cls)(?:, )?(?:/, )?", "", ast.unparse(tree.args)).replace("'", '"')
    result = f" -> {ast.unparse(tree.returns)}" if tree.returns is not None and not inspect.isclass(thing) else ""
    return f"{'await ' if isinstance(tree, ast.AsyncFunctionDef) else ''}{name}({given}){result}"


def indented(text: str) -> str:
    """Return a docstring: its sections as they are, in a block, since their columns matter."""
    first, _, rest = plain(text).partition("\n\n")
    return f"{first}\n\n```text\n{rest.rstrip()}\n```" if rest.strip() else first


def made() -> dict[str, str]:
    """Return the text of each file."""
    texts = {"options.md": options(), "errors.md": errors(), "calls.md": calls(), "protocol.md": protocol()}
    return {name: f"{MADE}\n{text.rstrip()}\n" for name, text in texts.items()}


def main() -> int:
    """Write the files, or say which are out of date."""
    stale = [
        name
        for name, text in made().items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != text
    ]
    if "--check" not in sys.argv:
        FOLDER.mkdir(exist_ok=True)
        for name, text in made().items():
            (FOLDER / name).write_text(text, "utf-8")
        return 0
    print("\n".join(f"{name} is out of date: make reference" for name in stale))
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
