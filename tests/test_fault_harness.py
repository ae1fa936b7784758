"""The parts of the fault harness that decide what its figures say."""

import asyncio
import dataclasses

import pytest

from integration.faults.audit import Ack, Audit, Delivered, Failure
from integration.faults.holdups import TICK, HoldUps
from integration.faults.load import Load
from integration.faults.pace import REAL
from integration.faults.probes import Probes, longest_gap_span
from integration.faults.proxy import TcpProxy
from integration.faults.rows import figures_of

ONE_KEY = dataclasses.replace(REAL, keys=1)


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
    assert hold_ups.worst_own == pytest.approx(0.2)
    assert hold_ups.machine_between(99.0, 100.0) == pytest.approx(0.3)
    assert hold_ups.machine_between(100.0 + TICK, 200.0) == 0.0


def test_small_books_tell_loss_order_repeats_and_denials() -> None:
    """Each invariant shows in its own count."""
    audit = Audit(["a"], 30.0, slim=True)
    for seq in range(5):
        audit.acked("a", Ack(1.0, seq, 0, "n", 1), 0.5)
    for seq in (0, 2, 1, 2, 3):
        audit.delivered("a", Delivered(2.0, seq, 0, seq, "n"))
    audit.failed(Failure(3.0, "a", 3, maybe_stored=False, text="no"), 2.0)
    assert audit.waiting.keys() == {("a", 4)}
    assert audit.out_of_order() == 1
    assert audit.repeated == 1
    assert audit.denied_and_delivered == 1


def test_the_first_delivery_may_be_entered_after_the_repeated_one() -> None:
    """Another process got both messages first, and one of its reports is read after the nsqd delivered them again."""
    audit = Audit(["a"], 30.0, slim=True)
    for at, seq in ((5.0, 0), (1.0, 0), (1.1, 1), (5.1, 1)):
        audit.delivered("a", Delivered(at, seq, 0, seq, "n"))
    assert (audit.out_of_order(), audit.repeated) == (0, 2)


def test_a_publish_in_doubt_may_be_stored_after_later_ones() -> None:
    """An nsqd that stands still stores what lies in its buffers as soon as it goes on."""
    audit = Audit(["a", "b"], 30.0, slim=True)
    audit.failed(Failure(1.0, "a", 0, maybe_stored=True, text="no answer"), 0.0)
    audit.failed(Failure(1.0, "b", 0, maybe_stored=False, text="not sent"), 0.0)
    for key, seq in (("a", 1), ("a", 0), ("b", 1), ("b", 0)):
        audit.delivered(key, Delivered(2.0, seq, 0, seq, "n"))
    assert audit.out_of_order() == 1
    assert audit.doubtful_out_of_order == 1
    assert audit.examples == ["b:0 after 1 at 2.0"]
    assert audit.denied_and_delivered == 1


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
