"""The files of ``nsq-ha to-file``: lines, JSON lines or Parquet, compressed or not."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from nsq_ha.cli.tail import as_dict
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nsq_ha.message import Message

Format = Literal["json", "lines", "parquet"]
Compressed = Literal["none", "gzip", "zstd"]

_CHUNK: Final = 1 << 20
"""Bytes to collect before they are compressed or written."""
_GROUP: Final = 16 << 20
"""Bytes of bodies in a row group of Parquet."""
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
    text = json.dumps(as_dict(message), separators=(",", ":"), ensure_ascii=False)
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
        size += len(message.body)
        if size >= _GROUP or len(rows) >= _ROWS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _row(message: Message) -> dict[str, Any]:
    entry = as_dict(message)
    headers = entry["headers"]
    if headers is None:  # another program's, and not JSON: kept as it is
        text = None if message.ext is None else message.ext.decode("utf-8", "backslashreplace")
    else:
        text = json.dumps(headers) if headers else None
    return {
        **{name: entry[name] for name in ("topic", "partition", "offset", "internal_id", "trace_id", "attempts")},
        "timestamp": message.timestamp_ns,
        "nsqd": message.nsqd,
        "headers": text,
        "tag": None if entry["tag"] is None else entry["tag"].encode("utf-8", "backslashreplace").decode(),
        "body": message.body,
    }
