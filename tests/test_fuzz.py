"""The fuzz targets in the gate, without a fuzzer: all seeds, some hundreds of changed ones, and how the work grows."""

from __future__ import annotations

import json
import random
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import coverage
import pytest

import fuzz.__main__ as program
from docs._ext.fuzz_table import fuzz_table
from fuzz import seeds
from fuzz.target import LARGE, SMALL, Target, mutated, pieces
from fuzz.targets import TARGETS
from tests.support.full import FULL

CHANGED = 300
GROWN = 3 if FULL else 1

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def start(target: Target) -> list[bytes]:
    return [*target.seeds(), *seeds.kept(target.name)]


@each_target
def test_seeds_have_no_finding(target: Target) -> None:
    found = start(target)
    assert len(found) >= 4
    for data in found:
        target.run(data)


@each_target
def test_changed_seeds_have_no_finding(target: Target) -> None:
    given, found = random.Random(28), start(target)
    for _ in range(CHANGED):
        data = mutated(given.choice(found), given.choice(found), given)
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error


def test_the_seeds_reach_each_assertion_of_the_targets() -> None:
    """A seed that is refused at the first look tests nothing behind it."""
    measured = coverage.Coverage(data_file=None, config_file=False, include=["*/fuzz/targets/*"])
    with measured.collect():
        for target in TARGETS.values():
            for data in start(target):
                target.run(data)
    missed: list[str] = []
    for module in sorted({target.run.__module__ for target in TARGETS.values()}):
        file = Path(str(sys.modules[module].__file__))
        lines = file.read_text("utf-8").splitlines()
        unreached = [lines[number - 1].strip() for number in measured.analysis2(str(file))[3]]
        missed += [f"{file.name}: {line}" for line in unreached if line.startswith("assert ")]
    assert missed == []


@pytest.mark.parametrize(("code", "said"), [(0, "stat::number_of_executed_units: 0"), (1, ""), (0, "")])
def test_a_run_that_executes_nothing_is_a_finding(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(returncode=code, stderr=said)
    monkeypatch.setattr(program, "subprocess", SimpleNamespace(run=lambda *_, **__: done, DEVNULL=0, PIPE=0))
    assert list(program.fuzz("frames", 1, tmp_path / "frames").findings) == ["the process ended"]


@each_target
def test_the_work_grows_no_faster_than_the_input(target: Target) -> None:
    for data in random.Random(29).choices(start(target), k=GROWN):
        target.check_growth(data)


@each_target
def test_what_is_kept_is_small(target: Target) -> None:
    kept = seeds.kept(target.name)
    assert len(kept) <= 40
    assert max(map(len, kept), default=0) <= 512


@pytest.mark.parametrize(("power", "is_found"), [(1.0, False), (1.2, False), (2.0, True)])
def test_work_that_grows_too_fast_is_found(power: float, is_found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def work(data: bytes) -> None:
        spent[0] += len(data) ** power * 1e-6

    monkeypatch.setattr("fuzz.target.time", SimpleNamespace(thread_time=lambda: spent[0]))
    target = Target("work", "", work, lambda: (b"x",))
    with pytest.raises(AssertionError, match="grows faster") if is_found else nullcontext():
        target.check_growth(b"x")


def test_a_grown_input_keeps_its_choices_and_repeats_a_piece() -> None:
    target = Target("any", "", lambda _: None, lambda: (), choices=2)
    assert target.grown(b"\1\2x", SMALL) == b"\1\2" + b"x" * SMALL
    assert LARGE <= len(target.grown(b"\1\2some bytes", LARGE)) <= LARGE + 32


@pytest.mark.parametrize("choice", [0, 1, 2, 3, 200])
def test_pieces_are_the_whole(choice: int) -> None:
    data = random.Random(choice).randbytes(3000)
    assert b"".join(pieces(data, choice)) == data
    assert all(pieces(data, choice))


def test_an_unknown_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["no-such"])
    assert "no such target: no-such; there are frames, " in capsys.readouterr().err


def test_runs_add_up_in_the_table_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FIGURES", tmp_path / "figures.json")
    program.record([program.Run("frames", 60, 1000, 7, {"a": {}}), program.Run("lookups", 90, 2000, 1)])
    program.record([program.Run("frames", 30, 500, 0)])
    rows = [" ".join(row.split()) for row in fuzz_table(program.FIGURES).split("* - ")]
    about = TARGETS["frames"].about
    assert f"``frames`` - {about} - 1.5 - 1,500 - 7 - 1" in rows
    assert rows[-1] == "all - - 3.0 - 3,500 - 8 - 1"
    assert len(rows) == len(TARGETS) + 3


def test_the_figures_are_of_all_targets() -> None:
    figures = json.loads(program.FIGURES.read_text("utf-8"))
    assert list(figures) == list(TARGETS)
    assert all(row["executions"] > 0 for row in figures.values())


def test_the_smallest_inputs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(program, "KEPT", tmp_path / "kept")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for size in (1, 2, 300):
        (corpus / str(size)).write_bytes(bytes(size))
    program.keep("frames", corpus)
    program.keep("frames", corpus)
    assert seeds.kept("frames") == (b"\0", b"\0\0")
    assert seeds.kept("lookups") == ()
