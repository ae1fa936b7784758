"""The gate itself: no step is passed over."""

import sys
from pathlib import Path

import pytest

from scripts import gate

PYTHON = sys.executable


@pytest.fixture
def java_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "classes.jsa"
    archive.touch()
    monkeypatch.setattr(gate, "JAVA_ARCHIVE", archive)
    monkeypatch.setattr(gate, "ENVIRONMENT", dict(gate.ENVIRONMENT))


@pytest.mark.usefixtures("java_archive")
@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (((PYTHON, "-c", "pass"),), 0),
        (((PYTHON, "-c", "raise SystemExit(3)"), (PYTHON, "-c", "pass")), 1),
        ((("no-such-program",),), 1),
    ],
    ids=["passes", "fails", "cannot be started"],
)
def test_only_a_step_whose_commands_all_ran_passes(
    commands: tuple[tuple[str, ...], ...],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [gate.Step("first", commands), *(gate.step(f"other {number}", PYTHON, "-c", "pass") for number in range(5))]
    monkeypatch.setattr(gate, "STEPS", steps)
    assert gate.main() == expected
    said = capsys.readouterr().out
    assert said.count("\n--- ") == len(steps)
    assert f"--- first: {'FAILED' if expected else 'ok'}" in said
