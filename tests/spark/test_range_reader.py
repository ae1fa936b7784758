"""The reader: the whole range through whatever connections do, or an error; here with scripted connections."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.admin.nsqd_http import Search, StoredMessage
from nsq_ha.errors import (
    AuthError,
    ChannelNotRegisteredError,
    ConnectError,
    ConnectionLostError,
    DataLossError,
    LookupUnavailableError,
    NotLeaderError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.message import Message
from nsq_ha.options.types import Backoff
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.spark.cluster import BlockingCluster, Extent
from nsq_ha.spark.connection import ConnectionExpiredError
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.read import range_reader as reader_module
from nsq_ha.spark.read.range_reader import RangeReader
from tests.spark.logs import PARTITION, log_of
from tests.support.spark_rows import delivered

OLD, NEW = Node("127.0.0.1", 4150, 4151), Node("127.0.0.2", 4150, 4151)
META = TopicMeta(partition_num=PARTITION + 1)

Step = list[Message] | NsqError
"""What one ``receive`` gives or raises."""


class Clock:
    """Stands in for ``time``: only waiting takes any."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


@dataclass
class Server:
    """A cluster that delivers what the script says, and after the script the log itself, faultlessly."""

    log: list[Message]
    script: list[list[Step] | NsqError] = field(default_factory=list)
    extent: Extent | None = None
    faultless: bool = True
    silent: bool = False
    leaders: dict[int, Node] = field(default_factory=lambda: {PARTITION: NEW})
    opened: list[tuple[Node, int]] = field(default_factory=list)
    finished: list[int | None] = field(default_factory=list)
    leader = BlockingCluster.leader

    def view(self, topic: str) -> TopicView:
        if self.silent:
            raise LookupUnavailableError("none of them answers")
        return TopicView(topic, META, self.leaders, complete=True, exists=True)

    def extents(self, topic: str, node: Node) -> dict[int, Extent]:
        if self.extent is None:
            raise ConnectError("nobody answers")
        return {PARTITION: self.extent}

    def stored(self, topic: str, partition: int, node: Node, mode: Search, position: int) -> StoredMessage | None:
        for number, each in enumerate(self.log, 1):
            if each.offset is not None and (number if mode == "count" else each.offset) >= position:
                return StoredMessage(number, 0, 0, each.offset, number, "", "")
        return None

    def flush(self, topic: str, partition: int, node: Node, prefix: str) -> None:
        """Do nothing, as for a topic that accepts only registered channels."""


class ScriptedReplay:
    """Stands in for the connection."""

    def __init__(self, asked: Range, node: Node, cluster: Server, options: ReadOptions) -> None:
        self.server = cluster
        self.node = node
        self.steps: Iterator[Step] = iter(())

    def close(self) -> None:
        self.steps = iter(())

    def begin_batch(self) -> None:
        """Do nothing, as for messages that come as objects."""

    def open(self, position: int) -> None:
        server = self.server
        server.opened.append((self.node, position))
        if server.script:
            connection = server.script.pop(0)
            if isinstance(connection, NsqError):
                raise connection
            self.steps = iter([*connection, ConnectionLostError("the script ends")])
        elif server.faultless:
            rest = [each for each in server.log if each.offset is not None and each.offset >= position]
            self.steps = iter([rest])

    def receive(self, until: float) -> list[Message]:
        step = next(self.steps, None)
        if step is None:
            CLOCK.now = max(CLOCK.now, until)
            raise ResponseTimeoutError("nothing more comes")
        if isinstance(step, NsqError):
            raise step
        return step

    def finish_all(self, messages: Iterable[Message]) -> None:
        self.server.finished += [each.offset for each in messages]


@contextmanager
def scripted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader_module, "Replay", ScriptedReplay)
        patch.setattr(reader_module, "time", CLOCK)
        patch.setattr(reader_module, "_REOPEN", Backoff(initial=1e-4, maximum=1e-4))
        yield


@pytest.fixture
def scripted_replay() -> Iterator[None]:
    with scripted():
        yield


OPTIONS = ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",), fetch_timeout=0.001, fetch_retries=2)
PATIENT = replace(OPTIONS, fetch_timeout=60.0)


def reader_of(server: Server, start: int, end: int, options: ReadOptions = OPTIONS) -> RangeReader:
    asked = Range("flights", PARTITION, start, end, OLD, ordered=False, extended=False)
    return RangeReader(asked, options, server)  # type: ignore[arg-type]


def rows(reader: RangeReader) -> list[Message]:
    return list(itertools.chain.from_iterable(delivered(reader)))


faults = st.sampled_from(
    [
        ConnectionLostError("gone"),
        RemoteProtocolError("nonsense"),
        NotLeaderError("E_FAILED_ON_NOT_LEADER"),
        ResponseTimeoutError("silence"),
    ]
)
sizes = st.lists(st.integers(31, 400), min_size=1, max_size=25)


