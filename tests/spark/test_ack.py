"""Spool and puller of ``delivery=ack``: nothing is lost whatever is killed, and nothing is deleted too early.

The embedded cluster's nsqds stand in for plain ones: spoken to without partitions they behave so.
"""

import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError, DataLossError, NsqError, ResponseTimeoutError
from nsq_ha.message import Message
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Ready, Sub, layout_for
from nsq_ha.spark import connection
from nsq_ha.spark.ack import planner as ack_planner
from nsq_ha.spark.ack import puller
from nsq_ha.spark.ack.planner import AckPlanner, divided
from nsq_ha.spark.ack.puller import DrainVerdict
from nsq_ha.spark.ack.spool import Spool, SpoolFile, read_file
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.connection import BlockingConnection
from nsq_ha.spark.options import ReadOptions
from tests.devcluster.probes import until
from tests.spark.conftest import Publish
from tests.spark.logs import Source

names = (f"ack_{number}" for number in itertools.count())


def plain(*bodies: bytes) -> list[Message]:
    return [Message(b"%016x" % number, body, 1, 10**18, Source()) for number, body in enumerate(bodies)]


def values(spool: Spool, start: int, end: int) -> list[bytes]:
    return [value for file in spool.between(start, end) for value in bodies(str(spool.folder / file.name))]


def bodies(path: str) -> list[bytes]:
    found: list[bytes] = read_file(path).column("value").to_pylist()
    return found


# ---------------------------------------------------------------- the folder


def test_a_spool_goes_on_where_it_was_and_keeps_what_is_not_forgotten(tmp_path: Path) -> None:
    folder = str(tmp_path / "deep" / "spool")
    with closing(Spool(folder)) as spool:
        assert (spool.first, spool.end) == (0, 0)
        for number in range(4):
            assert spool.append(plain(b"%d" % number, b"x")).number == number
        spool.forget(2)
        spool.forget(1)
        name = spool.id
    (Path(folder) / "000000000009-1-1-1.arrow.part").write_bytes(b"half")
    (Path(folder) / "notes.txt").write_bytes(b"not ours")
    with closing(Spool(folder)) as spool:
        assert (spool.id, spool.first, spool.end) == (name, 2, 4)
        assert values(spool, 0, 9) == [b"2", b"x", b"3", b"x"]
        assert spool.append(plain(b"4")).first_row == 8
        spool.forget(5)
    assert sorted(path.name for path in Path(folder).iterdir()) == ["lock", "notes.txt", "spool.json"]
    with closing(Spool(folder)) as spool:
        assert (spool.first, spool.end, spool.append(plain(b"5")).first_row) == (5, 5, 9)


def test_a_kill_between_note_and_deletion_leaves_nothing_to_read_again(tmp_path: Path) -> None:
    with closing(Spool(str(tmp_path))) as spool:
        spool.append(plain(b"a"))
        kept = (tmp_path / spool.between(0, 1)[0].name).read_bytes()
        name = spool.between(0, 1)[0].name
        spool.forget(1)
    (tmp_path / name).write_bytes(kept)
    with closing(Spool(str(tmp_path))) as spool:
        assert (spool.first, spool.end) == (1, 1)
    assert not (tmp_path / name).exists()


def test_one_query_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with closing(Spool(str(tmp_path))) as spool:
        with pytest.raises(ConfigError, match=r"option 'spool': .* is in use by another query"):
            Spool(str(tmp_path), patience=0.1)
        spool.close()
        Spool(str(tmp_path)).close()


