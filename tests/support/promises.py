"""Pages that promise something: their sentences, and the test that each links to.

What counts as a promise goes by structure, never by words: each sentence of each paragraph, list item and table of a
page. A sentence is followed by links to the tests that show it, as in ``So. [✓](../../tests/test_x.py#test_y)``, or
``[✓][order]`` where the page defines ``[order]``. One that no test can show says why in a hidden comment,
``<!--no-test:advice-->``, right behind it without a space, or on a line of its own for all of the next paragraph,
list or table. Not counted are:

- headings and code;
- a paragraph's first sentence, if it is bold: it is a heading;
- what ends in a colon before a list, a table or code.

A row of a table is one statement, in which a cell may hold further sentences.
"""

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import Final

from markdown_it import MarkdownIt

from tests.support.pages import ROOT, named_in

KINDS: Final = {
    "advice": "tells readers what to do",
    "limit": "says what is not promised, or does not hold",
    "people": "is about what the maintainers do",
    "reason": "explains or defines; another sentence has the test",
    "server": "says what the servers do, as measured on real ones",
    "scope": "says what the page or section is about",
}
"""Why a sentence has no test."""

_DEFINITION: Final = re.compile(r"^\[([^\]]+)\]: (.+)$", re.MULTILINE)
_USE: Final = re.compile(r"\]\[([^\]]+)\]")
_CODE: Final = re.compile(r"`[^`]+`")
_COMMENT: Final = re.compile(r"<!--no-test:(.*?)-->")
_ANCHOR: Final = re.compile(r"\([\w-]+\)=")
_NOTE: Final = rf"{_COMMENT.pattern}|\[✓\]\([^)]*\)"
_SENTENCE: Final = re.compile(rf".*?[.?!][)\"'*]*(?=\s|$|{_NOTE})(?:\s*(?:{_NOTE}))*", re.DOTALL)
_INTRODUCED: Final = ("bullet_list_open", "table_open", "fence", "html_block")
_LEAD: Final = re.compile(r"\A\*\*[^*.?!]*[.?!]\*\*(?=.)", re.DOTALL)


@dataclass
class Sentence:
    """One sentence of a page, with the links and comments behind it, and the reason that its block gives."""

    text: str
    excuse: str

    @property
    def tests(self) -> list[str]:
        """What shows it."""
        return named_in(self.text)

    @property
    def fault(self) -> str | None:
        """What is wrong with it, as far as the page goes. None if nothing is."""
        reasons = [*_COMMENT.findall(self.text), *([self.excuse] if self.excuse else [])]
        if unknown := [reason for reason in reasons if reason not in KINDS]:
            return f"{self.text}: no reason is {unknown}"
        if self.tests and reasons:
            return f"{self.text}: has a test, and a reason for having none"
        if not self.tests and not reasons:
            return f"{self.text}: has no test"
        return None


def sentences(page: str) -> list[Sentence]:
    """Return each sentence of a page's text that needs a test or a reason."""
    defined = dict(_DEFINITION.findall(page))
    page = _USE.sub(lambda use: f"]({defined.get(use[1], '')})", page)
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    found: list[Sentence] = []
    excuse, level, rest = "", 0, ""
    for index, token in enumerate(tokens):
        if token.level == level and token.nesting < 1:
            excuse = ""
        if token.type == "html_block" and (comment := _COMMENT.fullmatch(token.content.strip())):
            excuse, level = comment[1], token.level
        elif token.type == "inline" and tokens[index - 1].type in ("paragraph_open", "td_open"):
            text = _CODE.sub(lambda code: code[0].replace(".", "·"), token.content)
            is_cell = tokens[index - 1].type == "td_open"
            text = text if is_cell else _LEAD.sub("", text)
            ended = list(_SENTENCE.finditer(text))
            found += [Sentence(" ".join(each[0].split()), excuse) for each in ended]
            rest += text[ended[-1].end() if ended else 0 :].strip() + " | " * is_cell
        elif token.type in ("paragraph_close", "tr_close"):
            introduces = rest.endswith(":") and tokens[index + 1 : index + 2] and tokens[index + 1].type in _INTRODUCED
            if rest and not introduces and not _ANCHOR.fullmatch(rest):
                found.append(Sentence(rest, excuse))
            rest = ""
    return found


def unused_definitions(page: str) -> set[str]:
    """Return the links that a page defines and does not use."""
    return {name for name, _ in _DEFINITION.findall(page)} - set(_USE.findall(page))


# ------------------------------------------------------------ the tests

LEFT_OUT: Final = re.compile(r"\b(?:skip|skipif|xfail|slow|browser)\b")
"""Marks by which a test does not count, or is no part of the gate."""


def why_no_evidence(test: str) -> str | None:
    """Return why ``file::name`` shows nothing: it does not exist, or its mark leaves it out. None if it does."""
    path, _, wanted = test.partition("::")
    if not (ROOT / path).is_file():
        return f"{path} does not exist"
    tree = _parsed(path)
    for_all = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark = ")]
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == wanted:
                found = LEFT_OUT.search(" ".join([*map(ast.unparse, node.decorator_list), *for_all]))
                return f"{wanted} has {found[0]!r}" if found else None
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.ClassDef(name=name) if name == wanted:
                return None  # the tests of a state machine
    return f"{path} has no test {wanted!r}"


@cache
def _parsed(path: str) -> ast.Module:
    """Pages link to many tests of the same files."""
    return ast.parse((ROOT / path).read_text("utf-8"))
