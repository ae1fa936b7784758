"""The jobs that people come for are near the front page, and the pages are few and short."""

import re

import pytest

from tests.examples import ROOT

DOCS = ROOT / "docs"
JOBS = {
    "a producer in Flask": "how-to/frameworks",
    "ordered consuming": "tutorial/ordered",
    "retries": "how-to/consume",
    "dead letters": "how-to/dead-letters",
    "Spark to Parquet each minute": "how-to/spark-streams",
    "coming from pynsq": "how-to/from-pynsq",
    "TLS and AUTH": "how-to/secure",
}

WORDS = {
    "docker": "install",
    "rewind": "how-to/consume",
    "seek": "how-to/consume",
    "nack": "how-to/consume",
    "poison": "how-to/dead-letters",
    "backpressure": "how-to/consume",
    "dedupe": "how-to/consume",
    "pydantic": "how-to/headers",
    "mypy": "reference/options",
    "middleware": "how-to/consume",
    "KeyboardInterrupt": "how-to/consume",
    "consumer group": "how-to/consume",
}
"""Words that people search for: the search puts a page with the word in its index first."""


@pytest.mark.parametrize(("word", "page"), WORDS.items())
def test_the_search_finds_the_words_of_other_clients(word: str, page: str) -> None:
    entries = re.findall(r"!([^,\n]+)", (DOCS / f"{page}.md").read_text("utf-8").partition("```\n")[0])
    assert word in entries


def linked_from(page: str) -> set[str]:
    """Return the pages to which the text of a page leads."""
    text = (DOCS / f"{page}.md").read_text("utf-8").partition("```{toctree}")[0]
    names = re.findall(r"\{doc\}`(?:[^`<]*<)?([\w./-]+)>?`", text)
    here = (DOCS / page).parent
    places = [DOCS / name[1:] if name.startswith("/") else here / name for name in names]
    return {str(place.resolve().relative_to(DOCS)) for place in places}


@pytest.mark.parametrize("page", JOBS.values(), ids=JOBS.keys())
def test_a_job_is_two_clicks_from_the_front_page(page: str) -> None:
    assert page in linked_from("index") | {far for near in linked_from("index") for far in linked_from(near)}


def test_the_pages_are_few_and_short() -> None:
    """As ``wc -w`` counts: code, tables, links and comments, too."""
    pages = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
    assert len(pages) <= 61
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 40_000
