"""Go's regular expressions and globs. What they match was compared with Go's libraries."""

import pytest

from nsq_ha.options.patterns import compile_glob, compile_regexp

REGEXPS = [
    ("^b", "bc", "ab"),
    ("(?m)^b$", "a\nb\nc", "ab"),
    ("a.c", "abc", "a\nc"),
    ("(?i)É", "é", "e"),
    ("^a{,2}$", "a{,2}", "aa"),
    (r"\Bb", "ab", "b"),
    (r"^\pL\PL\p{Lu}\p{^Lu}\p{Any}$", "é1Ée.", "1é1ée"),
    (r"^[[:alpha:]_-]+$", "ab_-", "a1"),
    (r"^\101\x41\x{1F600}\a\.\_$", "AA\U0001f600\a._", "AA"),
    ("(?P<one>a)(?P<two>b)", "ab", "a"),
]


@pytest.mark.parametrize(("pattern", "text", "other"), REGEXPS)
def test_regexps(pattern: str, text: str, other: str | None) -> None:
    found = compile_regexp(pattern)
    assert found.matches(text)
    assert other is None or not found.matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "(a", "[", "[a", "[]", "[b-a]", "[a-\\d]", "[[:nothing:]]", "a\\"),
        *("*", "a|*", "(+)", "a**", "a+{2}", "(?i)*", "{2}", "a{1001}", "a{3,2}", "(a{40}){40}"),
        *("(?=a)", "(?!a)", "(?<=a)", "(?#x)", "(?P=n)", "(?-)", "(?x)a", "(?"),
        *(r"\1", r"\Z", r"\q", r"\x4", r"\x{110000}", r"\é", r"\p", r"\pQ"),
        r"\pL{500}",
        "a" * 4097,
    ],
)
def test_wrong_regexps(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_regexp(pattern)


GLOBS = [
    ("a*c", "abbc", "abcd"),
    ("**", "", None),
    ("a?c", "abc", "ac"),
    ("?", "", "ab"),
    ("[!a]", "", "a"),
    ("[ab]c", "bc", "cc"),
    ("[!ab]c", "cc", "ac"),
    ("[a-c]", "b", "d"),
    ("[!a-c]x", "dx", "bx"),
    ("[-a]", "-", "b"),
    (r"[\]a]", "]", "\\"),
    ("{ab,c*,[de]f}g", "efg", "abc"),
    (r"\*a\{", "*a{", "xa{"),
    ("a,b}", "a,b}", "a"),
    ("a\\", "a", "a\\"),
    ("*.eu.*", "x.eu.y", "x.us.y"),
]


@pytest.mark.parametrize(("pattern", "text", "other"), GLOBS)
def test_globs(pattern: str, text: str, other: str | None) -> None:
    found = compile_glob(pattern)
    assert found.matches(text)
    assert other is None or not found.matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "[a",
        "[]",
        "[!]",
        "[a-",
        "[a-zA-Z]",
        "[c-a]",
        "{",
        "{a",
        "{a,",
        "{}",
        "{a,}",
        "*{,a}",
        "\0",
        "\ufffd",
        "{a,{b}}",
    ],
)
def test_wrong_globs(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        compile_glob(pattern)
