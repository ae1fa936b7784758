"""Each sentence that promises something links to a test that exists and runs at every change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ROOT
from tests.support.promises import Evidence, sentences, sentences_of, unused_definitions, why_no_evidence, why_not_run

PAGES = {
    ROOT / "SECURITY.md": 16,
    ROOT / "docs" / "explanation" / "promises.md": 37,
    ROOT / "docs" / "explanation" / "threats.md": 33,
}
"""Each page, and how many of its sentences may have no test: a further one wants a second look."""

TESTS = sorted({test for page in PAGES for sentence in sentences_of(page) for test in sentence.tests}, key=str)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pages
def test_each_sentence_has_a_test_or_a_reason(page: Path) -> None:
    assert [sentence.fault for sentence in sentences_of(page) if sentence.fault] == []


@pages
def test_few_sentences_have_no_test(page: Path) -> None:
    found = sentences_of(page)
    assert sum(not sentence.tests for sentence in found) <= PAGES[page]
    assert any(sentence.tests for sentence in found)


@pages
def test_each_link_that_is_defined_is_used(page: Path) -> None:
    assert unused_definitions(page.read_text("utf-8")) == set()


def test_a_test_that_a_page_links_to_runs() -> None:
    assert [why for test in TESTS if (why := why_no_evidence(test)) is not None] == []


def test_the_pages_have_tests() -> None:
    assert len(TESTS) > 100


# ---------------------------------------------------------------- the check can fail

LINK = '[✓](tests/test_x.py "test_y")'
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
    'It holds. [✓](https://example.org/tests/x "test_y")',
    "`a.b` holds.",
    "It holds (always). See [elsewhere](docs/x.md).",
    "<!-- no test: advice -->\n\nDo that.\n\nIt holds.",
    "It holds.\n<!-- no test: advice -->\n",
    f"| case | what |\n|---|---|\n| a | it holds {LINK} |\n| b | it holds |",
    f"| case | what |\n|---|---|\n| a | It holds. So does this. {LINK} |",
    f"| case | what |\n|---|---|\n| a | it holds. {LINK} | It too. |\n| b | It holds. And so {LINK} |",
]


@pytest.mark.parametrize("text", WITHOUT)
def test_a_sentence_without_a_test_is_found(text: str) -> None:
    assert any("has no test" in (sentence.fault or "") for sentence in sentences(text))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It holds.<!-- no test: I am sure -->", "no reason is ['I am sure']"),
        (f"It holds. {LINK}<!-- no test: server -->", "has a test, and a reason"),
        (f"<!-- no test: server -->\n\n- It holds. {LINK}\n- It too.", "has a test, and a reason"),
    ],
)
def test_a_reason_that_is_none_is_found(text: str, fault: str) -> None:
    assert fault in str([sentence.fault for sentence in sentences(text)])


@pytest.mark.parametrize(
    "text",
    [
        "# It holds",
        f"It holds. {LINK}",
        f"It holds {LINK}, and so does this. {LINK}",
        f"**A heading.** It holds. {LINK}",
        f"These hold:\n\n- one. {LINK}\n- another. {LINK}",
        "Do that.<!-- no test: advice -->",
        "Do that, and do it soon.<!-- no test:\nadvice --> Do this, too.<!-- no test: advice -->",
        "<!-- no test: server -->\n\n- It does this. And this.\n  - And this.",
        "- <!-- no test: server -->\n  **A heading.** It does this. And this.",
        f"| case | what |\n|---|---|\n| a | it holds {LINK} |\n| b | It holds. {LINK} It too {LINK} |",
        "It holds. [✓][a]\n\n[a]: tests/test_x.py 'test_y'",
        "```python\nprint('It holds.')\n```",
        "(a-label)=\n# It holds",
    ],
)
def test_what_is_in_order_passes(text: str) -> None:
    assert [sentence.fault for sentence in sentences(text) if sentence.fault] == []


def test_links_are_read_with_their_folder() -> None:
    (sentence,) = sentences('It holds. [✓](../../tests/a/test_x.py "test_y")', ROOT / "docs" / "explanation")
    assert sentence.tests == [Evidence("tests/a/test_x.py", "test_y")]
    assert sentence.text == "It holds."


def test_a_link_that_nothing_uses_is_found() -> None:
    assert unused_definitions("It holds. [✓][a]\n\n[a]: tests/x.py 'test_y'\n[b]: tests/x.py 'test_z'") == {"b"}


SOURCE = """
import pytest

