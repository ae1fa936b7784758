"""Tables of the reference pages, made from the code itself so that they cannot drift.

Directives for reStructuredText blocks::

    .. options-table:: WHOSE    options with their types: of ``producer`` or ``consumer``; or only those of
                                ``both``, ``only-producer``, ``only-consumer``
    .. constants-table::        named constants, one dotted name a line
    .. errors-table::           the tree of errors
    .. errors-details::         the docstring of each
    .. server-codes-table::     the server's codes and the errors that they become
    .. spark-options-table::    the options of ``format("nsq")``
    .. connection-states::      the life of a connection, from its table of transitions
    .. sharding-vectors::       keys and their partitions by each rule

What a table says is in the docstrings of ``nsq_ha``; a missing one is an error
of the build.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from nsq_ha import Backoff, errors
from nsq_ha.options import config, keywords
from nsq_ha.options.language import declared
from nsq_ha.protocol import state
from nsq_ha.spark.options import KNOWN
from nsq_ha.spark.options.names import in_tls_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

VECTORS: Final = Path(__file__).parents[2] / "tests" / "vectors" / "sharding.json"

_OWNERS: Final = (
    (config.ClientConfig, keywords.ClientOptions, "both"),
    (config.ProducerConfig, keywords.ProducerOptions, "producer"),
    (config.ConsumerConfig, keywords.ConsumerOptions, "consumer"),
)
_UNITS: Final = {"seconds": "s", "bytes": "bytes"}
_SHOWN_PARTITIONS: Final = (2, 3, 4, 8, 10, 16)
_SHOWN_TEXTS: Final = ("order-1", "order-2", "user:42", "订单-1", "😀")
_SHOWN_NUMBERS: Final = (1, 123456789012345, -1)


_WHOSE: Final = {
    "producer": ("both", "producer"),
    "consumer": ("both", "consumer"),
    "both": ("both",),
    "only-producer": ("producer",),
    "only-consumer": ("consumer",),
}
"""Whose options each table has."""


class Option(NamedTuple):
    """One option: its name, whose it is, its type, its range, its default with its unit, and what it is for."""

    name: str
    owner: str
    type: str
    range: str
    default: str
    meaning: str


def options() -> list[Option]:
    """Return every option once, in the order of the code.

    Raises:
        LookupError: One has no docstring.
    """
    listed: list[Option] = []
    seen: set[str] = set()
    for owner, arguments, whose in _OWNERS:
        meanings, types = attribute_docs(owner), attribute_types(arguments)
        for name, option in declared(owner).items():
            if name in seen:
                continue
            seen.add(name)
            if name not in meanings:
                raise LookupError(f"{owner.__name__}.{name} has no docstring")
            default = _shown(option.default, _UNITS.get(option.unit, ""))
            listed.append(Option(name, whose, types[name], option.range, default, meanings[name]))
    return listed


def attribute_docs(owner: type) -> dict[str, str]:
    """Return what a class says of its attributes, below them or in its own docstring, each as one line."""
    section = (inspect.getdoc(owner) or "").partition("\nAttributes:\n")[2]
    listed = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in listed} | dict(_documented(_body(owner)))


def attribute_types(owner: type) -> dict[str, str]:
    """Return the types of the attributes of a class as its source has them."""
    return {
        statement.target.id: ast.unparse(statement.annotation).replace("'", '"')
        for statement in _body(owner)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


@cache
def _body(owner: type) -> Sequence[ast.stmt]:
    (body,) = (node.body for node in ast.walk(ast.parse(inspect.getsource(owner))) if isinstance(node, ast.ClassDef))
    return body


def _documented(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, after in itertools.pairwise(body):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
            case _:
                pass


def _shown(default: object, unit: str) -> str:
    if default in ((), ""):
        return "none"
    if isinstance(default, Backoff):
        return (
            f"{default.initial:g} s, then × {default.factor:g} up to {default.maximum:g} s, jitter {default.jitter:g}"
        )
    if isinstance(default, enum.Enum):
        return f"``{default}``"
    if isinstance(default, int | float) and not isinstance(default, bool):
        return number(default, unit)
    return f"``{default!r}``"


def number(value: float, unit: str) -> str:
    """Return a number with its unit; whole kibibytes and mebibytes as such."""
    if isinstance(value, int) and unit == "bytes":
        for size, larger in ((1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size} {larger}"
    return (f"{value:,}" if isinstance(value, int) else f"{value:g}") + (f" {unit}" if unit else "")


def options_table(whose: str) -> str:
    """Return a table of options.

    Raises:
        LookupError: There is no such table.
    """
    if whose not in _WHOSE:
        raise LookupError(f"options-table:: is one of {', '.join(_WHOSE)}, not {whose!r}")
    head = ("Option", "Type and range", "Default", "What it is, and why")
    rows = [
        (
            f"``{option.name}``",
            f"``{option.type}``" + (f", {option.range}" if option.range else ""),
            option.default,
            option.meaning,
        )
        for option in options()
        if option.owner in _WHOSE[whose]
    ]
    return _in_module("nsq_ha.options.config", table(head, rows, widths="22 22 12 44", stack=True))


def constants_table(names: Iterable[str]) -> str:
    """Return the table of some constants.

    Raises:
        LookupError: There is no such constant, or it has no docstring.
    """
    rows = []
    for dotted in names:
        module_name, _, name = dotted.rpartition(".")
        module = importlib.import_module(module_name)
        meanings = dict(_documented(ast.parse(inspect.getsource(module)).body))
        if name not in meanings:
            raise LookupError(f"{dotted} is no documented constant")
        unit = "bytes" if name.endswith("_BYTES") else ""
        rows.append((f"``{name}``", number(getattr(module, name), unit), meanings[name]))
    return table(("Name", "Value", "What it is"), rows)


def error_classes() -> list[tuple[type[errors.NsqError], int]]:
    """Return every error below the root with its depth, parents before children."""

    def below(parent: type[errors.NsqError], depth: int) -> Iterator[tuple[type[errors.NsqError], int]]:
        yield parent, depth
        for child in parent.__subclasses__():
            if child.__module__ == errors.__name__:
                yield from below(child, depth + 1)

    return list(below(errors.NsqError, 0))


def errors_table() -> str:
    """Return the tree of errors with what a caller may do about each."""
    rows = [
        (
            "\N{EM SPACE}" * depth + f":exc:`~nsq_ha.errors.{error.__name__}`",
            # A publish that may be stored must not be repeated blindly.
            "as its cause, if not stored" if issubclass(error, errors.PublishError) else _yes(error.retriable),
            _yes(error.stale_leader),
            _first_paragraph(error),
        )
        for error, depth in error_classes()
    ]
    return _in_module(
        "nsq_ha.errors", table(("Error", "Later", "Look up", "What happened, what to do"), rows, widths="30 10 10 50")
    )


def errors_details() -> str:
    """Return what autodoc says of each error; the two flags are in the table."""
    lines: list[str] = []
    for error, depth in error_classes():
        lines.append(f".. autoexception:: nsq_ha.errors.{error.__name__}")
        lines.append("   :show-inheritance:")
        if depth:
            lines.append("   :exclude-members: retriable, stale_leader")
        lines.append("")
    return "\n".join(lines)


def server_codes_table() -> str:
    """Return the table of the server's codes."""
    rows = [
        (f"``{code}``", f":exc:`~nsq_ha.errors.{error.__name__}`", _yes(error.retriable), _yes(error.stale_leader))
        for code, error in errors.SERVER_ERRORS.items()
    ]
    return table(("Code", "Becomes", "Later", "Look up"), rows)


