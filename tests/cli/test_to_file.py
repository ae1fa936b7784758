"""``nsq-ha to-file``: every message at least once, whatever happens to the process or to the disk."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import signal
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from nsq_ha import sync
from nsq_ha.cli.archive import Archive, Journal, JournalReader
from nsq_ha.cli.to_file import Size
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from tests.support.programs import COMMAND_LINE, NSQ_HA, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.devcluster import DevCluster
    from tests.cli.conftest import Invoke


class Source:
    """Where a message of a test comes from."""

    topic, channel, partition, nsqd = "orders", "files", 3, "127.0.0.1:4150"

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None) -> None: ...

    def touch(self, message: Message) -> None: ...


def message(number: int, body: bytes | None = None) -> Message:
    ident = (3 << 50 | number).to_bytes(8, "big") + bytes(7) + b"\x07"
    return Message(ident, body if body is not None else b"m%d" % number, 1, 5, Source(), number * 10, 40, b'{"a":1}')


def files(folder: Path, topic: str = "orders") -> list[Path]:
    return sorted(path for path in (folder / topic).iterdir() if not path.name.startswith("."))


def unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return bytes(cramjam.zstd.decompress(data)) if path.suffix == ".zst" else data


# ---------------------------------------------------------------- the folder


@pytest.mark.parametrize("compressed", ["none", "gzip", "zstd"])
def test_json_lines_are_those_of_tail(tmp_path: Path, compressed: Any) -> None:  # noqa: ANN401
    archive = Archive(tmp_path, "orders", "json", compressed)
    archive.append([message(1), message(2, b"\xff\n")])
    archive.append([message(3, "grün \ud7ff".encode())])
    assert files(tmp_path) == []
    completed = archive.complete()
    assert completed is not None
    assert (completed.messages, files(tmp_path)) == (3, [completed.path])
    lines = [json.loads(line) for line in unpacked(completed.path).splitlines()]
    assert [line["internal_id"] & 0xFFFF for line in lines] == [1, 2, 3]
    assert (lines[0]["headers"], lines[0]["trace_id"], lines[0]["partition"]) == ({"a": 1}, 7, 3)
    assert (lines[1]["body_base64"], lines[2]["body"]) == ("/wo=", "grün \ud7ff")
    assert archive.complete() is None
    archive.close()
    assert [path.name for path in (tmp_path / "orders").iterdir() if path != completed.path] == [".lock"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "archive"
    elsewhere.mkdir()
    folder.mkdir()
    (folder / "orders").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=r"orders is a symbolic link"):
        Archive(folder, "orders", "json", "none")
    (folder / "paid").mkdir()
    (folder / "paid" / ".lock").symlink_to(elsewhere / "lock")
    with pytest.raises(OSError, match="symbolic links"):
        Archive(folder, "paid", "json", "none")
    (folder / "paid" / ".lock").unlink()
    archive = Archive(folder, "paid", "json", "none")
    archive.append([message(1)])
    (journal,) = (folder / "paid").glob(".*.journal")
    victim = elsewhere / "victim"
    victim.write_text("kept")
    journal.with_suffix(".tmp").symlink_to(victim)
    assert archive.complete() is not None
    archive.close()
    assert victim.read_text() == "kept"
    assert list(elsewhere.iterdir()) == [victim]


def test_lines_are_the_bodies(tmp_path: Path) -> None:
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        archive.append([message(1), message(2, b"\x00\xff")])
        completed = archive.complete()
    assert completed is not None
    assert completed.path.name.endswith(".0001.txt")
    assert completed.path.read_bytes() == b"m1\n\x00\xff\n"


@pytest.mark.parametrize("compressed", ["none", "gzip", "zstd"])
def test_parquet_has_a_column_for_each_field(tmp_path: Path, compressed: Any) -> None:  # noqa: ANN401
    parquet = pytest.importorskip("pyarrow.parquet")
    with contextlib.closing(Archive(tmp_path, "orders", "parquet", compressed)) as archive:
        archive.append([message(1), message(2, b"\xff")])
        completed = archive.complete()
    assert completed is not None
    assert completed.path.suffix == ".parquet"
    rows = parquet.read_table(completed.path).to_pylist()
    assert [row["body"] for row in rows] == [b"m1", b"\xff"]
    assert (rows[0]["headers"], rows[0]["trace_id"], rows[0]["offset"], rows[0]["partition"]) == ('{"a": 1}', 7, 10, 3)
    used = parquet.ParquetFile(completed.path).metadata.row_group(0).column(0).compression
    assert used == {"none": "UNCOMPRESSED", "gzip": "GZIP", "zstd": "ZSTD"}[compressed]


def test_headers_count_for_a_row_group_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a group are in memory at the same time."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("nsq_ha.cli.archive._GROUP", 20)
    with contextlib.closing(Archive(tmp_path, "orders", "parquet", "none")) as archive:
        archive.append([message(number) for number in range(6)])  # 9 bytes each, of which 2 are the body
        completed = archive.complete()
    assert completed is not None
    assert parquet.ParquetFile(completed.path).num_row_groups == 2


def test_text_that_utf8_cannot_encode_ends_no_file(tmp_path: Path) -> None:
    """Headers may hold half of a surrogate pair, as an escape."""
    strange = message(1)
    strange.ext = b'{"a":"\\ud800","##client_dispatch_tag":"\\ud800"}'
    for form in ("json", "parquet"):
        with contextlib.closing(Archive(tmp_path, "orders", form, "none")) as archive:
            archive.append([strange])
            completed = archive.complete()
        assert completed is not None
        if form == "json":
            assert json.loads(completed.path.read_bytes())["headers"] == {"a": "\ud800"}


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_header_that_python_reads_as_infinity_is_json_in_a_file(tmp_path: Path, form: Any) -> None:  # noqa: ANN401
    large = message(1)
    large.ext = b'{"a":1e999}'
    with contextlib.closing(Archive(tmp_path, "orders", form, "none")) as archive:
        archive.append([large])
        completed = archive.complete()
    assert completed is not None
    if form == "json":
        assert json.loads(completed.path.read_bytes(), parse_constant=pytest.fail)["headers"] == {"a": "Infinity"}
    else:
        [row] = pytest.importorskip("pyarrow.parquet").read_table(completed.path).to_pylist()
        assert row["headers"] == '{"a": "Infinity"}'


def test_an_offset_that_no_log_has_ends_no_file(tmp_path: Path) -> None:
    """Its journal could not be completed, now or at any later start."""
    parquet = pytest.importorskip("pyarrow.parquet")
    damaged = message(1)
    damaged.offset = 2**63
    with contextlib.closing(Archive(tmp_path, "orders", "parquet", "none")) as archive:
        archive.append([damaged, message(2)])
        completed = archive.complete()
    assert completed is not None
    assert [row["offset"] for row in parquet.read_table(completed.path).to_pylist()] == [None, 20]


def test_what_a_killed_process_left_is_completed(tmp_path: Path) -> None:
    killed = Archive(tmp_path, "orders", "json", "gzip")
    killed.append([message(1), message(2)])
    killed.close()
    (tmp_path / "orders" / ".half.tmp").write_bytes(b"half a file")
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        (completed,) = archive.recover()
        assert archive.recover() == []
    assert completed.path.name.endswith(".jsonl.gz"), "it has the format that it began with"
    assert (completed.messages, completed.note, len(unpacked(completed.path).splitlines())) == (2, None, 2)
    assert sorted(path.name for path in (tmp_path / "orders").iterdir()) == [".lock", completed.path.name]


def journal_of(folder: Path) -> Path:
    (found,) = folder.glob("orders/.*.journal")
    return found


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_record_that_a_crash_cut_off_is_dropped(tmp_path: Path, cut: int) -> None:
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1)])
    size = killed.bytes
    killed.append([message(2, b"x" * 500)])
    killed.close()
    os.truncate(journal_of(tmp_path), size + cut)
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        (completed,) = archive.recover()
    assert (completed.messages, completed.note, completed.path.read_bytes()) == (1, None, b"m1\n")


def test_zeros_at_the_end_are_no_record(tmp_path: Path) -> None:
    """They used to end each start in a traceback."""
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1)])
    killed.close()
    with journal_of(tmp_path).open("ab") as journal:
        journal.write(bytes(4096))
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        (completed,) = archive.recover()
    assert (completed.messages, completed.path.read_bytes()) == (1, b"m1\n")
    assert str(completed.note).startswith("4096 bytes at the end of the journal cannot be read")


@pytest.mark.parametrize("size", [0, 3, 17])
def test_a_journal_without_a_record_leaves_nothing(tmp_path: Path, size: int) -> None:
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1)])
    killed.close()
    os.truncate(journal_of(tmp_path), size)
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        assert archive.recover() == []
    assert [path.name for path in (tmp_path / "orders").iterdir()] == [".lock"]


@pytest.mark.parametrize("at", [2, 60])
def test_a_damaged_journal_is_kept_and_reported(tmp_path: Path, at: int) -> None:
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1)])
    killed.append([message(2), message(3)])
    killed.close()
    path = journal_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        (completed,) = archive.recover()
        assert archive.recover() == []
    (kept,) = (tmp_path / "orders").glob("*.damaged")
    assert completed.messages == 0
    lost = len(data) - (17 if at > 2 else 0)
    assert completed.note == f"{lost} bytes at the end of the journal cannot be read; it is kept as {kept}"
    assert kept.read_bytes() == data


def test_a_journal_whose_file_is_there_adds_nothing(tmp_path: Path) -> None:
    """The process was killed between the rename and the removal of the journal."""
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1)])
    killed.close()
    path = journal_of(tmp_path)
    final = path.with_name(path.name.removeprefix(".").removesuffix(".journal"))
    final.write_bytes(b"m1\n")
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        assert archive.recover() == []
    assert not path.exists()
    assert final.read_bytes() == b"m1\n"


def test_a_damaged_journal_whose_file_is_there_is_kept(tmp_path: Path) -> None:
    """The process was killed between the rename of the file and that of the journal."""
    killed = Archive(tmp_path, "orders", "lines", "none")
    killed.append([message(1), message(2)])
    killed.close()
    path = journal_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    final = path.with_name(path.name.removeprefix(".").removesuffix(".journal"))
    final.write_bytes(b"m1\n")
    with contextlib.closing(Archive(tmp_path, "orders", "lines", "none")) as archive:
        (completed,) = archive.recover()
    (kept,) = (tmp_path / "orders").glob("*.damaged")
    assert completed.messages == 0
    assert str(completed.note).endswith(f"cannot be read; it is kept as {kept}")
    assert kept.read_bytes() == data
    assert final.read_bytes() == b"m1\n"


def test_a_full_disk_leaves_the_journal_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append([message(1)])
    write = os.write
    room = [10]

    def full(descriptor: int, data: Any) -> int:  # noqa: ANN401
        if room:
            return write(descriptor, data[: room.pop()])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        journal.append([message(2)])
    monkeypatch.undo()
    journal.append([message(3)])
    journal.close()
    assert [entry.body for entry in JournalReader(journal.path)] == [b"m1", b"m3"]
    assert journal.bytes == journal.path.stat().st_size


def test_an_error_between_two_writes_leaves_the_journal_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append([message(1)])

    def failing() -> Iterator[Message]:
        yield message(2, b"x" * 2**20)
        raise MemoryError

    with pytest.raises(MemoryError):
        journal.append(failing())
    journal.append([message(3)])
    journal.close()
    assert [entry.body for entry in JournalReader(journal.path)] == [b"m1", b"m3"]
    assert journal.bytes == journal.path.stat().st_size


def test_a_batch_is_written_without_a_copy_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 255 MiB took twice as much again."""
    journal, size, most = Journal(tmp_path / "journal"), 0, 0

    def write(_: int, data: memoryview) -> int:
        nonlocal size, most
        size, most = size + len(data), max(most, tracemalloc.get_traced_memory()[0])
        return len(data)

    monkeypatch.setattr(os, "write", write)
    batch = [message(number, bytes(2**20)) for number in range(32)]
    tracemalloc.start()
    try:
        journal.append(batch)
    finally:
        tracemalloc.stop()
    journal.close()
    assert size > 32 * 2**20
    assert most < 8 * 2**20