def helper(): ...
def test_plain(): ...
async def test_async(one, two): ...
@pytest.mark.parametrize("a", [1, 2])
def test_parametrised(a): ...
@pytest.mark.timeout(5)
def test_with_a_limit(): ...
class TestClass:
    def test_method(self): ...
    def helper(self): ...
class Other:
    def test_uncollected(self): ...
TestMachine = Machine.TestCase
TestNothing = 5

@pytest.mark.skip(reason="later")
def test_skipped(): ...
@pytest.mark.skipif(True, reason="never here")
def test_skipped_if(): ...
@pytest.mark.xfail
def test_expected_to_fail(): ...
@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.xfail)])
def test_one_of_them_fails(a): ...
@pytest.mark.slow
def test_slow(): ...
def test_skips_itself():
    pytest.skip("not today")
def test_fails_itself():
    if True:
        pytest.xfail("not today")
def test_with_a_browser(browser): ...
needs_luck = pytest.mark.skipif(True, reason="never here")
@needs_luck
def test_with_a_mark_by_name(): ...
@pytest.fixture
def hardware(): pytest.skip("none here")
def test_with_a_fixture_of_the_file(hardware): ...
@pytest.mark.usefixtures("hardware")
def test_with_a_fixture_by_name(): ...
def needs_hardware(): pytest.skip("none here")
def test_with_a_helper():
    needs_hardware()
@pytest.mark.parametrize("a", [])
def test_without_cases(a): ...
@pytest.mark.skip
class TestSkipped:
    def test_in_a_skipped_class(self): ...
"""


@pytest.mark.parametrize(
    "name", ["test_plain", "test_async", "test_parametrised", "test_with_a_limit", "test_method", "TestMachine"]
)
def test_a_test_that_runs(name: str) -> None:
    assert why_not_run(SOURCE, name, frozenset({"browser"})) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "no test is named ''"),
        ("test_gone", "no test is named 'test_gone'"),
        ("helper", "no test is named 'helper'"),
        ("test_uncollected", "no test is named"),
        ("TestNothing", "no test is named"),
        ("test_skipped", "has 'skip'"),
        ("test_skipped_if", "has 'skipif'"),
        ("test_expected_to_fail", "has 'xfail'"),
        ("test_one_of_them_fails", "has 'xfail'"),
        ("test_slow", "has 'slow'"),
        ("test_skips_itself", "has 'skip'"),
        ("test_fails_itself", "has 'xfail'"),
        ("test_with_a_browser", "uses 'browser', which may skip it"),
        ("test_with_a_mark_by_name", "has 'skipif'"),
        ("test_with_a_fixture_of_the_file", "uses 'hardware', which may skip it"),
        ("test_with_a_fixture_by_name", "uses 'hardware', which may skip it"),
        ("test_with_a_helper", "uses 'needs_hardware', which may skip it"),
        ("test_without_cases", "has no cases"),
        ("test_in_a_skipped_class", "has 'skip'"),
    ],
)
def test_a_test_that_shows_nothing_is_found(name: str, why: str) -> None:
    assert why in (why_not_run(SOURCE, name, frozenset({"browser"})) or "")


def test_a_file_whose_tests_are_all_left_out_is_found() -> None:
    source = "pytestmark = [pytest.mark.spark, pytest.mark.slow]\ndef test_plain(): ..."
    assert why_not_run(source, "test_plain") == "test_plain has 'slow'"
    source = "pyarrow = pytest.importorskip('pyarrow')\ndef test_plain(): ..."
    assert why_not_run(source, "test_plain") == "test_plain has 'importorskip'"


def test_a_test_of_no_cases_fails(pytestconfig: pytest.Config) -> None:
    """By default it would be skipped; which values there are is known only when the file is read."""
    assert pytestconfig.getini("empty_parameter_set_mark") == "fail_at_collect"


def test_a_file_or_a_fixture_of_a_conftest_that_shows_nothing_is_found() -> None:
    assert why_no_evidence(Evidence("tests/test_gone.py", "test_x")) == "tests/test_gone.py does not exist"
    drawn = Evidence("tests/dashboard/test_in_a_browser.py", "test_with_the_keyboard_on_a_phone_in_the_dark")
    assert "browser" in (why_no_evidence(drawn) or "")
