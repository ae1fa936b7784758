"""Mutation testing, by mutmut: ``python -m scripts.mutants PART ...``; ``make mutants ARGS=...`` sets it up.

A part is a folder or module of the package with the tests that must notice each change of it. The tree is copied to
``.mutation/PART``, and mutmut runs there. For each mutant it runs the tests that reach the changed function. The score
is the share of mutants that a test killed, or that never ended; mutants that no test runs count as survivors. The
survivors are listed at the end: read them.

``--sample N`` judges N mutants of each part, chosen at random by ``--seed``: the same tree has the same sample.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from scripts.gate import MACHINES, OF_MACHINES

ROOT: Final = Path(__file__).resolve().parent.parent
WORK: Final = ROOT / ".mutation"


class Part(NamedTuple):
    """What is mutated, and the tests that are run for it."""

    mutated: tuple[str, ...]
    tests: tuple[str, ...]


def shell(folder: str) -> tuple[str, ...]:
    """Return the modules of a folder that are no part of a machine."""
    every = (f"{folder}/{path.name}" for path in sorted((ROOT / "nsq_ha" / folder).glob("*.py")))
    return tuple(f"nsq_ha/{name}" for name in every if name not in MACHINES)


PARTS: Final = {
    "policy": Part(("nsq_ha/policy/*",), ("tests/policy",)),
    "protocol": Part(("nsq_ha/protocol/*",), ("tests/protocol",)),
    "machines": Part(tuple(f"nsq_ha/{name}" for name in MACHINES), OF_MACHINES),
    "producer": Part(shell("producer"), ("tests/producer", "tests/test_survival.py")),
    "consumer": Part(shell("consumer"), ("tests/consumer", "tests/test_survival.py")),
    "engine": Part(("nsq_ha/engine/*",), ("tests/engine", "tests/test_survival.py")),
    "chain": Part(("nsq_ha/spark/read/chain.py",), ("tests/spark/test_chain.py",)),
}

SETTINGS: Final = """
[tool.mutmut]
source_paths = ["nsq_ha"]
only_mutate = [{mutated}]
also_copy = [{others}]
pytest_add_cli_args = ["-q", "-p", "no:cacheprovider", "-m", "not real_time"]
pytest_add_cli_args_test_selection = [{tests}]
track_dependencies = false
"""


NAMES: Final = """
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name

for path in walk_mutatable_files():
    for name in mutate_file_contents(str(path), path.read_text(encoding="utf-8"), None, None).mutant_names:
        print(get_mutant_name(path, name))
"""
"""Prints the names that mutmut gives to the mutants of the folder in which it runs."""

KILLED: Final = frozenset(("killed", "timeout", "segfault"))
"""What mutmut says of a mutant that the tests noticed."""


def listed(names: tuple[str, ...]) -> str:
    """Return names as the inside of a TOML list."""
    return ", ".join(json.dumps(name) for name in names)


def copy(name: str, part: Part) -> Path:
    """Copy the tree as git knows it, with mutmut's settings for one part, and return the folder."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [path for path in known.stdout.splitlines() if (ROOT / path).is_file()]
    for path in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    others = tuple(sorted({path.partition("/")[0] for path in files} - {"nsq_ha", "tests", "pyproject.toml"}))
    settings = SETTINGS.format(
        mutated=listed(part.mutated),
        others=listed(others),
        tests=listed(part.tests),
    )
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as pyproject:
        pyproject.write(settings)
    return folder


def names_in(folder: Path) -> list[str]:
    """Return the names of all mutants of a part."""
    done = subprocess.run([sys.executable, "-c", NAMES], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return sorted(done.stdout.split())


def mutmut(folder: Path, *arguments: str) -> str:
    """Run mutmut in a folder, show what it prints on standard error, and return what it prints on standard output."""
    program = Path(sys.executable).parent / "mutmut"
    done = subprocess.run([program, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def results_in(folder: Path) -> dict[str, str]:
    """Return what became of each mutant."""
    lines = mutmut(folder, "results", "--all", "true").splitlines()
    return dict(line.strip().rsplit(": ", 1) for line in lines if ": " in line)


def measure(name: str, sample: int | None, seed: int, children: int) -> bool:
    """Run one part, print its score and its survivors, and return whether mutmut judged all that it should."""
    folder = copy(name, PARTS[name])
    every = names_in(folder)
    # Nothing here is secret: a sample must only be the same each time.
    chosen = random.Random(seed).sample(every, sample) if sample is not None and sample < len(every) else []  # noqa: S311
    output = mutmut(folder, "run", "--max-children", str(children), *chosen)
    results = results_in(folder)
    found = {mutant: results.get(mutant, "not checked") for mutant in chosen or every}
    if "not checked" in found.values():
        print(output[-4000:], f"\n{name}: mutmut ended early", file=sys.stderr)
        return False
    survivors = {mutant: state for mutant, state in found.items() if state not in KILLED}
    killed = len(found) - len(survivors)
    share = f"{100 * killed / max(len(found), 1):.1f} %"
    print(f"{name}: {killed} of {len(found)} mutants killed ({len(every)} in the part): {share}")
    for mutant, state in sorted(survivors.items()):
        print(f"    {mutant}: {state}")
    return True


def main(arguments: list[str] | None = None) -> int:
    """Measure the named parts, or all; return the exit code."""
    parser = argparse.ArgumentParser(description="Mutation testing of parts of the package.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none is named")
    parser.add_argument("--sample", type=int, metavar="N", help="judge N mutants of each part, chosen at random")
    parser.add_argument("--seed", type=int, default=1, help="what chooses the sample (default: %(default)s)")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1, help="how many run at once")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    ended = [measure(name, options.sample, options.seed, options.children) for name in options.parts or PARTS]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
