"""Figures kept as JSON, one file for all parts, so that a page can be made of them.

A part that is measured again replaces what the file has of it. With each part
the load that the machine bore already is kept, since it tells what a figure is
worth.
"""

import json
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_MEASURED: Final = ("nsq_ha", "benchmarks", "integration")


@dataclass(frozen=True, slots=True)
class Record:
    """Where figures are kept.

    Attributes:
        path: The file. None to keep nothing.
    """

    path: Path | None = None

    def read(self) -> dict[str, Any]:
        """Return all that is kept, by part."""
        if self.path is None or not self.path.exists():
            return {}
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def keep(self, part: str, figures: object, load: float) -> None:
        """Keep the figures of a part.

        Args:
            part: Such as ``peers/drain100`` or ``growth``.
            figures: What JSON can hold.
            load: The machine's load average when the part began.
        """
        if self.path is None:
            return
        kept = self.read()
        kept[part] = {"figures": figures, "load": round(load, 2), "commit": commit(), "machine": machine()}
        self.path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def load() -> float:
    """Return the machine's load average of the last minute."""
    return os.getloadavg()[0]


def commit() -> str:
    """Return the commit that is checked out, marked if code that is measured was changed since; empty without git."""
    git = shutil.which("git")
    if git is None:
        return ""
    found = subprocess.run([git, "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    difference = [git, "diff", "--quiet", "HEAD", "--", *_MEASURED]
    is_changed = subprocess.run(difference, cwd=ROOT, capture_output=True, check=False).returncode == 1
    return found.stdout.strip() + "-dirty" * is_changed


def machine() -> str:
    """Describe the machine in a few words."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