def test_a_folder_that_cannot_be_used_is_reported_by_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"option 'spool': cannot be used: .*"):
        Spool(str(tmp_path / "file"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "spool.json").write_text('{"id": 1}')
    with pytest.raises(ConfigError, match=r"option 'spool': .* is not a state file of a spool"):
        Spool(str(other))
    (other / "spool.json").unlink()
    (other / "000000000000-0-1-1.arrow").write_text("")
    with pytest.raises(ConfigError, match=r"has spool files but no spool.json"):
        Spool(str(other))
    with pytest.raises(DataLossError, match=r"spool file .* cannot be read"):
        read_file(str(other / "000000000000-0-1-1.arrow"))
    with closing(Spool(str(tmp_path / "fine"))) as spool:
        (tmp_path / "fine").rename(tmp_path / "gone")
        with pytest.raises(ConfigError, match=r"option 'spool': cannot be written"):
            spool.append(plain(b"a"))
        assert spool.end == 0


def test_a_file_whose_folder_could_not_be_made_durable_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another puller's file got the same numbers, and a restarted query read both: rows of equal offsets."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError("no space")
        fsync(descriptor)

    with closing(Spool(str(tmp_path))) as spool:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(ConfigError, match=r"option 'spool': cannot be written: no space"):
                spool.append(plain(b"a", b"b", b"c"))
        spool.append(plain(b"d"))
    with closing(Spool(str(tmp_path))) as spool:
        assert (spool.end, values(spool, 0, 9)) == (1, [b"d"])


def test_files_are_divided_into_tasks() -> None:
    files = [SpoolFile(number, number * 10, 10, 90) for number in range(10)]

    def sizes(pieces: int, most: int | None = None) -> list[int]:
        groups = divided(files, pieces, most)
        assert [file for group in groups for file in group] == files
        return [len(group) for group in groups]

    assert sizes(1) == [10]
    assert sizes(5) == [2] * 5
    assert sizes(4) == [2, 2, 2, 2, 2] or len(sizes(4)) >= 4
    assert sizes(99) == [1] * 10
    assert sizes(1, 25) == [2] * 5
    assert sizes(1, 5) == [1] * 10
    assert divided([], 3, None) == []


# ---------------------------------------------------------------- pulling


@pytest.fixture
def topic(dev_cluster: DevCluster, asked: BlockingCluster) -> str:
    """With its channel: a new one begins at the end of the log here, and on a plain nsqd with what no channel had."""
    topic = dev_cluster.create_topic(next(names), 1)
    asked.open_channel(topic, 0, asked.view(topic).leaders[0], "spool", 0)
    return topic


def options_for(dev_cluster: DevCluster, topic: str, folder: Path, **more: str) -> ReadOptions:
    leader = dev_cluster.leader(topic, 0)
    assert leader is not None
    given = {"nsqd": dev_cluster.nsqds[leader], "topic": topic, "channel": "spool", "delivery": "ack"}
    return ReadOptions.parse({**given, "spool": str(folder), "fetchTimeout": "1s", **more}, "stream")


@pytest.fixture
def plan(
    dev_cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: BlockingCluster
) -> Iterator[Callable[..., AckPlanner]]:
    made: list[AckPlanner] = []
    # As an nsqlookupd of plain nsqds would tell it, with the port of its HTTP.
    monkeypatch.setattr(AckPlanner, "_nodes", lambda *_: [asked.view(topic).leaders[0]])

    def make(**more: str) -> AckPlanner:
        made.append(AckPlanner(options_for(dev_cluster, topic, tmp_path / "spool", **more)))
        return made[-1]

    yield make
    for planner in made:
        planner.close()


def read(planner: AckPlanner, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [value for part in planner.ranges(start, end) for path in part for value in bodies(path)]


def drained(planner: AckPlanner, start: dict[str, Any] | None = None) -> list[list[bytes]]:
    """Read what there is, as a query with the trigger availableNow; gives the rows of each micro-batch."""
    planner.prepare_target()
    position = planner.initial() if start is None else start
    batches = []
    while (end := planner.latest(position)) != position:
        batches.append(read(planner, position, end))
        planner.commit(position)
        position = end
    return batches


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def test_what_a_channel_holds_comes_once_and_is_finished(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish
) -> None:
    publish(topic, 0, numbered(5000))
    planner = plan()
    assert sorted(itertools.chain(*drained(planner))) == numbered(5000)
    end = planner.report()
    planner.close()
    again = plan()
    assert again.latest(end) == end
    assert drained(again, end) == []
    publish(topic, 0, numbered(10, 5000))
    assert sorted(itertools.chain(*drained(again, end))) == numbered(10, 5000)


class Other:
    """Another client of the channel, that takes messages and answers none."""

    def __init__(self, options: ReadOptions, topic: str) -> None:
        host, _, port = options.nsqd[0].rpartition(":")
        self.link = BlockingConnection(Node(host, int(port), 0), options.connection)
        self.link.open()
        source = Source(topic, "spool", 0, options.nsqd[0])
        self.link.protocol.subscribe_to(source, layout_for(detail=False, ext=False))
        self.link.request(Sub(topic, "spool", None), time.monotonic() + 10.0)
        self.held: list[Message] = []

    def take(self, count: int) -> list[bytes]:
        self.link.send(self.link.protocol.send(Ready(count)))
        while len(self.held) < count:
            self.held += self.link.receive(time.monotonic() + 10.0).messages
        return [message.body for message in self.held]


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, DrainVerdict]]:
    """What was judged of the server: its numbers, and whether that is all."""
    found: list[tuple[Any, DrainVerdict]] = []
    judge = puller.judge

    def note(seconds: float, numbers: Any, limit: float, **seen: bool) -> DrainVerdict:  # noqa: ANN401 - the real one checks
        verdict = judge(seconds, numbers, limit, **seen)
        found.append((numbers, verdict))
        return verdict

    monkeypatch.setattr(puller, "judge", note)
    return found


