"""The targets, each with its inputs, its documented errors and its properties."""

from collections.abc import Mapping
from typing import Final

from fuzz.target import Target
from fuzz.targets import bodies, connection, gob, headers, lookups

TARGETS: Final[Mapping[str, Target]] = {
    target.name: target for module in (connection, headers, bodies, lookups, gob) for target in module.TARGETS
}
"""All targets by name."""
