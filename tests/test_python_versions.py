"""Which Python the scripts find, and that each place promises the same one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import dist

ROOT = Path(__file__).parents[1]
OLDEST = "3.11.2"
FAKE = """#!/bin/sh
exec {real} -c 'import sys; sys.version_info = {version}; sys.executable = sys.argv[1]; exec(sys.argv[3])' "$0" "$@"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Folders with the names of many interpreters, of which some do not run."""
    for folder, name, version in (
        ("switched off", "python3.12", None),
        ("a", "python3.12", (3, 12, 9)),
        ("a", "python3.13", (3, 12, 0)),
        ("b", "python3.12", (3, 12, 1)),
        ("c", "python3.12", (3, 12, 10)),
        ("b", "python3.11", (3, 11, 1)),
        ("c", "python3.11", (3, 11, 2)),
        ("c", "python3", (3, 11, 1)),
    ):
        file = tmp_path / folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            "#!/bin/sh\nexit 127\n" if version is None else FAKE.format(real=sys.executable, version=version)
        )
        file.chmod(0o755)
    folders = [str(tmp_path / name) for name in ("switched off", "a", "b", "c")]
    tools = tmp_path / "tools"  # without the interpreters that are beside them
    tools.mkdir()
    for name in ("tr", "sed", "sort"):
        (tools / name).symlink_to(shutil.which(name) or name)
    return os.pathsep.join([*folders, str(tools)])


def find(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "scripts" / "find_python.sh")
    env = {"PATH": path}
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, timeout=60, env=env)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["3.12"], "a/python3.12"),
        (["--oldest", "3.12"], "b/python3.12"),
        (["--oldest", "3.11"], "c/python3.11"),
        (["3.11"], "c/python3.11"),
    ],
)
def test_the_scripts_find_a_python(tmp_path: Path, path: str, arguments: list[str], found: str) -> None:
    done = find(path, *arguments)
    assert (done.stdout, done.stderr) == (f"{tmp_path / found}\n", "")


def test_a_python_that_is_not_there_is_not_found(path: str) -> None:
    done = find(path, "--oldest", "3.13")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 1)


def test_the_oldest_python_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == f">={OLDEST}"
    numbers = tuple(map(int, OLDEST.split(".")))
    assert f"sys.version_info < {numbers}" in (ROOT / "scripts/setup.sh").read_text()
    assert f"sys.version_info >= {numbers}" in (ROOT / "scripts/find_python.sh").read_text()
    for page in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "docs/project/versions.md"):
        assert re.findall(r"3\.11\.\d+", (ROOT / page).read_text()).count(OLDEST), page
    assert "debian:12" in (ROOT / ".github/workflows/ci.yml").read_text()  # which has it


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f"VERSIONS ?= {' '.join(versions)}\n" in (ROOT / "Makefile").read_text()
    assert tuple(versions) == dist.VERSIONS
    for name in ("ci", "nightly"):
        matrix = re.findall(r"python: (\[.*\])", (ROOT / f".github/workflows/{name}.yml").read_text())
        assert matrix == [str(versions).replace("'", '"')], name
    first, *others, last = versions
    assert f"Python {first} (from {OLDEST}), {', '.join(others)} and {last}" in (ROOT / "README.md").read_text()
    assert f"{first} from {OLDEST}, {', '.join(others)} and {last}" in (ROOT / "docs/project/versions.md").read_text()


@pytest.mark.parametrize("name", ["ci", "nightly", "release"])
def test_a_workflow_can_be_read_and_names_targets_that_exist(name: str) -> None:
    workflow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert {word for step in steps for word in re.findall(r"^make ([\w-]+)", step.get("run", ""))} <= targets
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in steps if "uses" in step)  # a tag can be moved
