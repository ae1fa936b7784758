"""The results of runs as a file, so that what broke off can go on."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from integration.exactness.scenario import Scenario, SinkScenario


class Kept:
    """The results as a file of JSON, written after each run, so that what breaks off can go on.

    Args:
        path: The file; None to keep them only here.
        about: What all runs share; a file about something else is replaced.
        scenarios: What is drawn now; a run of something else, by an older version of this program, is not kept.
    """

    def __init__(
        self, path: pathlib.Path | None, about: dict[str, Any], scenarios: Sequence[Scenario | SinkScenario]
    ) -> None:
        self._path = path
        self._about = about
        self.runs: dict[int, dict[str, Any]] = {}
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if {name: found.get(name) for name in about} == about:
                # As JSON has it, where a tuple is a list.
                drawn = [json.loads(json.dumps(dataclasses.asdict(one))) for one in scenarios]
                self.runs = {run["scenario"]["number"]: run for run in found["runs"] if run["scenario"] in drawn}

    def keep(self, run: dict[str, Any]) -> None:
        """Add a run."""
        self.runs[run["scenario"]["number"]] = run
        if self._path is not None:
            runs = [self.runs[number] for number in sorted(self.runs)]
            self._path.write_text(json.dumps({**self._about, "runs": runs}, indent=1) + "\n")
