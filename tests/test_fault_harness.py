"""The parts of the fault harness that decide what its figures say."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import mmap
import random
import socket
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from integration.faults import load as loading
from integration.faults.audit import Ack, Delivered, Failure
from integration.faults.bench import Bench
from integration.faults.cluster import Cluster, NotReadyError, Partition
from integration.faults.holdups import KEPT, TICK, HoldUps
from integration.faults.load import Load
from integration.faults.pace import REAL
from integration.faults.plain import Plain
from integration.faults.probes import Probes, longest_gap_span
from integration.faults.proxy import Link, Network, TcpProxy
from integration.faults.rows import Row, Target, figures_of
from integration.faults.scenarios import ALL, chaos, soak
from integration.faults.scenarios.chaos import Chaos
from integration.faults.scenarios.consumers import Neighbour
from integration.faults.slim import SlimAudit
from integration.faults.table import each_run, load, long_runs, table
from integration.faults.threads import ThreadedLoad
from integration.faults.waiting import beat
from nsq_ha import NsqError

if TYPE_CHECKING:
    from pathlib import Path

    from nsq_ha import Receipt

ONE_KEY = dataclasses.replace(REAL, keys=1)
FIGURES = {
    "publish_held": 0.0,
    "consume_held": 0.0,
    "slowest_call": 1.0,
    "errors": 0,
    "lost": 0,
    "out_of_order": 0,
    "not_stored_but_delivered": 0,
}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([], (10.0, 20.0)),
        ([9.0, 12.0, 13.0, 19.0], (13.0, 19.0)),
        ([4.0, 12.0, 13.0, 19.0], (4.0, 12.0)),
        ([11.0, 12.0], (12.0, 20.0)),
        ([10.5, 19.9, 40.0], (10.5, 19.9)),
    ],
)
def test_the_longest_gap_is_found_with_its_ends(times: list[float], expected: tuple[float, float]) -> None:
    """The gap under way at the start counts from its own beginning, the last one to the end."""
    assert longest_gap_span(times, 10.0, 20.0) == expected


def test_an_outage_excuses_a_stall_of_its_own_time_only() -> None:
    """A client that is well again with the cluster, and later stands still by itself, does not reach its target."""
    messages = Load("a", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=ONE_KEY)
    probes = Probes(print, str)
    times = [number / 10 for number in range(600)]
    probes.taken["a", 0] = [at for at in times if not 10 < at < 30]
    for seq, at in enumerate(at for at in times if not 10 < at < 30.5 and not 40 < at < 58):
        messages.audit.acked("k00", Ack(at, seq, 0, "n", 1), at)
        messages.audit.delivered("k00", Delivered(at, seq, 0, seq, "n"))
    figures = figures_of(messages, probes, 1.0, 59.9)
    assert figures.outage == pytest.approx(20.0)
    assert figures.publish_added == pytest.approx(17.9)
    assert figures.consume_added == pytest.approx(17.9)
    assert figures_of(messages, probes, 1.0, 39.9).publish_added == pytest.approx(0.5)


def test_a_hold_up_is_split_into_the_machines_share_and_our_own() -> None:
    """What the thread waited for a processor is the machine's; the rest of the delay is the process's own."""
    hold_ups = HoldUps()
    hold_ups.note(100.0, lag=0.4, waited=0.3)
    hold_ups.note(101.0, lag=0.2, waited=0.0)
    assert hold_ups.worst == 0.4
    assert hold_ups.worst_machine == pytest.approx(0.3)
    assert hold_ups.worst_own == pytest.approx(0.2)
    assert hold_ups.machine_between(99.0, 100.0) == pytest.approx(0.3)
    assert hold_ups.machine_between(100.0 + TICK, 200.0) == 0.0


def test_the_machine_cannot_have_taken_more_than_there_was() -> None:
    """A count of the kernel that runs ahead of the clock does not excuse more than the delay."""
    hold_ups = HoldUps()
    hold_ups.note(100.0, lag=0.1, waited=9.0)
    assert hold_ups.machine_between(99.0, 100.0) == pytest.approx(0.1)
    assert hold_ups.worst_machine == pytest.approx(0.1)


def test_a_long_run_keeps_the_latest_hold_ups_and_no_object_for_each() -> None:
    """What the harness keeps must not look like a leak of the library."""
    hold_ups = HoldUps()
    hold_ups.note(0.0, lag=0.1, waited=0.1)
    before = sys.getallocatedblocks()
    for number in range(1, KEPT + 1):
        hold_ups.note(float(number), lag=0.1, waited=0.1)
    assert sys.getallocatedblocks() - before < KEPT / 10
    assert hold_ups.machine_between(-1.0, 0.5) == 0.0
    assert hold_ups.machine_between(0.5, KEPT) == pytest.approx(KEPT * 0.1)


def test_small_books_say_what_they_hold() -> None:
    audit = SlimAudit(["a", "b"], 30.0)
    assert audit.kept_bytes == 0
    audit.delivered("a", Delivered(1.0, mmap.PAGESIZE, 0, 7, "n:1"))
    assert audit.kept_bytes == 2 * mmap.PAGESIZE


def test_small_books_tell_loss_order_repeats_and_denials() -> None:
    """Each invariant shows in its own count."""
    audit = SlimAudit(["a"], 30.0)
    for seq in range(5):
        audit.acked("a", Ack(1.0, seq, 0, "n", 1), 0.5)
    for seq in (0, 2, 1, 2, 3):
        audit.delivered("a", Delivered(2.0, seq, 0, seq, "n"))
    audit.failed(Failure(3.0, "a", 3, maybe_stored=False, text="no"), 2.0)
    assert audit.missing == {("a", 4)}
    assert audit.out_of_order() == 1
    assert audit.repeated == 1
    assert audit.denied_and_delivered == 1


def test_the_first_delivery_may_be_entered_after_the_repeated_one() -> None:
    """Another process got both messages first, and one of its reports is read after the nsqd delivered them again."""
    audit = SlimAudit(["a"], 30.0)
    for at, seq in ((5.0, 0), (1.0, 0), (1.1, 1), (5.1, 1)):
        audit.delivered("a", Delivered(at, seq, 0, seq, "n"))
    assert (audit.out_of_order(), audit.repeated) == (0, 2)


def test_a_publish_in_doubt_may_be_stored_after_later_ones() -> None:
    """An nsqd that stands still stores what lies in its buffers as soon as it goes on."""
    audit = SlimAudit(["a", "b"], 30.0)
    audit.failed(Failure(1.0, "a", 0, maybe_stored=True, text="no answer"), 0.0)
    audit.failed(Failure(1.0, "b", 0, maybe_stored=False, text="not sent"), 0.0)
    for key, seq in (("a", 1), ("a", 0), ("b", 1), ("b", 0)):
        audit.delivered(key, Delivered(2.0, seq, 0, seq, "n"))
    assert audit.out_of_order() == 1
    assert audit.doubtful_out_of_order == 1
    assert audit.examples == ["b:0 after 1 at 2.0"]
    assert audit.denied_and_delivered == 1


def test_the_table_holds_the_worst_of_the_last_runs(tmp_path: Path) -> None:
    """Figures of different runs are mixed only by their worst; what did not run is left out."""
    scenario = ALL[0]
    lines = []
    for publish, consume, broken in ((9.0, 9.0, []), (0.3, 0.9, []), (0.5, 0.2, []), (7.0, 7.0, ["did not run: X"])):
        row = Row(scenario.name, scenario.fault, Target(1.0, 1.5), run=1, broken=list(broken), code="abc")
        figures = FIGURES | {"topic": "ordered", "publish_added": publish, "consume_added": consume}
        lines.append(json.dumps(row.as_json() | {"figures": [figures]}))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n")
    runs = load([path])
    text = table(runs, 2)
    assert text[2].split(" | ")[2] == "0.50 / 0.90"
    assert text[2].endswith("| 0 / 0 / 0 / 0 | 2 | yes |")
    assert text[3].split(" | ")[2] == "not run"
    assert text[-1] == "Commits, with the number of runs: `abc` (2)."
    assert len(each_run(runs, 3)) == 3


def test_a_long_run_has_a_row_of_its_own(tmp_path: Path) -> None:
    """It tells what was broken, and no port of the machine."""
    row = Row("soak", "", Target(), run=1, code="abc", broken=["2 lost"], extra={"tasks grown": 1.0})
    row.notes += ["9 minutes", "ordered: publish to t-1 failed (may be stored): 127.0.0.1:9 is gone"]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row.as_json()) + "\n")
    assert long_runs(load([path]), 3)[2:] == ["| soak | `abc` | 9 minutes | tasks grown 1.00 | none | 2 lost |"]


async def test_a_black_hole_is_silent_and_ends() -> None:
    """No connection ends while it lasts; afterwards the connection is reset, and new ones work."""
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(100):
            writer.write(b"\0\0\0\2OK")
        ended.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = TcpProxy(server.sockets[0].getsockname()[1])
    await proxy.start()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        assert await reader.readexactly(6) == b"\0\0\0\2OK"
        proxy.begin_hole("both ways")
        writer.write(b"x")
        late_reader, late_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        late_writer.write(b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(late := asyncio.ensure_future(late_reader.read(1))), 0.1)
        assert not reader.at_eof()
        assert not ended.is_set()
        proxy.end_hole()
        for read in (late, reader.read(1)):
            try:
                assert await read == b""
            except ConnectionResetError:
                continue
        new_reader, new_writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        new_writer.write(b"x")
        assert await new_reader.readexactly(6) == b"\0\0\0\2OK"
        for each in (writer, late_writer, new_writer):
            each.transport.abort()
        await proxy.stop()
        server.close()
        await server.wait_closed()


async def test_what_arrives_slowly_is_waited_for_and_what_does_not_arrive_is_not() -> None:
    messages = Load("orders", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=REAL)
    for seq in range(4):
        messages.audit.acked("k00", Ack(0.0, seq, 0, "n", 1), 0.0)

    async def deliver() -> None:
        for seq in range(3):
            await beat(time.monotonic() + 0.3)
            messages.audit.delivered("k00", Delivered(0.0, seq, 0, seq, "n"))

    began = time.monotonic()
    await asyncio.gather(messages.drain(3.0), deliver())
    assert messages.audit.missing == {("k00", 3)}
    assert time.monotonic() - began >= 3 * 0.3 + 3.0


class Hanging(Load):
    """A load whose publishes never end."""

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        del body, key
        await asyncio.Event().wait()
        raise AssertionError


class Crashing(Load):
    """A load whose publishes end with an error that is not the library's."""

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        raise KeyError(key)


