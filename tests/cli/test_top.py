"""``nsq-ha top``: what its screen shows, what its keys do, and that it leaves the terminal as it was."""

import dataclasses
import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

import msgspec
import pytest
from rich.console import Console

from nsq_ha.admin import ClientStats, ClusterState, ClusterStats, LookupdState, NodeStats, PartitionStats
from nsq_ha.admin.memory import Memory, Sighting
from nsq_ha.admin.reading import Reading
from nsq_ha.cli.top import MARKED, ORDERS, Screen
from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node
from tests.cli.conftest import Invoke
from tests.cli.test_stat import NOW, A, B, channel, partition

NODES = (Node("10.0.0.1", 4150, 4151), Node("10.0.0.2", 4150, 4151))
LOOKUPDS = (LookupdState("http://a:4161", leads=True, error=""), LookupdState("http://b:4161", leads=False, error=""))


def state(*, stable: bool | None = True, lookupds: tuple[LookupdState, ...] = LOOKUPDS) -> ClusterState:
    return ClusterState(is_plain=False, stable=stable, lookupds=lookupds, loads=())


def stats(*partitions: PartitionStats, error: str = "") -> ClusterStats:
    """What two nsqds say, each of the partitions that name it."""
    nodes = [
        NodeStats(node, partitions=tuple(each for each in partitions if each.nsqd == node.address)) for node in NODES
    ]
    silent = (NodeStats(Node("10.0.0.9", 4150, 4151), error=error),) if error else ()
    return ClusterStats((*nodes, *silent))


def take(screen: Screen, cluster: ClusterState, said: ClusterStats, second: float = 0.0) -> None:
    """Show a sample of that second."""
    before = screen.reading
    reading = Reading(
        NOW + second,
        stats=said,
        cluster=cluster,
        earlier=before.kept if before else None,
        clock=50.0 + second,
        memory=before.remembered if before else Memory(),
    )
    screen.take(reading, 50.0 + second)


def sampled(**options: object) -> Screen:
    """A screen after two samples, two seconds apart; the leader of a partition moved between them."""
    screen = Screen("prod", 2.0, **options)  # type: ignore[arg-type]  # its fields
    for second, leader, depth in ((0, A, 10), (2, B, 4)):
        billing, shipping = channel("billing", depth, oldest_at=NOW - 100), channel("shipping", 9, clients=0)
        take(
            screen,
            state(),
            stats(
                partition("orders", 0, billing, shipping),
                partition("orders", 1, channel("billing", 0), nsqd=leader),
                partition("letters", 0, channel("archive", 1, paused=True)),
            ),
            second,
        )
    return screen


def shown(screen: Screen, width: int = 120, height: int = 40, clock: float = 52.0) -> list[str]:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(screen.render(width, height, clock))
    return [line.rstrip() for line in console.export_text().splitlines()]


# ---------------------------------------------------------------- the screen


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("by_partition", [False, True])
def test_it_fits_every_width(width: int, by_partition: bool) -> None:
    lines = shown(sampled(by_partition=by_partition), width)
    assert max(map(len, lines)) <= width
    billing = next(line.split() for line in lines if "billing" in line)
    assert billing[0] == "orders"
    title = next(line for line in lines if line.split()[:2] == ["topic", "channel"])
    assert "depth" in title
    assert "lag" in title or width < 60


def test_a_long_name_is_cut_so_that_figures_fit() -> None:
    screen = Screen("prod", 2.0)
    take(screen, state(), stats(partition("t" * 64, 0, channel("c" * 64, 12345))))
    lines = shown(screen, 60)
    row = next(line for line in lines if "ttt" in line)
    assert "12,345" in row
    assert row.count("\u2026") == 2


@pytest.mark.parametrize("height", [10, 15, 24])
def test_it_fits_every_height_and_scrolls(height: int) -> None:
    screen = Screen("prod", 2.0)
    take(screen, state(), stats(*(partition(f"t{n:02}", 0, channel("c")) for n in range(50))))
    lines = shown(screen, 80, height)
    assert len(lines) <= height
    assert any("t00" in line for line in lines)
    for _ in range(99):
        assert screen.press("j")
    lines = shown(screen, 80, height)
    assert any("t49" in line for line in lines)
    assert not any("t00" in line for line in lines)
    for _ in range(99):
        screen.press("k")
    assert any("t00" in line for line in shown(screen, 80, height))


def test_the_head_has_the_totals() -> None:
    text = "\n".join(shown(sampled()))
    assert "nsq-ha top  prod" in text
    assert "partitioned, 2/2 nsqlookupds, 2/2 nsqds, 2 topics" in text
    assert "in 0/s, out 3/s, depth 14, in flight 4" in text


def test_nsqlookupds_that_are_known_are_counted() -> None:
    """It said 0/0 when none of two answered."""
    seen = {each.url: Sighting(NOW) for each in LOOKUPDS}
    none = dict.fromkeys(("cluster", "nodes", "topics"), "refused")
    screen = Screen("prod", 2.0)
    screen.take(Reading(NOW + 2, stats=stats(), errors=none, memory=Memory(lookupds=seen)), 52.0)
    assert any("0/2 nsqlookupds" in line for line in shown(screen))


