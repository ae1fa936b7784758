"""The comparer of the two clusters: it finds what differs, and nothing where nothing does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import httpx
import pytest

from integration.differential import commands
from integration.differential.__main__ import run_cases
from integration.differential.commands import UPSTREAM, Kind
from integration.differential.comparing import TOLERANCES, Difference, compare, lasting
from integration.differential.known import KNOWN, why
from integration.differential.observing import Event, Observation
from integration.differential.plain import PlainSide
from integration.differential.running import Found, Runner
from integration.differential.side import Side
from nsq_ha.devcluster import DevCluster
from tests.devcluster.unmatched import PAGE

PLAIN = Kind("plain")
LATE = max(TOLERANCES.values()) + 1.0


def seen(*events: Event, answer: str = "OK", at: float = 0.5, shared: bool = False) -> Observation:
    return Observation(answer, events, shared, at)


def message(text: str, at: float = 0.1, attempts: int = 1, connection: int = 0) -> Event:
    return Event(connection, "message", text, attempts, at)


# ------------------------------------------------------------ the comparison


def test_another_answer_is_a_difference() -> None:
    assert compare([seen(), seen(answer="200")], [seen(), seen(answer="404")]) == [
        Difference(2, "answer", "200", "404")
    ]


def test_what_comes_on_one_side_only_is_a_difference() -> None:
    (found,) = compare([seen(message("a"), at=LATE)], [seen(at=LATE)])
    assert (found.step, found.kind) == (1, "events")
    assert "message a" in found.real
    assert "nothing" in found.embedded
    (found,) = compare([seen(message("a", attempts=1), at=LATE)], [seen(message("a", attempts=2), at=LATE)])
    assert found.kind == "events"


def test_what_comes_a_little_later_may_come_with_the_next_command() -> None:
    early, late = message("a", 0.5), message("a", 0.7)
    assert compare([seen(early), seen(at=0.9)], [seen(), seen(late, at=0.9)]) == []
    assert compare([seen(message("a", 0.5))], [seen()]) == []  # the case ended too soon to say


def test_what_comes_much_later_is_a_difference() -> None:
    (found,) = compare([seen(message("a", 0.1), at=LATE + 1)], [seen(message("a", LATE), at=LATE + 1)])
    assert (found.step, found.kind) == (1, "time")


def test_the_order_on_one_connection_counts() -> None:
    one, other = message("a"), message("b")
    (found,) = compare([seen(one, other)], [seen(other, one)])
    assert found.kind == "order"
    assert compare([seen(one, other, shared=True)], [seen(other, one, shared=True)]) == []


def test_between_two_readers_chance_decides() -> None:
    mine, yours = message("a", connection=0), message("a", connection=1)
    assert compare([seen(mine, shared=True, at=LATE)], [seen(yours, shared=True, at=LATE)]) == []
    assert compare([seen(mine, at=LATE)], [seen(yours, at=LATE)])


def test_only_what_differs_each_time_counts() -> None:
    one, other = Difference(1, "answer", "a", "b"), Difference(2, "answer", "a", "b")
    assert lasting([[one], [one], [one]]) == [one]
    assert lasting([[one], [], [one]]) == []
    assert lasting([[one], [other], [one]]) == []
    assert lasting([]) == []


# ------------------------------------------------------------ two clusters


class Kinder(Side):
    """A side that empties channels which do not exist."""

    def post(self, path: str, body: bytes = b"", **query: str) -> httpx.Response:
        answer = super().post(path, body, **query)
        return httpx.Response(200) if path == "/channel/empty" else answer


@contextmanager
def two_sides(kind: Kind, other: type[Side] = Side) -> Iterator[Runner]:
    """Two embedded clusters with one topic each."""
    with DevCluster(nsqds=2, time_scale=0.05) as one, DevCluster(nsqds=2, time_scale=0.05) as two:
        sides = Side("real", one.lookupd[0]), other("embedded", two.lookupd[0])
        for side in sides:
            side.use(side.make(kind, 2), kind)
        runner = Runner(*sides, lambda line: None, time.monotonic() + 60.0)
        try:
            yield runner
        finally:
            runner.close()
            for side in sides:
                side.close()


@pytest.mark.parametrize("kind", [PLAIN, Kind("ordered-extended", ordered=True, extended=True)])
def test_two_embedded_clusters_do_not_differ(kind: Kind) -> None:
    with two_sides(kind) as runner:
        run_cases(runner, kind, 2, seeded=7)
        assert runner.tally.cases == 2
        assert runner.tally.commands >= 8
        assert [str(found) for found in runner.tally.found] == []


def test_a_kinder_cluster_is_found_and_the_case_made_short() -> None:
    needed = commands.Operate("/channel/empty", 0)
    with two_sides(PLAIN, Kinder) as runner:
        assert (
            runner.check(PLAIN, [commands.Lookup("r"), commands.Publish("PUB"), needed, commands.Stats()]) == "differs"
        )
        assert runner.check(PLAIN, [needed]) == "differs"
        assert runner.check(PLAIN, [commands.Lookup("r")]) == "same"
        (found,) = runner.tally.found  # the same difference is reported once
    assert list(found.commands) == [needed]
    assert found.difference == Difference(1, "answer", '404 {"message":"CHANNEL_NOT_FOUND"}', "200 ")
    assert "CHANNEL_NOT_FOUND" in str(found)
    assert why(found) is None


def test_the_docs_tell_of_each_known_difference() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for known in KNOWN:
        assert known.reason in page
        assert known.command in {cls.__name__ for cls in get_args(commands.Command)}
    found = Found(PLAIN, [commands.Stats()], Difference(1, "answer", "nothing of the kind", "either"))
    assert why(found) is None


# ---------------------------------------------------------------- two plain clusters


@contextmanager
def two_plain_sides(monkeypatch: pytest.MonkeyPatch, node_ids: Sequence[int] = ()) -> Iterator[Runner]:
    """Two embedded plain clusters with one topic each; the second one has these node ids."""
    monkeypatch.setattr("integration.differential.plain._REFRESH", 0.3)
    with (
        DevCluster(plain=True, nsqds=2, time_scale=0.02) as one,
        DevCluster(plain=True, nsqds=2, time_scale=0.02, node_ids=node_ids) as two,
    ):
        sides = PlainSide("real", one.lookupd[0]), PlainSide("embedded", two.lookupd[0])
        for side in sides:
            side.use(side.make(UPSTREAM, 1), UPSTREAM)
        runner = Runner(*sides, lambda line: None, time.monotonic() + 60.0)
        try:
            yield runner
        finally:
            runner.close()
            for side in sides:
                side.drop(side.topic)
                side.close()


def test_two_embedded_plain_clusters_do_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_plain_sides(monkeypatch) as runner:
        run_cases(runner, UPSTREAM, 2, seeded=7)
        assert runner.tally.cases == 2
        assert [str(found) for found in runner.tally.found] == []


def test_nsqds_with_node_ids_of_their_own_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [commands.Subscribe(connection, "SUB", 0, 10) for connection in range(2)]
    with two_plain_sides(monkeypatch, node_ids=(1, 2)) as runner:
        runner.check(UPSTREAM, [*readers, commands.Publish("MPUB", 3), commands.Stats()])
        (found,) = runner.tally.found
    assert found.difference.kind == "answer"
    assert '"node ids": 1' in found.difference.real
    assert '"node ids": 2' in found.difference.embedded


def test_each_nsqd_answers_for_its_own_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_plain_sides(monkeypatch) as runner:
        case: list[commands.Command] = [
            *(commands.Subscribe(connection, "SUB", 0, 10) for connection in range(2)),
            commands.Publish("MPUB", 2),
            commands.Answer("FIN", 0, "oldest"),
            commands.Answer("FIN", 0, "finished"),
            commands.Answer("REQ", 0, "newest"),
            commands.Lookup("r"),
            commands.Operate("/channel/empty", 0),
            commands.Leave(1, "CLS"),
            commands.Settle(),
            commands.Stats(),
        ]
        runner.check(UPSTREAM, case)
        assert [str(found) for found in runner.tally.found] == []
