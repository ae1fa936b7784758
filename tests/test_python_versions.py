"""Which Python the scripts find, and that each place promises the same one."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import dist

ROOT = Path(__file__).parents[1]
OLDEST = "3.11.2"


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