def test_consumers_that_take_no_more_are_counted() -> None:
    idle = ClientStats("a", "a", "a:1", "", 5, 1, 0, 0, 0, 0, tls=False)
    full = msgspec.structs.replace(idle, in_flight=5)
    screen = Screen("prod", 2.0)
    for connections, said in (((idle, full), "1 of 2"), ((idle, idle), None)):
        take(
            screen,
            state(),
            stats(partition("t", 0, dataclasses.replace(channel("c", 7), clients=2, connections=connections))),
        )
        title = next(line for line in shown(screen) if "topic" in line and "channel" in line)
        assert ("full" in title) is (said is not None)
        assert said is None or any(said in line for line in shown(screen))


def test_trouble_is_shown() -> None:
    screen = sampled()
    silent = (LOOKUPDS[0], LookupdState("http://b:4161", leads=False, error="refused"))
    take(screen, state(stable=False, lookupds=silent), stats(error="timed out"), 4)
    screen.fail("no nsqlookupd answers\x1b[31m")
    text = "\n".join(shown(screen, 200, clock=60.0))
    assert "no new figures for 6 s: no nsqlookupd answers\\x1b[31m" in text
    assert "nsqlookupd http://b:4161 does not answer for 8 s; 1 nsqlookupd left to look topics up at" in text
    assert "nsqd 10.0.0.9:4150 does not answer" in text
    assert "no topics" in text


def test_a_moved_leader_is_marked_for_a_while() -> None:
    screen = sampled(by_partition=True)
    rows = {row.nsqd: row for row in screen.rows if row.name == "billing"}
    assert screen.style(rows[B], 52.0) == "magenta"
    assert screen.style(rows[B], 52.0 + MARKED) == ""
    assert screen.style(rows[A], 52.0) == ""
    screen = sampled()
    by_channel = {row.name: screen.style(row, 52.0) for row in screen.rows}
    assert by_channel == {"archive": "yellow", "billing": "", "shipping": ""}
    screen = Screen("prod", 2.0)
    take(screen, state(), stats(partition("orders", 0, channel("shipping", 9000, clients=0))), 0)
    assert [screen.style(row, 52.0) for row in screen.rows] == ["red"]


# ---------------------------------------------------------------- the keys


def test_the_order_of_the_rows() -> None:
    screen = sampled()
    assert [row.name for row in screen.rows] == ["archive", "billing", "shipping"]
    screen.press("s")
    assert (screen.sort, [row.name for row in screen.rows]) == ("depth", ["shipping", "billing", "archive"])
    for _ in ORDERS[1:]:
        screen.press("s")
    assert screen.sort == "name"


def test_the_filter() -> None:
    screen = sampled()
    for key in "/bilx\x7fl":
        assert screen.press(key)
    assert (screen.pattern, screen.is_typing) == ("bill", True)
    assert any("filter: bill_" in line for line in shown(screen))
    assert screen.press("\r")
    assert [row.name for row in screen.rows] == ["billing"]
    assert [row.name for row in sampled(pattern="letters/*").rows] == ["archive"]
    assert any("nothing matches" in line for line in shown(sampled(pattern="nothing")))


def test_partitions_and_the_end() -> None:
    screen = sampled()
    assert screen.press("p")
    assert [row.partition for row in screen.rows] == [0, 0, 1, 0]
    assert screen.press("z")
    assert not screen.press("q")
    screen.press("/")
    assert screen.press("q")
    assert not screen.press("\x03")


# ---------------------------------------------------------------- the command


def test_without_a_terminal_it_prints_samples(invoke: Invoke, topic: str) -> None:
    assert invoke("channel", "create", topic, "billing").exit_code == 0
    result = invoke("top", topic, "-n", "2", "-i", "0.01")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("nsq-ha top") == 2
    assert result.stdout.count("billing") == 2


def test_a_cluster_that_does_not_answer(invoke: Invoke, nobody: str) -> None:
    result = invoke("top", "-n", "1", lookupd=nobody)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")


def test_on_a_terminal(cluster: DevCluster, topic: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "nsq_ha.cli", "top", topic, "-i", "0.1", "--lookupd", cluster.lookupd[0]]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment | {"TERM": "xterm"}, start_new_session=True
    ) as process:
        try:
            printed = _until(master, topic[:8].encode())
            os.write(master, b"p")
            printed += _until(master, b"channels")
            os.write(master, b"q")
            printed += _until(master, b"\x1b[?1049l")
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert b"\x1b[?1049h" in printed
    assert b"Traceback" not in printed
    assert termios.tcgetattr(slave)[3] == before[3]
    os.close(master)
    os.close(slave)


def _until(master: int, text: bytes, limit: float = 120.0) -> bytes:
    """Read what is printed until ``text`` was."""
    printed, end = b"", time.monotonic() + limit
    while text not in printed:
        left = end - time.monotonic()
        assert left > 0, printed
        if select.select([master], [], [], left)[0]:
            printed += os.read(master, 65536)
    return printed
