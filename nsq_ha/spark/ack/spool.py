"""The spool folder of ``delivery=ack``: messages are on disk before they are finished at the server.

This module writes, numbers and deletes the files, and locks out a second query. It does
no network I/O (``puller``) and plans no micro-batches (``planner``).

The invariants: a numbered file is complete and on disk, whatever is killed; the numbers
of files and rows only grow, even over restarts; :meth:`Spool.forget` deletes files only
after Spark has committed them.

**Source:** Spark design 2.2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import pyarrow as pa

from nsq_ha.base.shapes import decoder
from nsq_ha.errors import ConfigError, DataLossError
from nsq_ha.spark.options.names import wrong
from nsq_ha.spark.read.columns import COLUMNS, built, numbers

if TYPE_CHECKING:
    from nsq_ha.message import Message

_LOOK: Final = 0.05
_ROOM: Final = 64  # approximate bytes of a row besides its body

_STORED: Final = ("value", "topic", "offset", "timestamp", "message_id", "attempts")
"""Columns of a plain nsqd's messages; ``offset`` counts the rows of the spool."""


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """One file.

    Attributes:
        number: Number of the file, counted from 0 in a new folder.
        first_row: Number of its first row, counted from 0 in a new folder.
        rows: Number of rows.
        size: Bytes of its messages.
    """

    number: int
    first_row: int
    rows: int
    size: int

    @property
    def name(self) -> str:
        """The name of the file, which contains all attributes."""
        return f"{self.number:012d}-{self.first_row}-{self.rows}-{self.size}.arrow"

    @classmethod
    def named(cls, name: str) -> Self | None:
        """Return the attributes from a file's name. None if it is not a spool file."""
        numbers = re.fullmatch(r"(\d+)-(\d+)-(\d+)-(\d+)\.arrow", name, re.ASCII)
        return None if numbers is None else cls(*map(int, numbers.groups()))


class _State(msgspec.Struct):
    """The content of ``spool.json``: the folder's id, the first kept file, and the number of the next row."""

    id: str
    done: int
    row: int


class Spool:
    """The folder, open until :meth:`close`; its methods may be called from any thread.

    Args:
        folder: Path of the folder; created if it is missing.
        patience: Seconds to wait for a query that is about to stop.

    Attributes:
        id: Id of the folder, by which a checkpoint recognises it.
        first: Number of the oldest kept file, or of the next file if there is none.

    Raises:
        ConfigError: The folder cannot be used, or another query uses it.
    """

    def __init__(self, folder: str, patience: float = 5.0) -> None:
        self.folder: Path = Path(folder)
        self.id: str = secrets.token_hex(8)
        self._mutex = threading.Lock()
        self._lock: int | None = None
        self._files: list[SpoolFile] = []
        self.first: int = 0
        self._row = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.folder / "lock", patience)
            self._recover()
        except ConfigError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise wrong("spool", f"cannot be used: {error}") from error

    def close(self) -> None:
        """Unlock the folder; a second call does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def end(self) -> int:
        """Number of the next file."""
        with self._mutex:
            return self._next()

    def between(self, start: int, end: int) -> list[SpoolFile]:
        """Return the existing files with ``start <= number < end``, in order."""
        with self._mutex:
            return [file for file in self._files if start <= file.number < end]

    def append(self, messages: Sequence[Message]) -> SpoolFile:
        """Write a file and return when it is on disk: only then may the messages be finished.

        Raises:
            ConfigError: Writing failed; the file does not count.
        """
        with self._mutex:
            size = sum(len(message.body) for message in messages)
            file = SpoolFile(self._next(), self._row, len(messages), size)
            try:
                self._write(file.name, lambda path: _store(path, messages, file.first_row))
            except OSError as error:
                with contextlib.suppress(OSError):  # it may have its name; the next file gets the same numbers
                    (self.folder / file.name).unlink(missing_ok=True)
                raise wrong("spool", f"cannot be written: {error}") from error
            self._files.append(file)
            self._row += file.rows
            return file

    def forget(self, before: int) -> None:
        """Delete the files with lower numbers.

        Raises:
            ConfigError: Deleting failed; they are deleted when the folder is next opened.
        """
        with self._mutex:
            if before <= self.first:
                return
            old = [file for file in self._files if file.number < before]
            self._files = self._files[len(old) :]
            self.first = before
            try:
                self._note(before)
                for file in old:
                    (self.folder / file.name).unlink(missing_ok=True)
            except OSError as error:
                raise wrong("spool", f"cannot delete files: {error}") from error

    def _next(self) -> int:
        return self._files[-1].number + 1 if self._files else self.first

    def _recover(self) -> None:
        """Load existing files; delete partial ones."""
        for rest in self.folder.glob("*.part"):
            rest.unlink()
        found = [file for path in self.folder.glob("*.arrow") if (file := SpoolFile.named(path.name)) is not None]
        path = self.folder / "spool.json"
        if path.exists():
            try:
                state: _State = decoder(_State).decode(path.read_bytes())
            except msgspec.MsgspecError as error:
                raise wrong("spool", f"{path} is not a state file of a spool: {error}") from error
            self.id, self.first, self._row = state.id, state.done, state.row
        elif found:
            raise wrong("spool", f"{self.folder} has spool files but no spool.json: choose another folder")
        else:
            self._note(0)
        for file in sorted(found, key=lambda file: file.number):
            if file.number < self.first:
                (self.folder / file.name).unlink()
            else:
                self._files.append(file)
                self._row = file.first_row + file.rows

    def _note(self, done: int) -> None:
        text = msgspec.json.encode(_State(self.id, done, self._row))
        self._write("spool.json", lambda path: path.write_bytes(text))

    def _write(self, name: str, fill: Callable[[Path], object]) -> None:
        """Write a file atomically: it is complete and on disk under its name, or does not exist."""
        part = self.folder / f"{name}.part"
        fill(part)
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.rename(self.folder / name)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_file(path: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a spool file as a ``pyarrow.RecordBatch``.

    Raises:
        DataLossError: It does not exist or is damaged.
    """
    try:
        with pa.OSFile(path) as file:
            return pa.ipc.open_file(file).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataLossError(
            f"spool file {path} cannot be read: {error}; put the folder on storage that all workers share"
        ) from error


def _store(path: Path, messages: Sequence[Message], row: int) -> None:
    offsets = numbers(range(row, row + len(messages)), pa.int64())
    columns = {name: offsets if name == "offset" else built(COLUMNS[name], messages) for name in _STORED}
    batch = pa.RecordBatch.from_pydict(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _locked(path: Path, patience: float) -> int | None:
    """Return the descriptor that holds the lock; the system frees it when the process is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + patience
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        if time.monotonic() >= until:
            os.close(descriptor)
            raise ConfigError(f"option 'spool': {path.parent} is in use by another query: use one folder per query")
        time.sleep(_LOOK)
