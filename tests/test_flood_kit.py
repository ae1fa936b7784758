"""Hostile peers, the short form of ``python -m integration.floods``: no case crashes, hangs or costs too much."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from integration.floods import spark
from integration.floods.case import Case, Moment
from integration.floods.kit import CASES
from integration.floods.running import CLIENTS, Result, applies, run
from integration.floods.tools import COMMANDS, run_commands, show_pages
from tests.support.full import FULL

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


def chosen(group: str, client: str) -> list[Case]:
    """Return the cases of a group for a client.

    In the short form each case has one of the clients that read it in the same way: those of a partitioned and of a
    plain cluster, and the two sides of an admin client.
    """
    cases = [case for case in CASES if case.group == group and applies(case, client)]
    first, second = TURNS[client]
    return [case for case in cases if FULL or zlib.crc32(case.name.encode()) % second == first or case.extended]


@pytest.mark.few(every=5)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("group", GROUPS)
def test_no_case_costs_too_much(group: str, client: str) -> None:
    broken: list[str] = []
    for case in chosen(group, client):
        broken += [f"{case.name}: {text}" for text in run(case, client, hostile=SHORT).broken]
    assert not broken, "\n".join(broken)


QUICK = tuple(case for case in CASES if case.is_lookup)[::6]


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


def test_the_kit_sees_what_is_wrong() -> None:
    """A case that is said to be harmless, and is not."""
    good = Case(group="some", name="good", data=b"", moment=Moment.WORK)
    assert run(good, "consumer", hostile=SHORT).broken == []
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
