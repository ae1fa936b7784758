"""Figures in the text of a page, taken from the code, so that they cannot drift.

``{figure}`policy.timing.QUICK_GAP in s``` is "0.25 s". Behind ``in`` is a unit, which may be left out.
Before it are dotted names of constants in ``nsq_ha``, names of options for their defaults, numbers, and + - * /
between them::

    {figure}`policy.liveness.SILENT_INTERVALS * heartbeat_interval in s`

A name that does not exist is an error of the build.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
import pkgutil
from typing import TYPE_CHECKING, Final

from docutils import nodes
from sphinx.util.docutils import SphinxRole

import nsq_ha
from docs._ext.reference import number
from nsq_ha.options.config import ConsumerConfig, ProducerConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sphinx.application import Sphinx

_SIGNS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_DEFAULTS: Final = {
    field.name: field.default for owner in (ProducerConfig, ConsumerConfig) for field in dataclasses.fields(owner)
}


def figure(text: str) -> str:
    """Return what a page shows for a figure: at most three digits if it is no whole number.

    Raises:
        LookupError: It names what does not exist, or is no number.
    """
    expression, _, unit = " ".join(text.split()).partition(" in ")
    value = _value(ast.parse(expression, mode="eval").body)
    return number(int(value) if value == int(value) else float(f"{value:.3g}"), unit)


def _value(node: ast.expr) -> float:
    match node:
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left), _value(right))
        case ast.Constant(value=value):
            found: object = value
        case ast.Name(id=name):
            found = _DEFAULTS[name]
        case _:
            try:
                found = pkgutil.resolve_name(f"{nsq_ha.__name__}.{ast.unparse(node)}")
            except (AttributeError, ImportError, ValueError) as error:
                raise LookupError(f"{ast.unparse(node)} is not in the code") from error
    if isinstance(found, int | float):
        return found
    raise LookupError(f"{ast.unparse(node)} is {found!r}, no number")


class _Figure(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the figure as text."""
        return [nodes.Text(figure(self.text))], []


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role."""
    app.add_role("figure", _Figure())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