def test_a_body_that_cannot_be_decompressed_stops_nothing(cluster: DevCluster, invoke: Invoke, tmp_path: Path) -> None:
    """On an ordered topic nothing came after it, for anybody who publishes one."""
    cluster.create_topic("spoilt", 1, 1, ordered=True, extended=True, sync_every=1)
    for body, options in (("first", ()), ("bad", ("--header", "nsq.client.compress=1")), ("last", ())):
        assert invoke("pub", "spoilt", "--key", "k", *options, stdin=body).exit_code == 0
    written = invoke("to-file", "spoilt", "--dir", str(tmp_path), "--from", "beginning", "-n", "3")
    assert written.exit_code == 0
    [path] = tmp_path.glob("spoilt/*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["body"] for line in lines] == ["first", "bad", "last"]
    assert lines[1]["headers"] == {"nsq.client.compress": "1"}


def test_two_processes_do_not_share_a_folder(invoke: Invoke, topic: str, tmp_path: Path) -> None:
    with contextlib.closing(Archive(tmp_path, topic, "json", "none")):
        refused = invoke("to-file", topic, "--dir", str(tmp_path))
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"Error: another process writes to {tmp_path / topic}: give each process a --dir of its own\n"
    )


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500k", 512_000), ("64M", 64 << 20), ("1GiB", 1 << 30), ("2 kb", 2048)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


