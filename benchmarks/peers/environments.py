"""Who is measured, and the environment that each one's process runs in.

A Python client gets a virtual environment of its own, ``.venv-bench-NAME``,
made once and kept; the Go client is built into a temporary folder. What does
not install is left out with a word why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
GO: Final = Path(__file__).resolve().parent / "go"
_RUNTIME: Final = ("cramjam>=2.8", "httpx>=0.28", "mmh3>=5", "msgspec>=0.19", "python-snappy>=0.7.3", "hatchling>=1.27")
_MAKE: Final = 600


@dataclass(frozen=True, slots=True)
class Client:
    """One client on one interpreter and event loop.

    Attributes:
        name: In the tables.
        module: The script that runs it. None for the Go program.
        python: Version of the interpreter, as ``3.12``.
        packages: What its environment holds.
        loop: ``asyncio``, ``uvloop`` or, where there is no choice, the same.
        revision: Of ours, the commit to measure; empty for the files here.
    """

    name: str
    module: str | None
    python: str = "3.11"
    packages: tuple[str, ...] = ()
    loop: str = "asyncio"
    revision: str = ""

    @property
    def environment(self) -> str:
        """Name of its environment; both loops share one."""
        return f".venv-bench-{self.module}{'-before' if self.revision else ''}-{self.python}"

    @property
    def is_ours(self) -> bool:
        """Whether it is this library."""
        return self.module == "ours"

    def before(self, revision: str) -> Client:
        """Return the same client at another commit."""
        return replace(self, name=f"{self.name} before", revision=revision)


_OURS: Final = (*_RUNTIME, "uvloop==0.23.0")
_ASYNCNSQ: Final = ("asyncnsq==2.0.1", "uvloop==0.23.0")
OURS_311: Final = Client("nsq_ha 3.11", "ours", "3.11", _OURS)
OURS_312: Final = Client("nsq_ha 3.12", "ours", "3.12", _OURS)
OURS_UVLOOP: Final = Client("nsq_ha 3.12 uvloop", "ours", "3.12", _OURS, "uvloop")
ASYNCNSQ: Final = Client("asyncnsq 2.0.1 uvloop", "asyncnsq_client", "3.12", _ASYNCNSQ, "uvloop")
GNSQ: Final = Client("gnsq 1.0.2", "gnsq_client", "3.11", ("gnsq==1.0.2", "gevent==26.9.0"))
ANSQ: Final = Client("ansq 0.3.0", "ansq_client", "3.11", ("ansq==0.3.0",))
PYNSQ: Final = Client("pynsq 0.9.1", "pynsq_client", "3.11", ("pynsq==0.9.1", "tornado==6.6.1"))
GO_NSQ: Final = Client("go-nsq 1.1.0", None)
PEERS: Final = (ASYNCNSQ, GNSQ, ANSQ, PYNSQ)


def interpreter(version: str) -> str | None:
    """Return an interpreter of that version. None when there is none."""
    found = subprocess.run(
        [str(ROOT / "scripts" / "find_python.sh"), version], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None if found.returncode == 0 else None


def command_of(client: Client, build_folder: Path) -> list[str] | str:
    """Return the command that starts ``client``, its environment made; or why it cannot run."""
    try:
        return _go(build_folder) if client.module is None else _python(client, build_folder)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{client.name} is left out: {error}"


def _python(client: Client, build_folder: Path) -> list[str] | str:
    folder = ROOT / client.environment
    python = folder / "bin" / "python"
    marker = folder / ".made"
    wanted = "\n".join(client.packages)
    if not marker.exists() or marker.read_text() != wanted:
        base = interpreter(client.python)
        if base is None:
            return f"{client.name} is left out: no Python {client.python} here"
        _run([base, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *client.packages])
        marker.write_text(wanted)
    if client.is_ours:
        # Installed, as users have it, not run from the source tree.
        source = _files_of(client.revision, build_folder) if client.revision else ROOT
        install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall", str(source)]
        _run([str(python), "-m", "pip", *install])
    return [str(python), "-m", f"benchmarks.peers.clients.{client.module}"]


def _files_of(revision: str, build_folder: Path) -> Path:
    """Return a folder with the files of a commit."""
    folder = build_folder / f"tree-{revision}"
    if not folder.exists():
        archive = build_folder / f"{revision}.tar"
        _run(["git", "archive", "--format=tar", "-o", str(archive), revision])
        shutil.unpack_archive(archive, folder)
    return folder


def _go(build_folder: Path) -> list[str] | str:
    if shutil.which("go") is None:
        return "the Go client is left out: no Go here"
    program = build_folder / "go-nsq"
    if not program.exists():
        _run(["go", "build", "-o", str(program), "."], GO)
    return [str(program)]


def _run(command: list[str], folder: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_MAKE, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(f"{command[0]} failed: {done.stderr.strip()[-300:]}")


def variables(build_folder: Path) -> dict[str, str]:
    """Return the environment variables of a client's process, which finds the scripts but not this library's source."""
    shown = build_folder / "path"
    if not shown.exists():
        shown.mkdir()
        (shown / "benchmarks").symlink_to(ROOT / "benchmarks")
    return {**os.environ, "PYTHONPATH": str(shown), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