async def test_an_error_that_is_not_the_librarys_is_told() -> None:
    """Where publishes may fail, as in chaos and while a client is closed, it would be one of many errors."""
    messages = Crashing("a", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=ONE_KEY)
    for seq in range(9):
        messages.begin("k00", seq)
    await messages.end_publishing()
    assert messages.foreign == ["a publish to a ended with KeyError('k00')"] * 5
    assert len(messages.audit.failures) == 9


async def test_a_call_that_never_ends_counts_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "OVER", 0.6)
    pace = dataclasses.replace(REAL, limit=0.1)
    messages = Hanging("orders", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=pace)
    messages.begin("k00", 0)
    await beat(time.monotonic() + 0.2)
    assert messages.slowest() >= 0.2
    await messages.end_publishing()
    await messages.close()
    assert messages.overdue() == [f"a call took {messages.audit.slowest:.1f} s"]


async def test_clients_that_go_around_the_proxies_are_not_measured() -> None:
    """No fault of the network meets them, so they would reach every target."""
    network = Network(Cluster(("http://127.0.0.1:1",), (), 0))
    network.tcp = {1: TcpProxy(1), 2: TcpProxy(2)}
    ours, server = [await asyncio.open_connection(sock=one) for one in socket.socketpair()]
    network.tcp[1].links.add(Link(ours, server))
    network.check()
    network.check(1)
    with pytest.raises(NotReadyError):
        network.check(2)
    network.tcp[1].links.clear()
    with pytest.raises(NotReadyError):
        network.check()
    for _, writer in (ours, server):
        writer.transport.abort()


