"""The journal of ``nsq-ha to-file``: messages on disk before their file is complete.

A journal begins with a line that names its version. Then come records: length and CRC-32 of the payload (4 bytes each,
little-endian), and the payload, a message in MessagePack.

The invariant: what :meth:`Journal.append` wrote survives a crash once it has returned, so the messages may be finished
then. What a crash cut off was not finished, so nsqd delivers it again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO, Final, Self

import msgspec

from nsq_ha.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FIRST_LINE: Final = b"nsq-ha journal 1\n"
_HEAD: Final = struct.Struct("<II")


class Entry(msgspec.Struct, frozen=True, array_like=True):
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
        return cls(
            message.id,
            message.body,
            message.attempts,
            message.timestamp_ns,
            message.topic,
            message.partition,
            message.nsqd,
            message.offset,
            message.raw_size,
            message.ext,
        )

    def message(self) -> Message:
        """Return the message, which cannot be answered."""
        return Message(
            self.id,
            self.body,
            self.attempts,
            self.timestamp_ns,
            _Origin(self.topic, self.partition, self.nsqd),
            self.offset,
            self.raw_size,
            self.ext,
            answered=True,
        )


class _Origin:
    """The source of a message that was read from a journal."""

    def __init__(self, topic: str, partition: int, nsqd: str) -> None:
        self.topic: str = topic
        self.channel: str = ""
        self.partition: int = partition
        self.nsqd: str = nsqd

    def finish(self, message: Message) -> None:
        """Do nothing: nsqd does not wait for an answer."""

    def requeue(self, message: Message, delay: float | None) -> None:
        """Do nothing."""

    def touch(self, message: Message) -> None:
        """Do nothing."""


class Journal:
    """A journal that is being written. Its methods block.

    Args:
        path: The file, which must not exist; its folder must.

    Attributes:
        path: The file.
        bytes: Its size.
        count: Number of messages in it.
    """

    def __init__(self, path: Path) -> None:
        self.path: Path = path
        self.bytes: int = 0
        self.count: int = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._encoder = msgspec.msgpack.Encoder()
        self._write(_FIRST_LINE)
        sync_folder(path.parent)

    def append(self, messages: Iterable[Message]) -> None:
        """Write messages and wait until the disk has them.

        Raises:
            OSError: They could not be written; the journal is as before.
        """
        parts: list[bytes] = []
        for message in messages:
            payload = self._encoder.encode(Entry.of(message))
            parts += (_HEAD.pack(len(payload), zlib.crc32(payload)), payload)
        self._write(b"".join(parts))
        self.count += len(parts) // 2

    def close(self) -> None:
        """Close the file. Closing it again has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError:
            # On a full disk. If this fails, too, reading drops the incomplete record.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.bytes)
                os.lseek(self._descriptor, self.bytes, os.SEEK_SET)
            raise
        self.bytes += len(data)


class Reading:
    """Reads the whole records of a journal. Iterate once.

    Args:
        path: The journal.

    Attributes:
        torn: Bytes of an incomplete record at the end, after the iteration. Its message was not finished.
        damaged: Bytes from a record whose checksum is wrong, after the iteration. They may hold finished messages.
    """

    def __init__(self, path: Path) -> None:
        self.torn: int = 0
        self.damaged: int = 0
        self._path = path

    def __iter__(self) -> Iterator[Entry]:
        """Yield the messages in the order in which they were written."""
        size = self._path.stat().st_size
        with self._path.open("rb") as stream:
            first = stream.read(len(_FIRST_LINE))
            if first != _FIRST_LINE:
                if _FIRST_LINE.startswith(first):
                    self.torn = len(first)
                else:
                    self.damaged = size
                return
            yield from self._records(stream, size)

    def _records(self, stream: BinaryIO, size: int) -> Iterator[Entry]:
        decoder = msgspec.msgpack.Decoder(Entry)
        while (at := stream.tell()) < size:
            head = stream.read(_HEAD.size)
            if len(head) < _HEAD.size:
                self.torn = size - at
                return
            length, checksum = _HEAD.unpack(head)
            if stream.tell() + length > size:
                self.torn = size - at
                return
            payload = stream.read(length)
            if zlib.crc32(payload) != checksum:
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
