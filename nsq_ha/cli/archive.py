"""The folder of ``nsq-ha to-file``: one journal that grows, and complete files.

::

    DIR/orders/orders.20260131T090000Z.0001.jsonl.gz             complete
    DIR/orders/.orders.20260131T100000Z.0001.jsonl.gz.journal    messages of the next file
    DIR/orders/.orders.20260131T100000Z.0001.jsonl.gz.tmp        the next file, for the moment in which it is written
    DIR/orders/.lock                                             held by the process that writes here

The invariant: a message is in a journal, or in a file without a leading dot, or in both while a file is being
completed. A file without a leading dot is complete and never changes. A journal whose file exists is deleted, so
nothing gets into two files.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nsq_ha.cli.formats import check_format, ending, write
from nsq_ha.cli.journal import Journal, Reading, sync_folder
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from nsq_ha.cli.formats import Compressed, Format
    from nsq_ha.message import Message

_JOURNAL: Final = ".journal"
_TMP: Final = ".tmp"
_DAMAGED: Final = ".damaged"


@dataclass(frozen=True, slots=True)
class Completed:
    """A complete file.

    Attributes:
        path: The file.
        messages: Number of its messages.
        note: What was wrong with its journal. None if nothing was.
    """

    path: Path
    messages: int
    note: str | None = None


class Archive:
    """Writes the messages of one topic into files. Its methods block, and belong to one thread at a time.

    Args:
        folder: The folder of all topics; it is created if it does not exist.
        topic: The topic.
        form: How messages are written.
        compressed: The compression.

    Raises:
        ConfigError: Another process writes there, or the topic's name is no name of a folder.
        OSError: The folder cannot be used.
    """

    def __init__(self, folder: Path, topic: str, form: Format, compressed: Compressed) -> None:
        if topic in {".", ".."}:
            raise ConfigError(f"topic {topic!r} cannot be written to a folder of its name")
        self._folder = folder / topic
        self._topic = topic
        self._ending = ending(form, compressed)
        self._journal: Journal | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._folder / ".lock")

    @property
    def bytes(self) -> int:
        """Bytes of the messages that are in no complete file."""
        return 0 if self._journal is None else self._journal.bytes

    @property
    def is_empty(self) -> bool:
        """Whether all messages are in complete files."""
        return self._journal is None

    def append(self, messages: Iterable[Message]) -> None:
        """Write messages, and wait until the disk has them.

        Raises:
            OSError: They cannot be written.
        """
        if self._journal is None:
            self._journal = Journal(self._next())
        self._journal.append(messages)

    def complete(self) -> Completed | None:
        """Complete the current file. Return None if it has no messages.

        Raises:
            OSError: It cannot be written; the messages stay in the journal.
        """
        journal, self._journal = self._journal, None
        if journal is None:
            return None
        journal.close()
        return _complete(journal.path)

    def recover(self) -> list[Completed]:
        """Complete the files that an earlier process left as journals.

        Raises:
            ConfigError: The format of one needs a library that is not installed.
            OSError: One cannot be written.
        """
        for partial in self._folder.glob(f".*{_TMP}"):
            partial.unlink()
        found = [_complete(path) for path in sorted(self._folder.glob(f".*{_JOURNAL}"))]
        return [each for each in found if each is not None]

    def close(self) -> None:
        """Let others write here. A journal stays, for :meth:`recover`."""
        if self._journal is not None:
            self._journal.close()
        os.close(self._lock)

    def _next(self) -> Path:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        number = 1
        while True:
            name = f"{self._topic}.{stamp}.{number:04d}{self._ending}"
            path = self._folder / f".{name}{_JOURNAL}"
            if not (self._folder / name).exists() and not path.exists():
                return path
            number += 1


def _complete(path: Path) -> Completed | None:
    """Write the file of a journal, and delete the journal."""
    final = path.with_name(path.name.removeprefix(".").removesuffix(_JOURNAL))
    reading = Reading(path)
    if final.exists():  # an earlier process was killed after it had completed the file
        path.unlink()
        return None
    partial = path.with_name(f".{final.name}{_TMP}")
    form, compressed = _kind(final.name)
    check_format(form)
    count = 0

    def messages() -> Iterator[Message]:
        nonlocal count
        for entry in reading:
            count += 1
            yield entry.message()

    try:
        with partial.open("wb") as stream:
            write(stream, messages(), form, compressed)
            stream.flush()
            os.fsync(stream.fileno())
        if count:
            partial.rename(final)
            sync_folder(final.parent)
    finally:
        partial.unlink(missing_ok=True)
    note = None
    if reading.damaged:
        kept = path.with_name(final.name + _DAMAGED)
        path.rename(kept)
        note = f"{reading.damaged} bytes at the end of the journal cannot be read; it is kept as {kept}"
    else:
        path.unlink()
    return Completed(final, count, note) if count or note else None


def _kind(name: str) -> tuple[Format, Compressed]:
    """Return the format and the compression of the file with this name."""
    for form in ("json", "lines", "parquet"):
        for compressed in ("zstd", "gzip", "none"):
            if name.endswith(ending(form, compressed)):
                return form, compressed
    raise ConfigError(f"{name} is no file that nsq-ha to-file writes: move its journal away")


def _locked(path: Path) -> int:
    """Open and lock a file, until it is closed or the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with contextlib.suppress(ImportError):  # Windows has no such lock
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(
                f"another process writes to {path.parent}: give each process a --dir of its own"
            ) from error
    return descriptor