# ---------------------------------------------------------------- the command


def test_wrong_usage_ends_with_2(invoke: Invoke, topic: str) -> None:
    for wrong in (("--rotate-bytes", "x"), ("--rotate-bytes", "0"), ("--compress", "lzma"), ("--rotate-seconds", "0")):
        assert invoke("to-file", topic, *wrong).exit_code == 2


def test_files_are_rotated_by_size_and_nothing_is_left(invoke: Invoke, topic: str, tmp_path: Path) -> None:
    bodies = [f"m{number}" for number in range(60)]
    invoke("pub", topic, stdin="\n".join(bodies))
    result = invoke(
        *("to-file", topic, "--dir", str(tmp_path), "--from", "beginning", "-n", "50", "--format", "lines"),
        *("--rotate-bytes", "1k", "--max-in-flight", "10"),
    )
    assert result.exit_code == 0, result.stderr
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(shown) > 1
    assert sum(each["messages"] for each in shown) == 50
    assert sorted(each["file"] for each in shown) == [str(path) for path in files(tmp_path, topic)]
    seen = [body for path in files(tmp_path, topic) for body in path.read_text().splitlines()]
    assert len(set(seen)) == 50
    rest = invoke("to-file", topic, "--dir", str(tmp_path), "-n", "10", "--format", "lines", "--compress", "zstd")
    assert rest.exit_code == 0, rest.stderr
    (last,) = [path for path in files(tmp_path, topic) if path.suffix == ".zst"]
    assert {*seen, *unpacked(last).decode().splitlines()} == set(bodies)
    assert json.loads(invoke("topic", "describe", topic).stdout)["depth"] == {"nsq-ha-to-file": 0}


