"""The fuzz targets in the gate, without a fuzzer: all seeds, and some hundreds of changed ones."""

import json
import random
import sys
from pathlib import Path

import coverage
import pytest

import fuzz.__main__ as program
from fuzz import seeds
from fuzz.target import Target, mutated
from fuzz.targets import TARGETS

CHANGED = 300

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


def test_the_figures_are_of_all_targets() -> None:
    figures = json.loads(program.FIGURES.read_text("utf-8"))
    assert list(figures) == list(TARGETS)
    assert all(row["executions"] > 0 for row in figures.values())