def _code(text: str) -> str:
    """Show as code what somebody may copy: JSON, flags, names of options. As text its quotes would become curly."""
    return re.sub(
        r"\{(?:[^{}]|\{[^{}]*\})*\}|(?<!\w)--[a-z][a-z-]*|\b[\w.]+=\w+|(?<!`)\b[a-z]+[A-Z]\w*", r"``\g<0>``", text
    )


def _without_none(meaning: str) -> str:
    """Return a text about a field as one about the option of Spark, whose values are texts."""
    return in_tls_options(meaning).replace("None ", "Leave it out ").replace("False ", "``false`` ")


def spark_options_table() -> str:
    """Return the table of the options of ``format("nsq")``."""
    rows = []
    for name, known in KNOWN.items():
        meanings = [attribute_docs(owner)[field] for owner, field in known.fields]
        meaning = " ".join(dict.fromkeys(map(_without_none, meanings)))
        values = "" if known.option.wanted == "a str" else f" Values: {known.option.wanted}."
        default = f"``{known.default}``" if known.default else "–"
        rows.append((f"``{name}``", ", ".join(known.modes), default, _code(meaning + values)))
    return table(("Option", "For", "Default", "Meaning, values"), rows, widths="24 19 11 46", stack=True)


def connection_states() -> str:
    """Return what may happen in each state of a connection, and where it leads."""
    meanings = attribute_docs(state.ConnectionState)
    waiting = {sent.after: sent.request for sent in (*state.SENDS.values(), state.UPGRADES) if sent.request}
    rows = []
    for here in state.ConnectionState:
        sends = [
            command.word.decode() + ("" if sent.after is None else f" → {sent.after.name}")
            for command, sent in state.SENDS.items()
            if here in sent.allowed
        ]
        if here in state.UPGRADES.allowed:
            sends.append(f"TLS or compression → {state.ConnectionState.UPGRADING.name}")
        comes = ["heartbeats"] * (here in state.OPEN)
        if (request := waiting.get(here)) is not None:
            after = state.ANSWERED.get(request, here)
            comes.append(f"the answer to {request.name}" + ("" if after is here else f" → {after.name}"))
        comes += ["answers to publishes"] * (here in state.PUBLISHES.allowed)
        comes += ["messages", "errors that answer no request"] * (here in state.CONSUMING)
        rows.append((here.name, meanings[here.name], ", ".join(sends) or "–", ", ".join(comes) or "–"))
    return table(("State", "Meaning", "May be sent", "May arrive"), rows, widths="20 24 26 30")