def test_a_file_is_completed_in_time_without_further_messages(
    cluster: DevCluster, invoke: Invoke, topic: str, tmp_path: Path
) -> None:
    invoke("pub", topic, "--partition", "0", stdin="a\n")
    # A loop that a busy machine holds up for seconds is warned about, unless heartbeats are rare.
    environment = os.environ | {"NSQ_HA_LOOKUPD": cluster.lookupd[0], "NSQ_HA_HEARTBEAT_INTERVAL": "60"}
    command = ("to-file", topic, "--dir", str(tmp_path), "--from", "beginning", "--rotate-seconds", "0.2", "--table")
    with Program(COMMAND_LINE, NSQ_HA, *command, env=environment) as process:
        line = process.stdout.readline().decode()
        (path,) = files(tmp_path, topic)
        assert line == f"{path}  1 messages\n"
        invoke("pub", topic, "--partition", "0", stdin="b\n")
        assert process.stdout.readline().decode().endswith("  1 messages\n")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")
    assert [json.loads(path.read_bytes())["body"] for path in files(tmp_path, topic)] == ["a", "b"]


@pytest.mark.few(1)
def test_a_killed_process_loses_nothing(either: DevCluster, name: str, tmp_path: Path) -> None:
    either.create_topic(name)
    bodies = [f"message {number}".encode() for number in range(600)]
    # A plain nsqd delivers what a killed client had in flight again after its message timeout.
    environment = os.environ | {"NSQ_HA_LOOKUPD": ",".join(either.lookupd)}
    folder = ("--dir", str(tmp_path), "--channel", "files", "--max-in-flight", "20")
    command = ("to-file", name, *folder, "--rotate-bytes", "4k", "--compress", "gzip")
    with sync.Consumer(name, "files", lookupd=either.lookupd):
        pass  # the channel exists before the messages
    with sync.Producer(lookupd=either.lookupd) as producer:
        producer.publish_many(name, bodies)

    found: set[bytes] = set()

    def read_file(line: bytes) -> None:
        """Add the messages of the file that a line of the command's output names."""
        path = Path(json.loads(line)["file"])
        found.update(json.loads(each)["body"].encode() for each in unpacked(path).splitlines())

    with Program(COMMAND_LINE, NSQ_HA, *command, env=environment | {"NSQ_HA_MSG_TIMEOUT": "1"}) as process:
        read_file(process.stdout.readline())
        process.kill()
        for line in process.stdout.readlines():
            read_file(line)
        process.wait(60)
    before, killed_at = len(found), len(bodies)
    # However quick it was, it has not seen these.
    later = [f"later {number}".encode() for number in range(20)]
    with sync.Producer(lookupd=either.lookupd) as producer:
        producer.publish_many(name, later)
    bodies += later
    with Program(COMMAND_LINE, NSQ_HA, *command, "--rotate-seconds", "0.5", env=environment) as process:
        for line in iter(process.stdout.readline, b""):
            read_file(line)
            if len(found) == len(bodies):
                break
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert 0 < before <= killed_at, "it was killed in the middle"
    assert found == set(bodies)
    assert [path.name for path in (tmp_path / name).iterdir() if path.name.startswith(".")] == [".lock"]
