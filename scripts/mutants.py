"""Mutation testing, by mutmut: ``python scripts/mutants.py PART ...``; ``make mutants ARGS=...`` sets it up.

A part is a folder or module of the package with the tests that must notice each change of it. The tree is copied to
``.mutation/PART``, and mutmut runs there. The score is the share of mutants that a test killed, or that never ended;
mutants that no test runs count as survivors. The survivors are listed at the end: read them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
WORK: Final = ROOT / ".mutation"


class Part(NamedTuple):
    """What is mutated, and the tests that are run for it."""

    mutated: str
    tests: tuple[str, ...]


PARTS: Final = {
    "policy": Part("nsq_ha/policy/*", ("tests/policy",)),
    "protocol": Part("nsq_ha/protocol/*", ("tests/protocol",)),
    "producer": Part("nsq_ha/producer/*", ("tests/producer",)),
    "consumer": Part("nsq_ha/consumer/*", ("tests/consumer",)),
    "discovery": Part("nsq_ha/discovery/*", ("tests/discovery",)),
    "chain": Part("nsq_ha/spark/read/chain.py", ("tests/spark/test_chain.py",)),
}

SETTINGS: Final = """
[tool.mutmut]
source_paths = ["nsq_ha"]
only_mutate = [{mutated}]
also_copy = [{others}]
pytest_add_cli_args = ["-q", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = [{tests}]
"""


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
    settings = SETTINGS.format(mutated=listed((part.mutated,)), others=listed(others), tests=listed(part.tests))
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as pyproject:
        pyproject.write(settings)
    return folder


def mutmut(folder: Path, *arguments: str) -> str:
    """Run mutmut in a folder, show what it prints on standard error, and return what it prints on standard output."""
    program = Path(sys.executable).parent / "mutmut"
    done = subprocess.run([program, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def measure(name: str) -> bool:
    """Run one part, print its score and its survivors, and return whether mutmut came to its end."""
    folder = copy(name, PARTS[name])
    told = mutmut(folder, "run")
    mutmut(folder, "export-cicd-stats")
    stats = folder / "mutants" / "mutmut-cicd-stats.json"
    if not stats.exists():
        print(told[-4000:], f"\n{name}: mutmut ended early", file=sys.stderr)
        return False
    counts = json.loads(stats.read_text(encoding="utf-8"))
    judged = counts["total"] - counts["skipped"]
    killed = counts["killed"] + counts["timeout"] + counts["segfault"]
    print(f"{name}: {killed} of {judged} mutants killed: {100 * killed / max(judged, 1):.1f} %")
    print(mutmut(folder, "results"))
    return True


def main(names: list[str]) -> int:
    """Measure the named parts, or all; return the exit code."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    ended = [measure(name) for name in names or PARTS]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
