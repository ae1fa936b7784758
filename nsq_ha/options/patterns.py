r"""Regular expressions and globs as nsqd's filters understand them: Go's ``regexp`` and ``gobwas/glob``.

Go's ``regexp`` has the syntax of RE2, so RE2 itself does the work: a match takes time in proportion to the text. What
RE2 knows and Go does not, such as ``\C``, nsqd refuses. Python's ``re`` accepts other expressions, and can take
exponential time. The extra ``filters`` brings RE2, so only what needs it imports this module.

RE2 works on bytes, Go on characters: here an unanchored ``\B`` also matches inside a character that is not ASCII.

In a glob, ``*`` and ``**`` stand for any text, ``?`` for one character, ``[abc]``, ``[!abc]``, ``[a-c]`` and
``[!a-c]`` for one of or none of these, ``{one,two}`` for one of these patterns, which have no braces; ``\`` makes the
next character an ordinary one. A class has either characters or one range. gobwas/glob panics on some patterns with
empty or open braces, which ends nsqd; here they are errors. It also finds the empty text in a pattern of only ``?`` or
``[!abc]``, as here, and misses some texts that are not ASCII.

Source: Go's ``regexp/syntax/parse.go``; github.com/gobwas/glob v0.2.3 ``syntax/lexer/lexer.go``,
``syntax/ast/parser.go``.
"""

from __future__ import annotations

import re
from typing import Final

try:
    import re2
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "filters by regexp and glob need google-re2: install nsq_ha[filters]", name="google-re2"
    ) from _error

from nsq_ha.options.checks import MAX_FILTER_BYTES

_OPTIONS: Final = re2.Options()
_OPTIONS.max_mem = 1 << 20
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True

_GLOB: Final = re.compile(
    r"""
      (?P<anything> \*+ )
    | (?P<one> \? )
    | (?P<range> \[ (?P<no_range>!?+) (?P<low>.) - (?P<high>.) \] )
    | (?P<class> \[ (?P<no_class>!?+) (?!.-) (?P<chars>(?: \\. | [^]\\] )+) \] )
    | \{ (?P<either> (?: \\. | \[[^]]*\] | [^]\[{}\\] )* ) \}
    | (?P<wrong> [\[{] )
    | (?P<char> \\ .? | . )
    """,
    re.VERBOSE | re.DOTALL,
)


class Pattern:
    """A compiled pattern.

    Args:
        expression: An expression of RE2.

    Attributes:
        size: A match takes at most as many steps as this times the bytes of the text.

    Raises:
        ValueError: RE2 refuses the expression, or it is too large.
    """

    def __init__(self, expression: str) -> None:
        try:
            self._compiled = re2.compile(expression, _OPTIONS)
        except re2.error as error:
            reason = error.args[0]
            raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else reason) from error
        self.size: int = self._compiled.programsize

    def matches(self, text: str) -> bool:
        """Return whether the expression matches anywhere in ``text``."""
        return self._compiled.search(text.encode(errors="surrogateescape")) is not None


def compile_regexp(pattern: str) -> Pattern:
    """Return the pattern for a regular expression, which may match anywhere in the text.

    Raises:
        ValueError: RE2 refuses the expression, or it is too large.
    """
    return Pattern(_checked(pattern))


def compile_glob(pattern: str) -> Pattern:
    """Return the pattern for a glob, which must match the whole text.

    Raises:
        ValueError: nsqd refuses the glob, or it is too large.
    """
    if "\0" in pattern or "\ufffd" in pattern:  # these mean "end" and "error" there
        raise ValueError("a glob must not contain the characters U+0000 and U+FFFD")
    tokens = list(_GLOB.finditer(_checked(pattern)))
    may_be_empty = len(tokens) == 1 and (pattern == "?" or pattern.startswith("[!"))
    return _whole(_expression(pattern) + ("|" if may_be_empty else ""))


def _whole(expression: str) -> Pattern:
    return Pattern(rf"(?s)\A(?:{expression})\z")


def _checked(pattern: str) -> str:
    if len(pattern.encode()) > MAX_FILTER_BYTES:
        raise ValueError(f"it is longer than {MAX_FILTER_BYTES} bytes")
    return pattern


def _expression(glob: str) -> str:
    """Return the expression of RE2 for a glob."""
    return "".join(map(_piece, _GLOB.finditer(glob)))


def _piece(token: re.Match[str]) -> str:
    """Return the expression for one token."""
    match token.lastgroup:
        case "anything":
            return ".*"
        case "one":
            return "."
        case "range":
            if token["high"] < token["low"]:
                raise ValueError(f"the range {token['low']}-{token['high']} is empty")
            return _class(token["no_range"], f"{_code(token['low'])}-{_code(token['high'])}")
        case "class":
            return _class(token["no_class"], "".join(map(_code, _unescaped(token["chars"]))))
        case "either":
            patterns = re.split(r"(?<!\\),", token["either"])
            if not all(patterns):
                raise ValueError("braces {...} must have no empty pattern")
            return f"(?:{'|'.join(map(_expression, patterns))})"
        case "wrong":
            raise ValueError("braces {...} and a class [...] must be closed; a class has characters or one range")
        case _:
            return str(re2.escape(_unescaped(token[0])))


def _class(no: str, inside: str) -> str:
    return f"[{'^' if no else ''}{inside}]"


def _code(char: str) -> str:
    return rf"\x{{{ord(char):x}}}"


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.?)", r"\1", text, flags=re.DOTALL)