@pytest.fixture
def other(dev_cluster: DevCluster, topic: str, tmp_path: Path) -> Iterator[Other]:
    client = Other(options_for(dev_cluster, topic, tmp_path), topic)
    yield client
    client.link.close()


def test_what_another_client_holds_is_waited_for(
    plan: Callable[..., AckPlanner],
    topic: str,
    publish: Publish,
    other: Other,
    verdicts: list[tuple[Any, DrainVerdict]],
) -> None:
    publish(topic, 0, numbered(100))
    taken = other.take(5)
    planner = plan()
    found: list[list[bytes]] = []
    query = threading.Thread(target=lambda: found.extend(drained(planner)))
    query.start()
    until(lambda: any(numbers.held >= 5 and verdict == "wait" for numbers, verdict in verdicts))
    assert query.is_alive(), "a driver that was killed may have held them"
    other.link.close()
    query.join(60.0)
    assert not query.is_alive()
    rows = list(itertools.chain(*found))
    assert sorted(rows) == numbered(100)
    assert set(taken) <= set(rows)


def test_a_channel_whose_messages_others_hold_fails_a_query_that_is_to_read_all(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish, other: Other
) -> None:
    publish(topic, 0, numbered(10))
    other.take(10)
    with pytest.raises(ResponseTimeoutError, match=r"delivers nothing, but holds .* and 10 are in flight to other"):
        drained(plan(msgTimeout="1s"))


def test_a_topic_that_no_nsqd_is_known_for_is_not_read_to_its_end(
    plan: Callable[..., AckPlanner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AckPlanner, "_nodes", lambda *_: [])
    planner = plan(fetchTimeout="50ms", fetchRetries="1")
    with pytest.raises(ResponseTimeoutError, match=r"topic 'ack_\d+': no nsqlookupd knows an nsqd that has it"):
        drained(planner)


def test_limits_wait_and_cut(plan: Callable[..., AckPlanner], topic: str, publish: Publish) -> None:
    publish(topic, 0, numbered(1000))
    planner = plan(maxOffsetsPerTrigger="300", minOffsetsPerTrigger="100", maxTriggerDelay="30s")
    batches = drained(planner)
    assert max(map(len, batches)) <= 300
    assert sorted(itertools.chain(*batches)) == numbered(1000)
    end = planner.report()
    planner.close()
    planner = plan(minOffsetsPerTrigger="100", maxTriggerDelay="30s")
    publish(topic, 0, numbered(60, 1000))
    assert planner.latest(end) == end
    until(lambda: planner.report() != end)
    assert planner.latest(end) == end
    assert planner.latest(end, limited=False) != end
    publish(topic, 0, numbered(60, 1060))
    until(lambda: planner.latest(end) != end)
    assert len(read(planner, end, planner.latest(end))) >= 100


def test_bytes_are_limited_on_the_disk_and_in_a_batch(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish, tmp_path: Path
) -> None:
    large = [number + bytes(100_000) for number in numbered(60)]
    for start_at in (0, 30):
        publish(topic, 0, large[start_at : start_at + 30])
    planner = plan(maxSpoolBytes="1m", maxBytesPerTrigger="500k", rdy="2")
    start = planner.initial()

    def on_disk() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "spool").glob("*.arrow"))

    until(lambda: planner.latest(start) != start and on_disk() >= 2**20)
    waiting = on_disk()
    assert waiting < 2_000_000, "it pauses while so much waits"
    batches = drained(planner)
    assert sorted(itertools.chain(*batches)) == large
    assert max(map(len, batches)) <= 5


