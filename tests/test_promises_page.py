"""Each sentence that promises something links to a test that exists and runs at every change."""

from pathlib import Path

import pytest

from tests.support.pages import ROOT, named_in
from tests.support.promises import LEFT_OUT, sentences, unused_definitions, why_no_evidence

PAGES = {
    ROOT / "SECURITY.md": 16,
    ROOT / "docs" / "explanation" / "promises.md": 21,
    ROOT / "docs" / "explanation" / "threats.md": 30,
}
"""Each page, and how many of its sentences may have no test: a further one wants a second look."""

TESTS = sorted({test for page in PAGES for sentence in sentences(page.read_text("utf-8")) for test in sentence.tests})

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pages
def test_each_sentence_has_a_test_or_a_reason(page: Path) -> None:
    assert [sentence.fault for sentence in sentences(page.read_text("utf-8")) if sentence.fault] == []


@pages
def test_few_sentences_have_no_test(page: Path) -> None:
    found = sentences(page.read_text("utf-8"))
    assert sum(not sentence.tests for sentence in found) <= PAGES[page]
    assert any(sentence.tests for sentence in found)


@pages
def test_each_link_that_is_defined_is_used(page: Path) -> None:
    assert unused_definitions(page.read_text("utf-8")) == set()


def test_a_test_that_a_page_links_to_runs() -> None:
    assert [why for test in TESTS if (why := why_no_evidence(test)) is not None] == []


def test_a_test_that_any_page_links_to_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
    tests = {test for page in pages for test in named_in(page.read_text("utf-8"))}
    found = {test: why_no_evidence(test) for test in tests}
    assert {test: why for test, why in found.items() if why is not None and not LEFT_OUT.search(why)} == {}
    assert len(tests) > 250


def test_the_pages_have_tests() -> None:
    assert len(TESTS) > 100


# ---------------------------------------------------------------- the check can fail

LINK = "[✓](tests/test_x.py#test_y)"
WITHOUT = [
    "It holds.",
    f"It holds. {LINK} So does this.",
    f"It holds. So does this. {LINK}",
    f"**It holds**, always. And so does this. {LINK}",
    "**It holds.**",
    f"**It holds. Always.** It does. {LINK}",
    "Without a full stop",
    "It is so: nothing follows.",
    "This leads to nothing:\n\nnothing.",
    f"- One. {LINK}\n- Another.",
    f"1. One. {LINK}\n   - Below it.",
    "> It is quoted.",
    "Does it hold?",
    "It holds. [✓](https://example.org/tests/x.py#test_y)",
    "`a.b` holds.",
    "It holds (always). See [elsewhere](docs/x.md).",
    "<!--no-test:advice-->\n\nDo that.\n\nIt holds.",
    "It holds.\n<!--no-test:advice-->\n",
    f"| case | what |\n|---|---|\n| a | it holds {LINK} |\n| b | it holds |",
    f"| case | what |\n|---|---|\n| a | It holds. So does this. {LINK} |",
    f"| case | what |\n|---|---|\n| a | it holds. {LINK} | It too. |\n| b | It holds. And so {LINK} |",
]


@pytest.mark.parametrize("text", WITHOUT)
def test_a_sentence_without_a_test_is_found(text: str) -> None:
    assert any("has no test" in (sentence.fault or "") for sentence in sentences(text))


def test_a_test_that_shows_nothing_is_found() -> None:
    here = "tests/test_promises_page.py"
    assert why_no_evidence(f"{here}::test_the_pages_have_tests") is None
    assert why_no_evidence("tests/test_gone.py::test_x") == "tests/test_gone.py does not exist"
    assert why_no_evidence(f"{here}::test_gone") == f"{here} has no test 'test_gone'"
    slow = "test_a_program_without_cpu_is_not_said_to_block"
    assert why_no_evidence(f"tests/consumer/test_blocking.py::{slow}") == f"{slow} has 'slow'"


def test_a_test_of_no_cases_fails(pytestconfig: pytest.Config) -> None:
    """By default it would be skipped; which values there are is known only when the file is read."""
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"
