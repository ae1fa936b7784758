"""Pages that promise something: their sentences, and the test that each links to.

What counts as a promise goes by structure, never by words: each sentence of each paragraph, list item and table of a
page. A sentence is followed by links to the tests that show it, as in ``It is so. [✓][order]``, where the page defines
``[order]: ../../tests/test_x.py "test_y"``. One that no test can show says why in a comment that readers do not see,
``<!-- no test: advice -->``, right behind it without a space, or on a line of its own for all of the next paragraph,
list or table. Not counted are:

- headings and code;
- a paragraph's first sentence, if it is bold: it is a heading;
- what ends in a colon before a list, a table or code.

A row of a table is one statement, in which a cell may hold further sentences.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from markdown_it.token import Token

KINDS: Final = {
    "advice": "tells readers what to do",
    "limit": "says what is not promised, or does not hold",
    "people": "is about what the maintainers do",
    "reason": "explains or defines; another sentence has the test",
    "server": "says what the servers do, as measured on real ones",
    "scope": "says what the page or section is about",
}
"""Why a sentence has no test."""

_COMMENT: Final = re.compile(r"<!--\s+no\s+test:\s+(.*?)\s+-->")
_FILE: Final = re.compile(r"(?:\.\./)*(?:tests|integration)/")
_ANCHOR: Final = re.compile(r"\([\w-]+\)=")
# What stands behind a sentence is one character of the private area each; so is a bold end, which may close one.
_NOTE: Final = 0xE100
_BOLD, _BOLD_END = "\ue000", "\ue001"
_NOTES: Final = re.compile(r"\s*([\ue100-\uefff])")
_END: Final = re.compile(r"[.?!][)\"'\ue001]*(?=\s|$|[\ue100-\uefff])")
_LEAD: Final = re.compile(r"\ue000[^\ue001.?!]*[.?!]\ue001(?=.)")


@dataclass(frozen=True)
class Evidence:
    """A link to a test: the file, from the root of the repository, and the function."""

    path: str
    name: str


@dataclass
class Sentence:
    """One sentence of a page.

    Attributes:
        line: Where its block begins, from 1.
        text: Without links and comments.
        tests: What shows it.
        reasons: Why it has no test.
    """

    line: int
    text: str
    tests: list[Evidence] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"

    @property
    def fault(self) -> str | None:
        """What is wrong with it, as far as the page goes. None if nothing is."""
        if unknown := [reason for reason in self.reasons if reason not in KINDS]:
            return f"{self}: no reason is {unknown}"
        if self.tests and self.reasons:
            return f"{self}: has a test, and a reason for having none"
        if not self.tests and not self.reasons:
            return f"{self}: has no test"
        return None


@dataclass
class _Block:
    """The text of one block, in which notes stand for links to tests and for reasons."""

    line: int
    text: str = ""
    notes: list[Evidence | str] = field(default_factory=list)

    def note(self, note: Evidence | str) -> None:
        self.text += chr(_NOTE + len(self.notes))
        self.notes.append(note)

    def sentence(self, text: str) -> Sentence:
        found = Sentence(self.line, "")
        for char in text:
            if _NOTE <= ord(char) < _NOTE + len(self.notes):
                note = self.notes[ord(char) - _NOTE]
                if isinstance(note, Evidence):
                    found.tests.append(note)
                else:
                    found.reasons.append(note)
            elif char not in (_BOLD, _BOLD_END):
                found.text += char
        found.text = " ".join(found.text.split())
        return found

    def sentences(self) -> tuple[list[Sentence], str]:
        """Return the sentences that end, and what is behind the last one."""
        found = []
        start = 0
        while end := _END.search(self.text, start):
            behind = end.end()
            while note := _NOTES.match(self.text, behind):
                behind = note.end()
            found.append(self.text[start:behind])
            start = behind
        return [self.sentence(text) for text in found], self.text[start:]


def sentences_of(page: Path) -> list[Sentence]:
    """Return each sentence of a page that needs a test or a reason."""
    return sentences(page.read_text("utf-8"), page.parent)


def sentences(text: str, folder: Path = ROOT) -> list[Sentence]:
    """Return each sentence of a text that needs a test or a reason; links are relative to ``folder``."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found: list[Sentence] = []
    reason, excused_until = "", 0
    index = 0
    while index < len(tokens):
        token = tokens[index]
        first = len(found)
        end = index + 1
        if token.type == "html_block" and (comment := _COMMENT.fullmatch(token.content.strip())):
            reason, excused_until = comment[1], _end_of(tokens, end)
        elif token.type == "table_open":
            end = _end_of(tokens, index)
            found += _of_table(tokens[index:end], folder)
        elif token.type == "paragraph_open":
            end = index + 3
            found += _of_paragraph(tokens[index + 1], tokens[end] if end < len(tokens) else None, folder)
        for sentence in found[first:]:
            sentence.reasons += [reason] if index < excused_until else []
        index = end
    return found