def sharding_vectors() -> str:
    """Return keys and their partitions by the rules of the three existing clients, as those computed them.

    Raises:
        LookupError: A key that is shown was not recorded.
    """
    recorded = json.loads(VECTORS.read_text("utf-8"))
    rows: list[tuple[str, ...]] = []
    for text in _SHOWN_TEXTS:
        rows.append(_vector(repr(text), "murmur3", recorded["go_murmur3_32"], key=text))
        rows.append(_vector(repr(text), "java", recorded["java_hashcode"], key=text, type="string"))
    for number in _SHOWN_NUMBERS:
        rows.append(_vector(str(number), "murmur3", recorded["go_murmur3_32"], key=str(number)))
        rows.append(_vector(str(number), "java", recorded["java_hashcode"], key=number, type="long"))
        if number >= 0:
            rows.append(_vector(str(number), "modulo", recorded["php_modulo"], key=number))
    rows.append(_vector("JavaInt(-7)", "java", recorded["java_hashcode"], key=-7, type="int"))
    return table(("Key", "Rule", *(f"of {count}" for count in _SHOWN_PARTITIONS)), rows)


def _vector(shown: str, rule: str, recorded: dict[str, Any], **wanted: object) -> tuple[str, ...]:
    for vector in recorded["vectors"]:
        if all(vector.get(name) == value for name, value in wanted.items()):
            return (f"``{shown}``", rule, *(str(vector["partition"][str(count)]) for count in _SHOWN_PARTITIONS))
    raise LookupError(f"no vector of {rule} for {shown}")


def _yes(flag: bool) -> str:
    return "yes" if flag else "–"


def _first_paragraph(documented: type) -> str:
    text = inspect.getdoc(documented)
    if not text:
        raise LookupError(f"{documented.__name__} has no docstring")
    paragraphs = text.partition("\nAttributes:")[0].split("\n\n")
    return " ".join(" ".join(paragraphs).split())


def _in_module(module: str, text: str) -> str:
    return f".. py:currentmodule:: {module}\n\n{text}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, widths: str = "auto", stack: bool = False) -> str:
    """Return a list-table of cells that are one line of reStructuredText each; widths are percent.

    With ``stack``, the style sheet puts the cells of a row below each other on a phone.
    """
    lines = [
        ".. list-table::",
        "   :header-rows: 1",
        f"   :widths: {widths}",
        *(["   :class: stack"] if stack else []),
        "",
    ]
    for row in (head, *rows):
        lines += [f"   {'* -' if index == 0 else '  -'} {cell}" for index, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


class Made(SphinxDirective):
    """Puts the text that ``make`` gives into the page."""

    make: ClassVar[Callable[[], str]]

    def run(self) -> list[nodes.Node]:
        """Parse the text where the directive stands."""
        return self.parse_text_to_nodes(self.text())

    def text(self) -> str:
        """Return the text; an error of its making ends the build."""
        return type(self).make()


class _Options(Made):
    required_arguments = 1

    def text(self) -> str:
        return options_table(self.arguments[0])


class _Constants(Made):
    has_content = True

    def text(self) -> str:
        return constants_table(line.strip() for line in self.content if line.strip())


def by_last_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    """Resolve a name of ours that docstrings write as their module imports it, such as ``ConfigError``."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or ("." in target and not target.startswith("nsq_ha.")):
        return None
    objects = env.domains.python_domain.objects
    wanted = target.rpartition(".")[2]
    found = [name for name, entry in objects.items() if name.rpartition(".")[2] == wanted and not entry.aliased]
    if len(found) != 1:
        return None
    entry = objects[found[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, shown, found[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives, and what makes names in docstrings resolve."""
    app.connect("missing-reference", by_last_name)
    tables: dict[str, Callable[[], str]] = {
        "errors-table": errors_table,
        "errors-details": errors_details,
        "server-codes-table": server_codes_table,
        "spark-options-table": spark_options_table,
        "connection-states": connection_states,
        "sharding-vectors": sharding_vectors,
    }
    for name, make in tables.items():
        app.add_directive(name, type(name, (Made,), {"make": staticmethod(make)}))
    app.add_directive("constants-table", _Constants)
    app.add_directive("options-table", _Options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
