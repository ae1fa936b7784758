"""The jobs that people come for are near the front page, and are found by the words that people use."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

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
FOUND = {
    "tutorial/first-message": ["quickstart", "install"],
    "how-to/frameworks": ["Flask", "Django", "Celery"],
    "tutorial/ordered": ["ordered", "order"],
    "how-to/consume": ["retry", "retries", "ack", "requeue", "delay", "backoff"],
    "how-to/dead-letters": ["dead letter", "dead letters", "DLQ", "retry", "retries"],
    "how-to/spark": ["Spark"],
    "how-to/spark-streams": ["Parquet", "stream", "streaming", "every minute"],
    "how-to/from-pynsq": ["pynsq", "migrate"],
    "how-to/secure": ["authentication", "TLS", "SSL", "AUTH", "certificate", "password"],
    "how-to/plain-nsq": ["delay", "defer"],
    "how-to/observe": ["Prometheus", "health"],
    "how-to/headers": ["headers", "batch", "key"],
    "how-to/troubleshooting": ["timeout", "error"],
    "explanation/kafka": ["Kafka"],
    "explanation/promises": ["exactly once"],
}


def linked_from(page: str) -> set[str]:
    """Return the pages to which the text of a page leads."""
    text = (DOCS / f"{page}.md").read_text("utf-8").partition("```{toctree}")[0]
    names = re.findall(r"\{doc\}`(?:[^`<]*<)?([\w./-]+)>?`", text)
    here = (DOCS / page).parent
    places = [DOCS / name[1:] if name.startswith("/") else here / name for name in names]
    return {str(place.resolve().relative_to(DOCS)) for place in places}


@cache
def entries() -> dict[str, list[str]]:
    """Return each main entry of the index in lower case, with its pages: what the search weighs most.

    An entry without ``!``, which is not a main one, comes behind all other results. Terms of the glossary are main.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(DOCS.rglob("*.md")):
        if "_build" not in path.parts:
            page, text = str(path.relative_to(DOCS).with_suffix("")), path.read_text("utf-8")
            for line in re.findall(r"^```\{index\} (.+)$", text, re.MULTILINE):
                for entry in line.split(", "):
                    assert entry.startswith("! "), (page, entry)
                    found.setdefault(entry[2:].lower(), []).append(page)
            for terms in re.findall(r"^```\{glossary\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
                for term in re.findall(r"^\w.*", terms, re.MULTILINE):
                    found.setdefault(term.lower(), []).append(page)
    return found


def hits(word: str) -> list[str]:
    """Return the pages with an entry that has a word, the best first, as Sphinx's ``searchtools.js`` orders them."""
    weighed = [
        (-round(100 * len(word) / len(entry)), title_of(page), page)
        for entry, pages in entries().items()
        for page in pages
        if word.lower() in entry and 2 * len(word) >= len(entry)
    ]
    return [page for *_, page in sorted(weighed)]


def title_of(page: str) -> str:
    """Return the title of a page in lower case."""
    heading = re.search(r"^# (.+)", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE)
    assert heading is not None, page
    return heading[1].lower()


@pytest.mark.parametrize("page", JOBS.values(), ids=JOBS.keys())
def test_a_job_is_two_clicks_from_the_front_page(page: str) -> None:
    assert page in linked_from("index") | {far for near in linked_from("index") for far in linked_from(near)}


def test_a_word_leads_to_its_page_among_the_first_three() -> None:
    assert [(word, page) for page, words in FOUND.items() for word in words if page not in hits(word)[:3]] == []


def test_a_word_of_no_entry_finds_nothing() -> None:
    assert hits("moon") == []
    assert len(entries()) > 80


def test_the_pages_are_few_and_short() -> None:
    pages = [path for path in DOCS.rglob("*.md") if not {"_build", "decisions"} & set(path.parts)]
    assert len(pages) <= 60
    assert sum(map(words_of, pages)) < 40_000


def words_of(page: Path) -> int:
    """Return how many words a reader finds in the text of a page: no code, no comments, no targets of links."""
    text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\[[^\]]+\]: .*$|^:::.*$|\[✓\](?:\[\w*\]|\([^)]*\))", "", text, flags=re.MULTILINE)
    return len(re.findall(r"\w[\w'’.-]*", re.sub(r"\]\([^)]*\)", "]", text)))
