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
    "docker": "install#A cluster to try it",
    "install": "install#Install",
    "rewind": "how-to/consume#Choose where a channel starts",
    "seek": "how-to/consume#Choose where a channel starts",
    "nack": "how-to/consume#When handlers fail",
    "retry": "how-to/consume#When handlers fail",
    "poison": "how-to/dead-letters#Dead letters: keep, read, replay",
    "backpressure": "how-to/consume#Slow down and pause",
    "dedupe": "how-to/consume#Middleware",
    "pydantic": "how-to/consume#Give handlers a typed body",
    "mypy": "reference/options#Options",
    "middleware": "how-to/consume#Middleware",
    "KeyboardInterrupt": "how-to/consume#Stop cleanly",
    "consumer group": "how-to/consume#Use a handler",
}
"""Words that people search for: the search puts the section first, of all, that has the word in its index."""


@pytest.mark.parametrize(("word", "place"), WORDS.items())
def test_the_search_finds_the_words_of_other_clients(word: str, place: str) -> None:
    sections = {
        f"{path.relative_to(DOCS).with_suffix('')}#{heading}": (re.findall(r"!([^,\n]+)", entries), text)
        for path in DOCS.rglob("*.md")
        for heading, entries, text in re.findall(
            r"^#+ (.+)\n\n```{index} (.+)\n```\n((?:(?!^#+ ).*\n)*)", path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert [name for name, (entries, _) in sections.items() if word in entries] == [place]
    assert word.lower() in f"{place} {sections[place][1]}".lower() or word == "retry"  # "retries"


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