@pytest.mark.parametrize("kind", [Cluster, Plain])
async def test_a_history_says_what_names_a_message(kind: type[Cluster], tmp_path: Path) -> None:
    """Two plain nsqds give the same ids: a FIN of what only the other one delivered must be found."""
    bench = Bench(kind(("http://127.0.0.1:1",), (), 0), verbose=False, histories=tmp_path)
    messages = bench.load("orders", ordered=False, channel="ch", lookupds=bench.cluster.lookupds)
    await messages.close()
    assert begin_of(tmp_path / "orders-001.jsonl")["partitioned"] is not bench.cluster.is_plain


def begin_of(history: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(history.read_text().splitlines()[0])
    return found


async def test_the_clients_of_one_scenario_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def watch(bench: Bench, *_: object, **__: object) -> Row:
        seen.append(bench.make_load)
        raise NotReadyError

    monkeypatch.setattr(soak, "_of_environment", watch)
    bench = Bench(Cluster(("http://127.0.0.1:1",), (), 0), verbose=False)
    scenario = next(one for one in soak.SCENARIOS if one.name == "soak-sync")
    with pytest.raises(NotReadyError):
        await scenario.play(bench, scenario)
    assert (seen, bench.make_load) == ([ThreadedLoad], Load)


class Unmet(Chaos):
    """Chaos whose faults meet nobody."""

    async def killed_for_long(self, port: int) -> None:
        del port

    def pause(self) -> float:
        return 0.0

    async def once(self) -> None:
        raise NsqError("no node")


async def test_chaos_counts_the_faults_that_were_done_and_finds_clients_that_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer that never publishes again, or a consumer that never reads again, loses nothing."""
    bench = Bench(Cluster(("http://127.0.0.1:1",), (), 0), verbose=False)
    bench.pace = dataclasses.replace(REAL, cluster=0.01, keys=2)
    messages = bench.load("a", ordered=True, channel="ch", lookupds=bench.cluster.lookupds)
    stage = mock.AsyncMock(bench=bench, cluster=bench.cluster, since=0.0, loads={"ordered": messages})
    stage.fault, stage.recovered.return_value = mock.Mock(), False
    monkeypatch.setattr(bench, "ready", mock.AsyncMock(return_value={"ordered": "a"}))
    monkeypatch.setattr(bench, "stage", lambda *_, **__: contextlib.nullcontext(stage))
    messages.most_calls = 7  # during the first outage: what waits in later ones needs no more memory
    row = await chaos.run(bench, chaos.SCENARIO, 0.001, 1, Unmet, kinds=("ordered",))
    assert (row.faults, messages.most_at_once) == (1, 7)
    assert row.broken == ["ordered: all keys stand still at the end"]


async def test_no_fault_begins_before_the_replicas_are_in_sync_again() -> None:
    """Two of three replicas that are away stop the writes, which no client can prevent."""
    done: list[str] = []
    bench = Bench(Cluster(("http://127.0.0.1:1",), (), 0), verbose=False)
    cluster = mock.Mock(wait_whole=mock.AsyncMock(side_effect=lambda topics, *_, **__: done.append(f"{topics} whole")))
    faults = Chaos(mock.Mock(bench=bench, cluster=cluster, topics={"ordered": "a"}), random.Random(1))
    fault = mock.AsyncMock(side_effect=lambda: done.append("fault"))
    with mock.patch.object(faults, "faults", return_value=(fault,)):
        await faults.once()
        cluster.wait_whole.side_effect = NotReadyError
        await faults.once()
    assert done == [f"{{'a': {bench.partitions}}} whole", "fault", "fault"]


async def test_a_key_stands_still_when_nothing_of_it_is_acknowledged_or_nothing_delivered() -> None:
    pace = dataclasses.replace(REAL, keys=4)
    messages = Load("a", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=pace)
    for key, acked, delivered in (("k00", 2.0, 2.1), ("k01", 2.0, 0.9), ("k02", 0.9, 2.0)):
        messages.audit.acked(key, Ack(acked, 0, 0, "n", 1), 0.0)
        messages.audit.delivered(key, Delivered(delivered, 0, 0, 0, "n"))
    assert messages.standing_still(1.0) == ["k01", "k02", "k03"]


SUBSCRIBED = "import signal; print('{\"subscribed\": true}', flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("program", "leaves", "trouble"),
    [
        (SUBSCRIBED, False, ""),
        ("raise SystemExit(3)", False, "ended by itself with exit code 3"),
        ("raise SystemExit(3)", True, "ended by itself with exit code 3"),
        (
            "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n" + SUBSCRIBED,
            True,
            "left with exit code 4",
        ),
    ],
    ids=["killed", "died", "died before it was to leave", "failed while it left"],
)
async def test_a_second_consumer_that_dies_is_told(program: str, *, leaves: bool, trouble: str) -> None:
    neighbour = Neighbour(Load("a", ordered=True, channel="ch", lookupds=("http://127.0.0.1:1",), pace=REAL))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    neighbour._process, neighbour._reading = process, asyncio.create_task(neighbour._read(process))
    if "SystemExit" in program:
        await process.wait()
    else:
        await neighbour._subscribed.wait()
    await (neighbour.leave() if leaves else neighbour.stop())
    assert neighbour.trouble == trouble
    stage: Any = SimpleNamespace(bench=Bench(Cluster((), (), 0), verbose=False), cluster=None)
    soaking = soak.Soak(stage, random.Random(1))
    soaking._neighbours["ordered"] = neighbour
    await soaking.aclose()
    assert soaking.broken == ([f"ordered: a second consumer {trouble}"] if trouble else [])


class Led(Cluster):
    """A cluster that says which nsqd leads each partition of any topic."""

    leaders: dict[int, int]

    async def partitions(self, topic: str) -> dict[int, Partition]:
        del topic
        return {number: Partition(port, ()) for number, port in self.leaders.items()}


async def test_a_killed_node_is_away_until_each_partition_is_led_by_another_one() -> None:
    cluster = Led(("http://127.0.0.1:19111",), ("true",), 19000)
    stage: Any = SimpleNamespace(bench=Bench(cluster, verbose=False), cluster=cluster, topics={"ordered": "a"})
    stage.bench.partitions, chaos = 2, Chaos(stage, random.Random(1))
    said = []
    for leaders in ({0: 19310, 1: 19320}, {0: 19310}, {}, {0: 19310, 1: 19330}):
        cluster.leaders = leaders
        said.append(await chaos.is_led_by_others("d2"))
    assert said == [False, False, False, True]
