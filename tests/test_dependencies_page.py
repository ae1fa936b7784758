"""The page of dependencies names each of them, with the licence that it has and what it brings."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from tests.examples import ROOT

PAGE = (ROOT / "docs" / "project" / "dependencies.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return match[0].lower().replace("_", "-")


def rows(section: str) -> list[list[str]]:
    lines = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return cells[1:]


def brought(package: str, *, always: bool) -> set[str]:
    """Return what a package requires, and what that requires; with ``always`` only what no marker limits."""
    found: set[str] = set()
    try:
        requirements = distribution(package).requires or []
    except PackageNotFoundError:  # needed on another Python only
        return found
    for requirement in requirements:
        if "extra ==" not in requirement and not (always and ";" in requirement):
            name = name_of(requirement)
            found |= {name} | brought(name, always=always)
    return found


TABLE = {row[0]: row[1:] for row in rows("Always")} | {row[1]: row[2:] for row in rows("Extras")}


def test_the_page_names_each_dependency() -> None:
    assert [row[0] for row in rows("Always")] == sorted(
        map(name_of, PROJECT["dependencies"]), key=[row[0] for row in rows("Always")].index
    )
    extras = {
        (f"`{extra}`", name_of(each))
        for extra, wanted in PROJECT["optional-dependencies"].items()
        for each in wanted
        if not each.startswith("nsq_ha") and extra != "spark-worker"
    }
    assert {(row[0], row[1]) for row in rows("Extras")} == extras


@pytest.mark.parametrize("package", TABLE)
def test_licence_and_what_it_brings_are_those_of_the_package(package: str) -> None:
    _, licence, brings = TABLE[package]
    try:
        metadata = distribution(package).metadata
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    keys = ("License-Expression", "License", "Classifier")
    said = " ".join(line for key in keys for line in metadata.get_all(key) or [])
    assert licence in said
    named = {name_of(name) for name in brings.split(", ") if name}
    assert brought(package, always=True) <= named <= brought(package, always=False)


@pytest.mark.parametrize(
    ("page", "sentence", "words"),
    [
        ("README.md", "The core needs {} small packages", {6: "six", 7: "seven", 8: "eight"}),
        ("README.zh-CN.md", "核心只依赖{}个小型软件包", {6: "六", 7: "七", 8: "八"}),
    ],
)
def test_the_front_page_counts_them(page: str, sentence: str, words: dict[int, str]) -> None:
    assert sentence.format(words[len(PROJECT["dependencies"])]) in (ROOT / page).read_text("utf-8")