def test_micro_batches_of_a_backlog_are_as_large_as_the_limit_of_rows(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(topic, 0, numbered(5000))
    planner = plan(maxOffsetsPerTrigger="700")
    position, batches = planner.initial(), list[list[bytes]]()
    with monkeypatch.context() as slow:
        # However slow the machine is, files become full.
        slow.setattr(puller, "_GATHER", 30.0)
        slow.setattr(ack_planner, "_LONGEST_WAIT", 60.0)
        while len(batches) < 5:
            end = planner.latest(position)
            if end != position:
                batches.append(read(planner, position, end))
            position = end
    # Of the first file RDY allows no more, since the size of the messages is unknown.
    assert [len(batch) for batch in batches[1:]] == [700] * 4
    assert list(itertools.chain(*batches)) == numbered(sum(map(len, batches)))


def test_the_spool_fills_while_a_micro_batch_runs(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish
) -> None:
    """A full one stayed full until Spark was done, and the next micro-batch was one file."""
    publish(topic, 0, [number + bytes(1000) for number in numbered(8000)])
    planner = plan(maxSpoolBytes="1m", rdy="200")
    start = planner.initial()
    ends = [start]

    def is_planned() -> bool:
        ends.append(planner.latest(start))
        return ends[-1] != start

    def waiting() -> int:
        return sum(map(len, read(planner, ends[-1], planner.report())))

    until(is_planned)
    until(lambda: waiting() >= 2**20)
    following = planner.latest(ends[-1])
    assert sum(map(len, read(planner, ends[-1], following))) >= 2**20


def test_a_kill_before_the_finish_repeats_and_loses_nothing(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(topic, 0, numbered(3000))
    fatal = RuntimeError("killed")

    def killed(ids: list[bytes]) -> bytes:
        raise fatal

    planner = plan()
    start = planner.initial()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "encode_fins", killed)
        with pytest.raises(RuntimeError, match="killed"):
            until(lambda: planner.latest(start) != planner.latest(start))
        written = planner.report()
        kept = read(planner, start, written)
        assert kept
    planner.close()
    again = plan()
    assert read(again, start, written) == kept, "a batch that was planned is read again as it was"
    rows = kept + list(itertools.chain(*drained(again, written)))
    assert sorted(set(rows)) == numbered(3000)
    assert len(rows) > 3000


def test_a_lost_connection_is_made_anew(
    plan: Callable[..., AckPlanner],
    topic: str,
    publish: Publish,
    dev_cluster: DevCluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner = plan()
    start = planner.initial()
    publish(topic, 0, numbered(10))
    until(lambda: planner.latest(start) != start)
    leader = dev_cluster.leader(topic, 0)
    assert leader is not None
    dev_cluster.cut(leader)
    until(lambda: "reconnecting after" in caplog.text)
    publish(topic, 0, numbered(10, 10))
    until(lambda: set(read(planner, start, planner.latest(start))) == set(numbered(20)))


def test_nobody_who_answers_is_an_error_in_the_end(tmp_path: Path) -> None:
    given = {"nsqd": "127.0.0.1:1", "topic": "t", "channel": "c", "delivery": "ack"}
    given |= {"spool": str(tmp_path), "fetchTimeout": "200ms", "fetchRetries": "1"}
    planner = AckPlanner(ReadOptions.parse(given, "stream"))
    try:
        with pytest.raises(ResponseTimeoutError, match="does not answer"):
            until(lambda: planner.latest(planner.initial()) == {})
    finally:
        planner.close()


def test_a_server_that_refuses_for_good_fails_the_query(dev_cluster: DevCluster, tmp_path: Path) -> None:
    ordered = dev_cluster.create_topic(next(names), 1, ordered=True)
    planner = AckPlanner(options_for(dev_cluster, ordered, tmp_path))
    try:
        with pytest.raises(NsqError, match="E_SUB_ORDER_IS_MUST"):
            until(lambda: planner.latest(planner.initial()) == {})
    finally:
        planner.close()


def test_a_topic_with_partitions_is_not_read_so(dev_cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    given = {"lookupd": dev_cluster.lookupd[0], "topic": topic, "channel": "c", "delivery": "ack"}
    planner = AckPlanner(ReadOptions.parse({**given, "spool": str(tmp_path)}, "stream"))
    with pytest.raises(
        ConfigError, match=r"option 'delivery': topic '.*' has partitions, and so offsets: remove delivery=ack"
    ):
        planner.latest(planner.initial())
    planner.close()


# ---------------------------------------------------------------- checkpoint and folder


def test_a_folder_that_is_not_the_checkpoints_is_data_loss(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish
) -> None:
    publish(topic, 0, numbered(10))
    strict, other = plan(), {"spool": "0" * 16, "file": 3}
    for start, said in (
        (other, "the checkpoint was made with another folder"),
        ({**strict.initial(), "file": 7}, "is at file 7"),
    ):
        with pytest.raises(DataLossError, match=said):
            strict.latest(start)
    damaged_ones: list[dict[str, Any]] = [{"orders": {"0": 17}}, {"spool": "0" * 16, "file": True}]
    for damaged in damaged_ones:
        with pytest.raises(ConfigError, match="the checkpoint is damaged or from another source"):
            strict.latest(damaged)
    strict.close()
    lossy = plan(failOnDataLoss="false")
    until(lambda: lossy.report()["file"] > 0 or not lossy.latest(other))
    end = lossy.latest(other)
    assert end["spool"] == lossy.initial()["spool"]
    assert sorted(read(lossy, other, end)) == numbered(10)


def test_a_folder_that_lost_its_newest_files_loses_no_new_message(
    plan: Callable[..., AckPlanner], topic: str, publish: Publish
) -> None:
    lossy = plan(failOnDataLoss="false")
    begun = lossy.initial()
    start = {**begun, "file": 7}
    assert lossy.latest(start) == begun, "a step back of its own"
    assert lossy.ranges(start, begun) == []
    publish(topic, 0, numbered(10))
    assert list(itertools.chain(*drained(lossy, begun))) == numbered(10)


def test_a_batch_that_goes_back_is_refused(plan: Callable[..., AckPlanner], topic: str, publish: Publish) -> None:
    publish(topic, 0, numbered(10))
    planner = plan()
    start = planner.initial()
    until(lambda: planner.latest(start) != start)
    end = planner.report()
    with pytest.raises(
        ConfigError, match=r"spool .*: the plan goes back from file \d+ to 0, which would repeat messages"
    ):
        planner.ranges(end, start)
    planner.close()
    lossy = plan(failOnDataLoss="false")
    assert lossy.ranges(end, start) == [], "planned after a loss that was allowed"


def test_a_file_that_comes_while_the_servers_say_that_nothing_is_left_is_read(
    dev_cluster: DevCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = AckPlanner(options_for(dev_cluster, topic, tmp_path))
    start = planner.initial()
    planner.prepare_target()

    def drained_after_a_last_file(_: object) -> bool:
        planner._spool.append(plain(b"last"))  # noqa: SLF001 - as a puller does
        return True

    monkeypatch.setattr(planner, "_is_drained", drained_after_a_last_file)
    with closing(planner):
        assert read(planner, start, planner.latest(start)) == [b"last"]


def test_without_nsqlookupds_the_known_nsqds_are_read_and_one_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ack_planner, "_LOOK_UP", 0.0)
    monkeypatch.setattr(ack_planner, "ROUTINE", 0.01)
    with DevCluster(plain=True, nsqds=1, time_scale=0.02) as cluster:
        base = cluster.http_address(next(iter(cluster.nsqds)))
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            assert httpx.post(base + path).status_code == 200
        until(lambda: all(producers(url) for url in cluster.lookupd))
        given = {"lookupd": ",".join(cluster.lookupd), "topic": "t", "channel": "c", "delivery": "ack"}
        given |= {"spool": str(tmp_path), "fetchTimeout": "100ms", "fetchRetries": "0"}
        planner = AckPlanner(ReadOptions.parse(given, "stream"))
        try:
            end = planner.latest(planner.initial())
            for number, _ in enumerate(cluster.lookupd):
                cluster.kill(f"nsqlookupd-{number}")
            for number in range(10):
                start = end
                assert httpx.post(f"{base}/pub?topic=t", content=b"%d" % number).status_code == 200
                until(lambda: planner.latest(start) != start)  # noqa: B023 - called at once
                end = planner.latest(start)
                assert read(planner, start, end) == [b"%d" % number]
        finally:
            planner.close()
    said = [record.getMessage() for record in caplog.records if "nsqlookupd" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("no nsqlookupd answers, going on with the servers known so far: ")


def producers(lookupd: str) -> list[object]:
    answer = httpx.get(f"{lookupd}/lookup", params={"topic": "t"})
    return list(answer.json()["producers"]) if answer.status_code == 200 else []