@given(sizes, st.data())
def test_the_exact_range_comes_out_through_any_faults(raw_sizes: list[int], data: st.DataObject) -> None:
    log = log_of(raw_sizes)
    bounds = list(itertools.accumulate(raw_sizes, initial=0))
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(raw_sizes))] * 2)))
    step = st.lists(st.sampled_from(log), max_size=12) | faults
    script = data.draw(st.lists(st.lists(step, max_size=5) | faults, max_size=5))
    server = Server(log, list(script), Extent(0, bounds[-1]))
    with scripted():
        got = rows(reader_of(server, bounds[low], bounds[high], PATIENT))
    assert got == log[low:high]
    # Each later channel begins where the rows had come to, never before and never behind.
    positions = [position for _, position in server.opened]
    assert positions == sorted(positions)
    assert set(positions) <= set(bounds[low : high + 1])


@pytest.mark.usefixtures("scripted_replay")
def test_without_any_nsqlookupd_the_known_leader_is_tried_again() -> None:
    log = log_of([40, 50, 60])
    server = Server(log, [[log[:1]], ConnectError("refused")], Extent(0, 150), silent=True)
    assert rows(reader_of(server, 0, 150)) == log
    assert server.opened == [(OLD, 0), (OLD, 40), (OLD, 40)]
    unplanned = Range("flights", PARTITION, 0, 150, None, ordered=False, extended=False)
    with pytest.raises(ResponseTimeoutError, match="none of them answers"):
        rows(RangeReader(unplanned, OPTIONS, Server(log, [], Extent(0, 150), silent=True)))  # type: ignore[arg-type]


@pytest.mark.usefixtures("scripted_replay")
def test_rows_come_in_portions_and_a_slow_caller_is_not_held_against_the_server() -> None:
    log = log_of([40] * 5)
    server = Server(log, [[log[:2], log[2:4], log[4:]]], Extent(0, 200))
    small = replace(OPTIONS, arrow_batch_rows=2)
    assert [len(batch) for batch in reader_of(server, 0, 200, small).batches()] == [2, 2, 1]


@pytest.mark.usefixtures("scripted_replay")
def test_large_messages_end_a_portion_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 100)
    log = log_of([60] * 4)
    server = Server(log, [[[each] for each in log]], Extent(0, 240))
    assert [len(batch) for batch in reader_of(server, 0, 240).batches()] == [2, 2]


@pytest.mark.usefixtures("scripted_replay")
@pytest.mark.parametrize(("start", "following"), [(0, 90), (45, 90), (100, 150)])
def test_an_offset_where_no_message_begins_is_named_with_what_follows_it_at_the_first_stall(
    start: int, following: int
) -> None:
    log = log_of([40, 50, 60])
    server = Server([log[0], log[2]], [], Extent(0, 150, 2))
    with pytest.raises(DataLossError, match=f"no message begins there, the next one is at {following}"):
        rows(reader_of(server, start, 150, PATIENT))
    assert len(server.opened) == 1
    found = rows(reader_of(server, start, 150, replace(PATIENT, fail_on_data_loss=False)))
    assert found == [each for each in server.log if each.offset is not None and each.offset >= start]


@pytest.mark.usefixtures("scripted_replay")
def test_a_message_that_cannot_be_read_yet_is_no_gap() -> None:
    log = log_of([40, 50])
    server = Server(log, [[ResponseTimeoutError("not flushed")]], Extent(0, 180, 4))
    server.log = []
    server.script *= 2
    reader = reader_of(server, 0, 90)

    def flushed(topic: str, node: Node) -> dict[int, Extent]:
        server.log = log if len(server.opened) > 1 else []
        return {PARTITION: Extent(0, 180, 4)}

    server.extents = flushed  # type: ignore[method-assign]
    assert rows(reader) == log


@pytest.mark.usefixtures("scripted_replay")
@pytest.mark.parametrize("error", [AuthError("E_AUTH_FIRST"), ChannelNotRegisteredError("", "not registered")])
def test_what_no_other_channel_can_cure_ends_the_task_at_once(error: NsqError) -> None:
    server = Server(log_of([40]), [error], Extent(0, 40))
    with pytest.raises(type(error)):
        rows(reader_of(server, 0, 40))
    assert len(server.opened) == 1


@pytest.mark.usefixtures("scripted_replay")
def test_a_connection_whose_time_is_over_is_followed_by_another_one_at_once() -> None:
    log = log_of([40] * 6)
    expired = ConnectionExpiredError("over")
    server = Server(log, [[log[:2], expired], [log[2:4], expired], [expired]], Extent(0, 240))
    before = CLOCK.now
    assert rows(reader_of(server, 0, 240, PATIENT)) == log
    assert [position for _, position in server.opened] == [0, 80, 160, 160]
    assert CLOCK.now == before


@pytest.mark.usefixtures("scripted_replay")
def test_connections_that_give_nothing_until_their_time_is_over_use_up_the_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Useless(ScriptedReplay):
        def receive(self, until: float) -> list[Message]:
            CLOCK.now += 5.0
            raise ConnectionExpiredError("over")

    monkeypatch.setattr(reader_module, "Replay", Useless)
    server = Server(log_of([40]), [], Extent(0, 40))
    with pytest.raises(ResponseTimeoutError, match="no progress for 180 s"):
        rows(reader_of(server, 0, 40, PATIENT))