def unused_definitions(text: str) -> set[str]:
    """Return the links that a page defines and does not use."""
    defined = {name.lower() for name in re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE)}
    return defined - {name.lower() for name in re.findall(r"\]\[([^\]]+)\]", text)}


def _end_of(tokens: Sequence[Token], index: int) -> int:
    """Return the index behind the block that begins at an index."""
    depth = 0
    for at in range(index, len(tokens)):
        depth += tokens[at].nesting
        if depth == 0:
            return at + 1
    return len(tokens)


def _of_paragraph(token: Token, following: Token | None, folder: Path) -> Iterator[Sentence]:
    if _ANCHOR.fullmatch(token.content):
        return
    block = _read(token, folder)
    if lead := _LEAD.match(block.text):
        block.text = block.text[lead.end() :]
    ended, rest = block.sentences()
    yield from ended
    introduces = following is not None and following.type in ("bullet_list_open", "table_open", "fence", "html_block")
    if rest.strip() and not (introduces and rest.rstrip().endswith(":")):
        yield block.sentence(rest)


def _of_table(tokens: Sequence[Token], folder: Path) -> Iterator[Sentence]:
    for start, token in enumerate(tokens):
        if token.type != "tr_open" or tokens[start + 1].type != "td_open":
            continue
        cells = [each for each in tokens[start : _row_end(tokens, start)] if each.type == "inline"]
        rest = Sentence(_line(cells[0]), "")
        for cell in cells:
            block = _read(cell, folder)
            ended, text = block.sentences()
            yield from ended
            part = block.sentence(text)
            rest.text += f"{part.text} | "
            rest.tests += part.tests
            rest.reasons += part.reasons
        yield rest


def _row_end(tokens: Sequence[Token], start: int) -> int:
    return next(at for at in range(start, len(tokens)) if tokens[at].type == "tr_close")


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _read(token: Token, folder: Path) -> _Block:
    block = _Block(_line(token))
    to_test = False
    for child in token.children or ():
        match child.type:
            case "link_open" if _FILE.match(str(child.attrs["href"])):
                to_test = True
                block.note(_evidence(child, folder))
            case "link_close":
                to_test = False
            case "html_inline" if comment := _COMMENT.fullmatch(child.content):
                block.note(comment[1])
            case "strong_open":
                block.text += _BOLD
            case "strong_close":
                block.text += _BOLD_END
            case "softbreak" | "hardbreak":
                block.text += " "
            case "code_inline":
                block.text += f"`{child.content.replace('.', '·')}`"
            case "text" if not to_test:
                block.text += child.content
    return block


def _evidence(link: Token, folder: Path) -> Evidence:
    path = os.path.relpath(folder / str(link.attrs["href"]), ROOT)
    return Evidence(PurePosixPath(path).as_posix(), str(link.attrs.get("title", "")))


# ------------------------------------------------------------ the tests

LEFT_OUT: Final = re.compile(r"\b(?:skip|skipif|xfail|slow|browser)\b")
"""Marks by which a test does not count, or is no part of the gate."""


def why_no_evidence(evidence: Evidence) -> str | None:
    """Return why a linked test shows nothing: it does not exist, or its mark leaves it out. None if it does."""
    if not (ROOT / evidence.path).is_file():
        return f"{evidence.path} does not exist"
    tree = _parsed(evidence.path)
    for_all = [ast.unparse(node) for node in tree.body if ast.unparse(node).startswith("pytestmark = ")]
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == evidence.name:
                found = LEFT_OUT.search(" ".join([*map(ast.unparse, node.decorator_list), *for_all]))
                return f"{evidence.name} has {found[0]!r}" if found else None
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.ClassDef(name=name) if name == evidence.name:
                return None  # the tests of a state machine
    return f"{evidence.path} has no test {evidence.name!r}"


@cache
def _parsed(path: str) -> ast.Module:
    """Pages link to many tests of the same files."""
    return ast.parse((ROOT / path).read_text("utf-8"))
