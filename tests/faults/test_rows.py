"""Each row of the table of faults, on the embedded cluster: the scenarios that are measured on a real one.

What must never happen is asserted as it is, and so is the order of events; times with a threefold margin.
"""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from integration.faults.audit import Ack, Delivered
from integration.faults.bench import Bench, Scenario
from integration.faults.embedded import PACE
from integration.faults.load import Load
from integration.faults.rows import Target
from integration.faults.scenarios import ALL
from integration.faults.threads import ThreadedLoad
from integration.history.checking import Checker
from nsq_ha.policy.lookup_pace import longest_interval, partition_delay

MARGIN: Final = 3.0

NEW_LEADER: Final = {
    "leader-sigkill",
    "leader-sigterm",
    "move-within",
    "move-new",
    "node-restart",
    "node-returns",
    "leader-frozen",
    "leader-lost-no-lookupd",
}
"""Where another node must lead afterwards."""
SAME_LEADER: Final = {
    "ordinary-black-hole",
    "ordinary-one-way",
    "ordinary-no-answer",
    "ordinary-trickle",
    "network-slow",
    "lookupd-killed",
    "lookupds-dead",
    "lookupds-hang",
    "lookupd-hangs",
    "lookupd-nonsense",
    "grow-ordered",
    "grow-ordinary",
    "stream-cut",
    "stream-silent",
    "bit-flipped",
    "answers-lost",
    "handler-fails",
    "consumer-killed",
    "consumer-frozen",
}
"""Where nothing may go elsewhere, since no leader changes."""
FOLLOWER: Final = {"follower-killed", "follower-frozen"}
"""Where partition 0 of the first topic keeps its leader; the node may lead others."""

WITHOUT_HISTORY: Final = {
    *("recreated-ordered", "recreated-ordinary"),
    *("stop-leader-killed", "stop-leader-frozen", "stop-lookupds-hang"),
}
"""Where ids begin again, or what is left is read after the load has ended."""

EVERY_CONNECTION: Final = ("stream-cut", "stream-silent", "bit-flipped", "answers-lost")
"""Where the connection to each partition is lost, and not all of them in the same moment."""

GROWN: Final = ("publishing to all after", "consuming from all after")
SHORTEST: Final = PACE.clients["lookup_interval"]
USED_AFTER: Final = longest_interval(SHORTEST) + partition_delay(SHORTEST)
"""A producer finds new partitions within the first of the two, and uses them after the second."""

CEILINGS: Final = {
    **dict.fromkeys(EVERY_CONNECTION, Target(2 * PACE.silence, 2 * PACE.silence)),
    "consumer-frozen": Target(MARGIN * 0.5, 2 * (3 * PACE.heartbeat + 1.0)),
    **dict.fromkeys(("grow-ordered", "grow-ordinary"), Target(extra=dict.fromkeys(GROWN, MARGIN * USED_AFTER))),
}
"""Where the target goes by the library's options, which differ from the defaults here."""
EXACT: Final = {
    "ordered questions/s": 5.0,
    "ordinary questions/s": 5.0,
    "closing a producer": PACE.close + MARGIN * 0.5,
    "closing a consumer": PACE.close + MARGIN * 0.5,
}
"""Figures that are no times, or limits that were given."""


def ceiling(scenario: Scenario) -> Target:
    target = scenario.target
    if scenario.name in CEILINGS:
        return CEILINGS[scenario.name]
    return Target(
        publish=None if target.publish is None else MARGIN * target.publish,
        consume=None if target.consume is None else MARGIN * target.consume,
        extra={name: EXACT.get(name, MARGIN * most) for name, most in target.extra.items()},
    )


