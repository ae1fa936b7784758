"""Turns the Python examples of the pages into modules that type checkers can read.

The blocks of a page that run one after the other become the body of one async
function, since ``await`` may stand at their top. Programs and files become modules of their
own; a file that its page's tests import has its own name. Imports of the blocks
stay where they are: a block is read as it stands.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.examples import ROOT, Example, examples_of

_HEAD: Final = "async def page() -> None:\n"


def modules_of(pages: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Return the name and the text of each module."""
    for page in pages:
        examples = [example for example in examples_of(page) if _is_checked(example)]
        stem = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        shared = [example for example in examples if not _is_alone(example)]
        if shared:
            yield stem, _HEAD + textwrap.indent("\n".join(_marked(example) for example in shared), "    ")
        imported = set(re.findall(r"^(?:from|import) (\w+)", "\n".join(each.code for each in examples), re.MULTILINE))
        for example in examples:
            if _is_alone(example):
                name = Path(example.settings.get("file", "")).stem
                yield name if name in imported else f"{stem}_{example.line}", _marked(example)


def _is_checked(example: Example) -> bool:
    return example.language == "python" and not {"skip", "library"} & example.settings.keys()


def _is_alone(example: Example) -> bool:
    return "asyncio.run(" in example.code or "file" in example.settings


def _marked(example: Example) -> str:
    return f"# {example}\n{example.code.rstrip()}\n"
