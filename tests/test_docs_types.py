"""The examples of the pages pass the type checkers that readers use: mypy, as strict as it can be, and pyright."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.example_types import modules_of
from tests.examples import ROOT
from tests.support.checkers import CHECKERS, check

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name, text in modules_of(page for page in PAGES if "_build" not in page.parts):
        (folder / f"{name}.py").write_text(text, "utf-8")
    return folder


def test_there_are_examples(modules: Path) -> None:
    assert len(list(modules.glob("*.py"))) > 30


@pytest.mark.timeout(900)
@pytest.mark.parametrize("checker", CHECKERS)
def test_the_examples_pass(modules: Path, checker: str) -> None:
    checked = check(checker, modules)
    assert checked.returncode == 0, f"{checked.stdout}{checked.stderr}"