@pytest.mark.few(
    "leader-sigkill",
    "node-restart",
    "leader-frozen",
    "move-new",
    "follower-killed",
    "lookupds-dead",
    "lookupd-nonsense",
    "ordinary-black-hole",
    "stream-cut",
    "answers-lost",
    "grow-ordered",
    "recreated-ordered",
    "consumer-frozen",
    "handler-fails",
    "stop-leader-frozen",
)
@pytest.mark.parametrize("name", [scenario.name for scenario in ALL])
async def test_row(bench: Bench, name: str, tmp_path: Path) -> None:
    await assert_reached(bench, name, tmp_path)


@pytest.mark.few("leader-sigkill", "handler-fails", "stop-leader-frozen")
@pytest.mark.parametrize("name", [scenario.name for scenario in ALL])
async def test_row_through_the_clients_for_threads(bench: Bench, name: str, tmp_path: Path) -> None:
    bench.make_load = ThreadedLoad
    await assert_reached(bench, name, tmp_path)


async def assert_reached(bench: Bench, name: str, tmp_path: Path) -> None:
    scenario = next(scenario for scenario in ALL if scenario.name == name)
    bench.histories = None if name in WITHOUT_HISTORY else tmp_path
    row = await scenario.play(bench, dataclasses.replace(scenario, target=ceiling(scenario)))
    print(row)  # noqa: T201 - shown when it fails
    assert not row.broken
    assert not row.missed()
    for load in bench.loads:
        assert load.audit.started > PACE.keys
        assert_repeats_are_few(load, max(row.faults, 1), every_connection=name in EVERY_CONNECTION)
    assert_leaders(name, bench.loads)
    if name not in WITHOUT_HISTORY:
        assert_histories(tmp_path)


def assert_histories(folder: Path) -> None:
    """The checker knows nothing of the books, and compares ids, offsets and finishes, too."""
    files = list(folder.iterdir())
    assert files
    for file in files:
        checker = Checker()
        with file.open() as lines:
            checker.read(lines)
        # How long a call may take is judged with the books, which know what the machine took.
        assert [text for text in checker.wrong if " took " not in text] == [], file
        assert checker.counts["finish"] > PACE.keys
        assert checker.counts["receipts"] > PACE.keys


def assert_leaders(name: str, loads: list[Load]) -> None:
    """Nobody goes back to a former leader, and nobody elsewhere without need."""
    for load in loads:
        for led in (nodes(*load.audit.acks.values()), nodes(*load.audit.deliveries.values())):
            assert all(len(names) == len(set(names)) for names in led.values())
            assert name not in SAME_LEADER or all(len(names) == 1 for names in led.values())
    published = [nodes(*load.audit.acks.values()) for load in loads]
    assert name not in FOLLOWER or len(published[0][0]) == 1
    assert name not in NEW_LEADER or any(len(names) == 2 for led in published for names in led.values())


def assert_repeats_are_few(load: Load, faults: int, *, every_connection: bool) -> None:
    """On an ordered topic one for each key and fault; on an ordinary one what was under way on what was lost."""
    stored_again = {key: load.audit.stored_again(key) for key in load.audit.keys}
    if load.ordered:
        assert max(stored_again.values()) <= faults
    else:
        lost = len(nodes(*load.audit.acks.values())) if every_connection else 1
        assert sum(stored_again.values()) <= lost * load.most_calls


def nodes(*of_keys: Iterable[Ack | Delivered]) -> dict[int, list[str]]:
    """Return the nodes that each partition was written to, or read from, one after the other."""
    found: dict[int, list[str]] = {}
    for one in sorted(itertools.chain(*of_keys), key=lambda one: one.at):
        names = found.setdefault(one.partition, [])
        if not names or names[-1] != one.nsqd:
            names.append(one.nsqd)
    return found


def test_each_scenario_says_whether_a_leader_changes() -> None:
    names = {scenario.name for scenario in ALL}
    undecided = {name for name in names if name.startswith(("stop-", "recreated-"))} | {"ordinary-frozen"}
    assert names == NEW_LEADER | SAME_LEADER | FOLLOWER | undecided
