"""The type checkers that readers use: mypy, as strict as it can be, and pyright."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CHECKERS = {
    "mypy": (
        "--config-file=",
        "--strict",
        "--explicit-package-bases",
        "--follow-imports=silent",
        f"--python-executable={sys.executable}",
        f"--cache-dir={ROOT / '.mypy_cache' / 'examples'}",
    ),
    "pyright": ("--pythonpath", sys.executable),
}


def check(checker: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check all modules of a folder."""
    return subprocess.run(
        [BIN / checker, *CHECKERS[checker], "."],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
