"""Commands that are loaded when they are named."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import click

from nsq_ha.cli import INTERRUPTED


class OnDemand(UserDict[str, Any]):
    """Commands by their names; each is loaded when it is first asked for.

    Args:
        names: The commands; each is in the module of ``nsq_ha.cli`` that has its name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        command: click.Command | None = super().__getitem__(name)
        if command is None:
            own = name.replace("-", "_")
            try:
                module = import_module(f"nsq_ha.cli.{own}")
            except KeyboardInterrupt:  # click would make it 1
                raise click.exceptions.Exit(INTERRUPTED) from None
            command = self[name] = getattr(module, own)
        return command
