"""The targets, each with its inputs, its documented errors and its properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fuzz.targets import bodies, connection, gob, headers, lookups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fuzz.target import Target

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target for module in (connection, headers, bodies, lookups, gob) for target in module.TARGETS
}
"""All targets by name."""
