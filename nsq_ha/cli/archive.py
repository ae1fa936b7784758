"""The folder of ``nsq-ha to-file``: one journal that grows, and complete files.

::

    DIR/orders/orders.20260131T090000Z.0001.jsonl.gz             complete
    DIR/orders/.orders.20260131T100000Z.0001.jsonl.gz.journal    messages of the next file
    DIR/orders/.orders.20260131T100000Z.0001.jsonl.gz.tmp        the next file, for the moment in which it is written
    DIR/orders/.lock                                             held by the process that writes here

A journal begins with a line that names its version. Then come records: length and CRC-32 of the payload (4 bytes each,
little-endian), and the payload, a message in MessagePack. Files are lines, JSON lines or Parquet, compressed or not.

The invariants: a message is in a journal, or in a file without a leading dot, or in both while a file is being
completed. What :meth:`Journal.append` wrote survives a crash once it has returned, so the messages may be finished
then; what a crash cut off was not finished, so nsqd delivers it again. A file without a leading dot is complete and
never changes. A journal whose file exists is deleted, so nothing gets into two files.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Self, cast

import msgspec

from nsq_ha.checks import MAX_INT64
from nsq_ha.cli.output import json_of
from nsq_ha.cli.tail import as_dict
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message, MessageSource

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
        ConfigError: Another process writes there, the topic's name is no name of a folder, or its folder is a symbolic
            link: whoever may write to ``folder`` must not choose where the messages go.
        OSError: The folder cannot be used.
    """

    def __init__(self, folder: Path, topic: str, form: Format, compressed: Compressed) -> None:
        if topic in {".", ".."}:
            raise ConfigError(f"topic {topic!r} cannot be written to a folder of its name")
        self._folder = folder / topic
        self._topic = topic
        self._ending = ending(form, compressed)
        self._journal: Journal | None = None
        if self._folder.is_symlink():
            raise ConfigError(f"{self._folder} is a symbolic link: give its target as --dir, or remove it")
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
    reading = JournalReader(path)
    if final.exists():  # an earlier process was killed after it had completed the file
        deque(reading, maxlen=0)
        return _put_away(path, final, 0, reading.damaged)
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
        partial.unlink(missing_ok=True)
        with partial.open("xb") as stream:  # never through a link
            write(stream, messages(), form, compressed)
            stream.flush()
            os.fsync(stream.fileno())
        if count:
            partial.rename(final)
            sync_folder(final.parent)
    finally:
        partial.unlink(missing_ok=True)
    return _put_away(path, final, count, reading.damaged)


def _put_away(path: Path, final: Path, count: int, damaged: int) -> Completed | None:
    """Delete a journal whose file is complete, or keep one that has ``damaged`` bytes."""
    note = None
    if damaged:
        kept = path.with_name(final.name + _DAMAGED)
        path.rename(kept)
        note = f"{damaged} bytes at the end of the journal cannot be read; it is kept as {kept}"
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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)  # Windows has none
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


_FIRST_LINE: Final = b"nsq-ha journal 1\n"
_HEAD: Final = struct.Struct("<II")


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A message as it stands in the journal; the fields are those of :class:`nsq_ha.Message` and its source."""

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    topic: str
    partition: int
    nsqd: str
    offset: int | None = None
    raw_size: int | None = None
    ext: bytes | None = None

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return the entry for a message."""
        return cls(*(getattr(message, name) for name in cls.__struct_fields__))

    def message(self) -> Message:
        """Return the message, which cannot be answered."""
        origin = cast("MessageSource", _Origin(self.topic, self.partition, self.nsqd))
        own = (self.id, self.body, self.attempts, self.timestamp_ns)
        return Message(*own, origin, self.offset, self.raw_size, self.ext, answered=True)


class _Origin(NamedTuple):
    """The source of a message that was read from a journal; nothing answers it."""

    topic: str
    partition: int
    nsqd: str
    channel: str = ""


class Journal:
    """A journal that is being written. Its methods block.

    Args:
        path: The file, which must not exist; its folder must.

    Attributes:
        path: The file.
        bytes: Its size.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.bytes: int = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._encoder = msgspec.msgpack.Encoder()
        self._write([_FIRST_LINE])
        sync_folder(path.parent)

    def append(self, messages: Iterable[Message]) -> None:
        """Write messages and wait until the disk has them.

        Raises:
            OSError: They could not be written; the journal is as before.
        """
        self._write(_chunks(self._records(messages)))

    def close(self) -> None:
        """Close the file. Closing it again has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _records(self, messages: Iterable[Message]) -> Iterator[bytes]:
        for message in messages:
            payload = self._encoder.encode(JournalEntry.of(message))
            yield _HEAD.pack(len(payload), zlib.crc32(payload))
            yield payload

    def _write(self, chunks: Iterable[bytes]) -> None:
        size = self.bytes
        try:
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(self._descriptor, view) :]
                size += len(chunk)
            os.fsync(self._descriptor)
        except BaseException:
            # On a full disk, or without memory. If this fails, too, reading drops the incomplete record.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes)
                os.lseek(self._descriptor, self.bytes, os.SEEK_SET)
            raise
        self.bytes = size


