"""Hostile peers: no case crashes, hangs or costs too much."""

import zlib
from dataclasses import replace

import pytest

from integration.floods import answers, frames, known, lookups, messages
from integration.floods.case import Case, Moment
from integration.floods.running import CLIENTS, Result, applies, run
from tests.support.full import FULL

CASES: tuple[Case, ...] = (
    *frames.CASES,
    *answers.CASES,
    *known.CASES,
    *messages.CASES,
    *lookups.CASES,
)
TURNS = {
    "consumer": (0, 2),
    "producer": (1, 2),
    "plain consumer": (1, 2),
    "plain producer": (0, 2),
}
"""Which cases each client has in the short form: those whose name's sum leaves this rest when it is divided."""

GROUPS = sorted({case.group for case in CASES})


def chosen(group: str, client: str) -> list[Case]:
    """Return the cases of a group for a client.

    In the short form each case has one of the clients that read it in the same way: those of a partitioned and of a
    plain cluster.
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
        broken += [f"{case.name}: {text}" for text in run(case, client).broken]
    assert not broken, "\n".join(broken)


def test_the_kit_sees_what_is_wrong() -> None:
    """A case that is said to be harmless, and is not."""
    good = Case(group="some", name="good", data=b"", moment=Moment.WORK)
    assert run(good, "consumer").broken == []
    alone = run(replace(good, has_good=True), "consumer")
    assert alone.broken == ["the good message after the bad one was not handed out"]
    ended = Case(group="some", name="refused", data=b"\0\0\0\x0d\0\0\0\1E_INVALID", moment=Moment.ANSWER)
    assert "the client ended: E_INVALID" in run(ended, "consumer").broken[0]
    costly = Result(good, "consumer", memory=2**30, reconnects=3.0, recovery=4.0, stop=5.0)
    costly.judge()
    assert [text.partition(":")[0] for text in costly.broken] == [
        "memory",
        "reconnects a second",
        "seconds until it works again",
        "seconds to close",
    ]
