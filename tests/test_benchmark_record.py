"""What is kept beside a figure."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from benchmarks import record

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_figure_of_changed_code_is_not_that_of_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        names = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.check_output(["git", *names, *words], cwd=tmp_path, text=True).strip()

    monkeypatch.setattr(record, "ROOT", tmp_path)
    code, figures = tmp_path / "nsq_ha" / "code.py", tmp_path / "docs" / "figures.json"
    for path in (code, figures):
        path.parent.mkdir()
        path.write_text("1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short", "HEAD")
    figures.write_text("2\n")
    assert record.commit() == commit
    code.write_text("2\n")
    assert record.commit() == f"{commit}-dirty"