class JournalReader:
    """Reads the whole records of a journal. Iterate once. The message of an incomplete record was not finished.

    Args:
        path: The journal.

    Attributes:
        damaged: Bytes from a record that is empty or has a wrong checksum. They may hold finished messages.
    """

    def __init__(self, path: Path) -> None:
        self.damaged: int = 0
        self._path = path

    def __iter__(self) -> Iterator[JournalEntry]:
        """Yield the messages in the order in which they were written."""
        size = self._path.stat().st_size
        with self._path.open("rb") as stream:
            first = stream.read(len(_FIRST_LINE))
            if first != _FIRST_LINE:
                if not _FIRST_LINE.startswith(first):
                    self.damaged = size
                return
            yield from self._records(stream, size)

    def _records(self, stream: BinaryIO, size: int) -> Iterator[JournalEntry]:
        decoder = msgspec.msgpack.Decoder(JournalEntry)
        while (at := stream.tell()) < size:
            head = stream.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, checksum = _HEAD.unpack(head)
            if stream.tell() + length > size:
                return
            payload = stream.read(length)
            # The zeros that a power failure may leave are a record without a byte, and its checksum is 0.
            if not payload or zlib.crc32(payload) != checksum:
                self.damaged = size - at
                return
            yield decoder.decode(payload)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


Format = Literal["json", "lines", "parquet"]
Compressed = Literal["none", "gzip", "zstd"]

_CHUNK: Final = 1 << 20
"""Bytes to collect before they are compressed or written."""
_GROUP: Final = 16 << 20
"""Bytes of bodies and headers in a row group of Parquet."""
_ROWS: Final = 50_000

_ENDINGS: Final = {"json": ".jsonl", "lines": ".txt", "parquet": ".parquet"}
_COMPRESSED: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}


def ending(form: Format, compressed: Compressed) -> str:
    """Return how the name of a file ends. Parquet compresses its columns, so there the format comes last."""
    parts = (_ENDINGS[form], _COMPRESSED[compressed])
    return "".join(reversed(parts) if form == "parquet" else parts)


def check_format(form: Format) -> None:
    """Check that a format's library is installed.

    Raises:
        ConfigError: It is not; the text says what to install.
    """
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("--format parquet needs pyarrow: pip install pyarrow")


def write(stream: BinaryIO, messages: Iterable[Message], form: Format, compressed: Compressed) -> None:
    """Write a whole file.

    Args:
        stream: Where to write it to.
        messages: Its messages.
        form: How they are written.
        compressed: The compression.

    Raises:
        OSError: It cannot be written.
    """
    if form == "parquet":
        _write_parquet(stream, messages, compressed)
        return
    pieces = map(_line if form == "lines" else _json_line, messages)
    with _opened(stream, compressed) as put:
        for chunk in _chunks(pieces):
            put(chunk)


def _line(message: Message) -> bytes:
    return message.body + b"\n"


def _json_line(message: Message) -> bytes:
    text = json_of(as_dict(message), separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces to chunks of a useful size."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(chunk)
            chunk, size = [], 0
    yield b"".join(chunk)


@contextlib.contextmanager
def _opened(stream: BinaryIO, compressed: Compressed) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes to the stream, compressed; the stream stays open."""
    if compressed == "none":
        yield stream.write
    elif compressed == "gzip":
        # Without a name and time, so that the same messages give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0) as output:
            yield output.write
    else:
        import cramjam

        compressor = cramjam.zstd.Compressor()

        def write_zstd(data: bytes) -> None:
            compressor.compress(data)
            stream.write(bytes(compressor.flush()))

        yield write_zstd
        stream.write(bytes(compressor.finish()))


# ---------------------------------------------------------------- Parquet


def _write_parquet(stream: BinaryIO, messages: Iterable[Message], compressed: Compressed) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("internal_id", pa.uint64()),
            ("trace_id", pa.uint64()),
            ("attempts", pa.int32()),
            ("timestamp", pa.timestamp("ns", tz="UTC")),
            ("nsqd", pa.string()),
            ("headers", pa.string()),
            ("tag", pa.string()),
            ("body", pa.binary()),
        ]
    )
    with parquet.ParquetWriter(stream, schema, compression=compressed) as writer:
        for rows in _groups(messages):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _groups(messages: Iterable[Message]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        rows.append(_row(message))
        size += len(message.body) + len(message.ext or b"")
        if size >= _GROUP or len(rows) >= _ROWS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(message: Message) -> dict[str, Any]:
    entry = as_dict(message)
    if (message.offset or 0) > MAX_INT64:  # from a damaged frame: no log is that long, and the column cannot hold it
        entry["offset"] = None
    headers = entry["headers"]
    if headers is None:  # another program's, and not JSON: kept as it is
        text = None if message.ext is None else message.ext.decode("utf-8", "backslashreplace")
    else:
        text = json_of(headers) if headers else None
    return {
        **{name: entry[name] for name in ("topic", "partition", "offset", "internal_id", "trace_id", "attempts")},
        "timestamp": message.timestamp_ns,
        "nsqd": message.nsqd,
        "headers": text,
        "tag": None if entry["tag"] is None else entry["tag"].encode("utf-8", "backslashreplace").decode(),
        "body": message.body,
    }
