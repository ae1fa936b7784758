"""Hostile peers, the short form of ``python -m integration.floods``: no case crashes, hangs or costs too much."""

from __future__ import annotations

import gc
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.floods import running, spark
from integration.floods.case import Case, Moment, Then
from integration.floods.kit import CASES
from integration.floods.running import CLIENTS, HOSTILE, Result, Scene, applies, run
from integration.floods.table import rows
from integration.floods.tools import COMMANDS, run_commands, show_pages
from nsq_ha import PublishError
from nsq_ha.protocol import Command, Finish, Layout
from tests.support.full import FULL
from tests.support.nsqd import OK, Peer

SHORT = 3.0
"""Seconds, of the virtual clock, for which a peer is hostile here."""

TURNS = {
    "consumer": (0, 2),
    "producer": (1, 2),
    "plain consumer": (1, 2),
    "plain producer": (0, 2),
    "admin": (0, 2),
    "admin of an nsqd": (1, 2),
}
"""Which cases each client has in the short form: those whose name's sum leaves this rest when it is divided."""

GROUPS = sorted({case.group for case in CASES})


@pytest.fixture(autouse=True, scope="module")
def no_old_garbage() -> Iterator[None]:
    """What other tests left would be counted as work of a turn."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def chosen(group: str, client: str) -> list[Case]:
    """Return the cases of a group for a client.

    In the short form each case has one of the clients that read it in the same way: those of a partitioned and of a
    plain cluster, and the two sides of an admin client.
    """
    cases = [case for case in CASES if case.group == group and not case.is_long and applies(case, client)]
    first, second = TURNS[client]
    return [case for case in cases if FULL or zlib.crc32(case.name.encode()) % second == first or case.extended]


@pytest.mark.few(every=5)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("group", GROUPS)
def test_no_case_costs_too_much(group: str, client: str) -> None:
    broken: list[str] = []
    for case in chosen(group, client):
        broken += [f"{case.name}: {text}" for text in found_each_time(case, client)]
    assert not broken, "\n".join(broken)


def found_each_time(case: Case, client: str) -> list[str]:
    """Return what was wrong; a turn that costs too much does so in each of three runs.

    What the host takes from this machine counts as CPU of the turn, so that one run may show more than it costs.
    """
    found: list[str] = []
    for _ in range(3):
        found = run(case, client, hostile=SHORT).broken
        if not found or not all(text.startswith("CPU of a turn") for text in found):
            break
    return found


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_each_case_is_tried_on_a_partitioned_or_a_plain_cluster(kind: str) -> None:
    for group in GROUPS:
        tried = [*chosen(group, kind), *chosen(group, f"plain {kind}")]
        assert {id(case) for case in tried} == {
            id(case) for case in CASES if case.group == group and not case.is_long and applies(case, kind)
        }


QUICK = tuple(case for case in CASES if case.is_lookup and not case.is_long)[::6]


@pytest.mark.parametrize("nsqd", [False, True], ids=["nsqlookupd", "nsqd"])
def test_no_command_crashes_hangs_or_prints_what_a_terminal_executes(nsqd: bool) -> None:
    broken: list[str] = []
    chosen = QUICK if FULL else QUICK[nsqd::2]
    for case in chosen:
        commands = COMMANDS if case is chosen[0] else COMMANDS[:: len(COMMANDS) // 3]
        broken += [f"{case.name}: {text}" for text in run_commands(case, nsqd=nsqd, commands=commands)]
    assert not broken, "\n".join(broken)
    assert len(chosen) > 2


@pytest.mark.parametrize("nsqd", [False, True], ids=["nsqlookupd", "nsqd"])
def test_no_page_of_the_dashboard_fails_or_holds_it_up(nsqd: bool) -> None:
    chosen = QUICK if FULL else QUICK[::3]
    broken = [f"{case.name}: {text}" for case in chosen for text in show_pages(case, nsqd=nsqd)]
    assert not broken, "\n".join(broken)
    assert len(chosen) > 2


def test_no_case_crashes_or_holds_up_a_reader_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [case for case in CASES if spark.applies(case)][::8]
    broken = [text for case in chosen for text in spark.read_case(case, monkeypatch)]
    assert not broken, "\n".join(broken)
    assert len(chosen) > 12


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({(case.group, case.name) for case in CASES}) == len(CASES)
    assert len(CASES) > 200


def test_the_kit_sees_what_is_wrong() -> None:
    """A case that is said to be harmless, and is not."""
    good = Case(group="some", name="good", data=b"", moment=Moment.WORK)
    assert run(good, "consumer", hostile=SHORT).broken == []
    slow = run(replace(good, seconds_of_cpu=0.0), "consumer", hostile=SHORT)
    assert slow.broken[0].startswith("CPU of a turn")
    alone = run(replace(good, has_good=True), "consumer", hostile=SHORT)
    assert alone.broken == ["the good message after the bad one was not handed out"]
    ended = Case(group="some", name="refused", data=b"\0\0\0\x0d\0\0\0\1E_INVALID", moment=Moment.ANSWER)
    assert "the client ended: E_INVALID" in run(ended, "consumer", hostile=SHORT).broken[0]
    known = Result(good, "consumer", memory=2**30, reconnects=3.0, recovery=4.0, stop=5.0)
    known.judge()
    assert [text.partition(":")[0] for text in known.broken] == [
        "memory",
        "reconnects a second",
        "seconds until it works again",
        "seconds to close",
    ]


def test_the_table_of_the_page_is_of_all_cases() -> None:
    """``python -m integration.floods --write`` makes it."""
    text = (Path(__file__).parents[1] / "docs/explanation/hostile-peers/table.md.inc").read_text("utf-8")
    shown = [tuple(cell.strip() for cell in line.split("|")[1:5]) for line in text.splitlines()[2:]]
    counted = Counter((case.group, client) for case in CASES for client in CLIENTS if applies(case, client))
    assert sorted(shown) == sorted((*place, str(count), "0") for place, count in counted.items())


GOOD = Case(group="some", name="good")


async def crashes(*_: object) -> None:
    raise ValueError("no")


async def refuses(*_: object, **__: object) -> None:
    raise PublishError("no", topic="orders", partition=None, attempts=1, maybe_stored=False)


def closes(peer: Peer, command: Command) -> None:
    if isinstance(command, Finish):
        peer.close()


def attack_the_well(scene: Scene) -> None:
    scene.met.add(Peer.__new__(Peer))
    scene.well.script = closes


@pytest.mark.parametrize(
    ("client", "place", "instead", "said"),
    [
        ("consumer", "nsq_ha.Consumer.run", crashes, "the client ended: ValueError('no')"),
        (
            "consumer",
            "integration.floods.running.Scene.attack",
            attack_the_well,
            "the connection to the well peer ended",
        ),
        ("consumer", "integration.floods.case._is_moment", lambda *_: False, "the case met nobody"),
        ("plain producer", "integration.floods.case._is_moment", lambda *_: False, "the case met nobody"),
        ("plain producer", "nsq_ha.Producer.publish", refuses, "nothing was published while the peer was hostile"),
    ],
    ids=["a crash", "others that are disturbed", "a case that meets no consumer", "nor a producer", "no publish"],
)
def test_the_kit_sees(client: str, place: str, instead: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, instead)
    assert said in run(GOOD, client, hostile=SHORT).broken


def test_a_case_that_meets_no_reader_of_spark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integration.floods.case._is_moment", lambda *_: False)
    assert spark.read_case(GOOD, monkeypatch) == ["good: the case met nobody"]


def test_a_busy_machine_excuses_a_turn_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, worse = "CPU of a turn: 0.2 above 0.05", "left behind: a task"
    runs = iter([[slow, worse], [slow], [worse], [slow], []])
    monkeypatch.setattr(running, "_run", lambda case, client, *_: Result(case, client, next(runs)))
    assert run(GOOD, "consumer").broken == [slow, worse]
    assert run(GOOD, "consumer").broken == [worse]
    assert run(GOOD, "consumer").broken == []


def test_the_table_shows_the_worst_of_each_group() -> None:
    case = Case(group="frames", name="a", then=Then.CLOSE)
    lines = rows(
        [
            Result(case, "consumer", turn=0.001, memory=2**20, reconnects=1.0, recovery=0.5, stop=0.1),
            Result(case, "consumer", broken=["x"], turn=0.04, memory=3 * 2**20),
        ]
    )
    assert lines[2:] == ["| frames | consumer | 2 | 1 | 40 | 3 | 1.0 | 0.5 | 0.1 |"]
    assert case.script(Layout.PLAIN) is not case.script(Layout.PLAIN)
    assert OK
    assert HOSTILE > SHORT
