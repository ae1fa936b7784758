"""The life of a connection: every state that it can reach in either role. Stories are in ``test_link_life_machine``."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import pytest

from nsq_ha.options.types import Backoff
from nsq_ha.policy.link_life import READABLE, TRANSITIONS, WRITABLE, Act, Life, LinkEvent, LinkState, Step
from nsq_ha.policy.timing import delay_after

NODES = (0, 1, 2)
CONNECTED = READABLE | {LinkState.LEAVING}
"""States in which a connection is in use, or was until its answers have come."""


# ---------------------------------------------------------------- all that can happen


class Seen(Life[int]):
    """A life that notes the rows of the table that it and its copies used."""

    def __init__(self, settling: float | None, rows: set[tuple[LinkState, LinkEvent]]) -> None:
        super().__init__(settling)
        self.rows = rows

    def take(self, event: LinkEvent) -> None:
        self.rows.add((self.state, event))
        super().take(event)


@dataclass
class Runner:
    """Where a link is: between two acts ("idle"), or waiting in an attempt ("open", "join", "replace", "switch")."""

    life: Seen
    is_publisher: bool
    at: str = "idle"

    def key(self) -> tuple[object, ...]:
        life = self.life
        return life.state, life.act, life.node, life.target, min(life.failures, 2), self.at, self.is_publisher

    def after(self, at: str, call: str, *arguments: object, **options: object) -> Runner:
        other = Runner(copy.copy(self.life), self.is_publisher, at)
        getattr(other.life, call)(*arguments, **options)
        return other

    def following(self) -> list[Runner]:
        """Everything that may happen next."""
        life = self.life
        found = [self.after(self.at, "take", LinkEvent.CLOSE), self.after("idle", "take", LinkEvent.BROKEN)]
        if life.state in CONNECTED and life.node is not None:
            found.append(self.after(self.at, "lost", 0.0))
        if not self.is_publisher:
            found.append(self.after(self.at, "take", LinkEvent.STOP))
        elif life.state in {
            LinkState.IN_USE,
            LinkState.REPLACING,
            LinkState.SWITCHING,
            LinkState.LEAVING,
            LinkState.EXPIRING,
        }:
            found.append(self.after(self.at, "take", LinkEvent.UNUSED))
        return found + (self._acts() if self.at == "idle" else self._attempts())

    def _acts(self) -> list[Runner]:
        """Return what an act leads to, or how its attempt begins."""
        life = self.life
        if life.act is Act.WAIT:
            return [self.after("idle", "take", LinkEvent.NEEDED)]
        if life.act is Act.CONNECT:
            aimed = [self.after("open", "aim", node) for node in NODES]
            for other in aimed:
                other.at = "idle" if other.life.state is LinkState.IN_USE else "open"
            return [*aimed, self.after("idle", "failed", None)]
        if life.act is Act.USE and life.state is LinkState.IN_USE:
            looks = [{}, {"is_moved": True}, {"is_due": True, "is_expiring": True}, {"is_expiring": True}]
            looks += [{"is_unused": True}] if self.is_publisher else []
            return [self.after("idle", "look", **look) for look in looks]
        if life.act is Act.REPLACE:
            return [self.after("replace", "look")]
        if life.act is Act.SETTLE:
            ends = (LinkEvent.LEFT_WAITING, LinkEvent.LEFT) if self.is_publisher else (LinkEvent.LEFT_WAITING,)
            return [self.after("idle", "take", each) for each in ends]
        return [self.after("idle", "take", LinkEvent.RESUME)] if life.act is Act.PAUSE else []

    def _attempts(self) -> list[Runner]:
        """Return how an attempt that is waited for may go on."""
        life = self.life
        if self.at in ("replace", "switch"):
            if life.state not in (LinkState.REPLACING, LinkState.SWITCHING):
                return [self.after("idle", "look")]  # it was lost, left or stopped: the attempt is dropped
            following = self.after("switch", "opened") if self.at == "replace" else self.after("idle", "joined", 0.0)
            return [following, self.after("idle", "take", LinkEvent.FAILED)]
        found = [self.after("idle", "failed", leader) for leader in (None, *NODES)]
        if not self.is_publisher:
            found.append(self.after("idle", "failed", None, for_good=True))
        if self.at == "open":
            found.append(self.after("join", "opened"))
            if found[-1].life.act is not Act.JOIN:  # the connection is dropped, and its failure is reported
                found[-1].life.failed(None)
                found[-1].at = "idle"
        else:
            found.append(self.after("idle", "joined", 0.0))
        return found


def everything() -> list[Runner]:
    known: dict[tuple[object, ...], Runner] = {}
    rows: set[tuple[LinkState, LinkEvent]] = set()
    todo = deque(Runner(Seen(settling, rows), settling is None) for settling in (4.0, None))
    while todo:
        runner = todo.popleft()
        if runner.key() not in known:
            known[runner.key()] = runner
            todo += runner.following()
    return list(known.values())


@pytest.fixture(scope="module")
def all_of_them() -> list[Runner]:
    return everything()


def test_each_row_of_the_table_can_happen_and_nothing_else_does(all_of_them: list[Runner]) -> None:
    assert all_of_them[0].life.rows == set(TRANSITIONS)
    assert {runner.life.state for runner in all_of_them} == set(LinkState)


def test_what_holds_in_every_state(all_of_them: list[Runner]) -> None:
    for runner in all_of_them:
        life = runner.life
        assert life.may_write == (life.state in WRITABLE)
        assert life.is_reading == (life.state in READABLE)
        if life.state in READABLE - {LinkState.EXPIRING} or life.state in WRITABLE | {
            LinkState.JOINING,
            LinkState.SWITCHING,
        }:
            assert life.node is not None, runner
        if life.state in (LinkState.IDLE, LinkState.CONNECTING, LinkState.PAUSED, LinkState.ENDED):
            assert life.node is None, runner
        if runner.at == "open" and life.state in (LinkState.CONNECTING, LinkState.MOVING):
            assert life.target is not None, runner
        assert life.target is None or life.state in (LinkState.CONNECTING, LinkState.MOVING), runner
        assert life.target is None or life.target != life.node, "a healthy connection is not left for its like"
        assert (life.act is Act.END) == (life.state is LinkState.ENDED)


def test_the_roles_differ_only_in_how_they_move_and_end(all_of_them: list[Runner]) -> None:
    states: dict[bool, set[LinkState]] = {True: set(), False: set()}
    for runner in all_of_them:
        states[runner.is_publisher].add(runner.life.state)
    assert set(LinkState) - states[True] == {LinkState.MOVING, LinkState.MOVE_PAUSED, LinkState.DRAINING}
    assert set(LinkState) - states[False] == {LinkState.LEAVING}


def test_a_pause_follows_each_failure(all_of_them: list[Runner]) -> None:
    for (state, event), step in TRANSITIONS.items():
        if event is LinkEvent.FAILED and state in (LinkState.CONNECTING, LinkState.JOINING, LinkState.MOVING):
            assert step.act is Act.PAUSE
        if event is LinkEvent.LOST and state in WRITABLE:
            assert step.act is Act.PAUSE
        if event is LinkEvent.OPENED and step.act is Act.JOIN:
            assert state in (LinkState.CONNECTING, LinkState.MOVING)
        if step.state in WRITABLE and state not in WRITABLE:
            # Only an open connection is written to: no failure and no loss leads there from outside.
            assert event in (LinkEvent.JOINED, LinkEvent.SAME) or (state, event) == (
                LinkState.SWITCHING,
                LinkEvent.FAILED,
            )
        if step.state is LinkState.CONNECTING and event is not LinkEvent.LOST:
            assert (state, event) == (LinkState.IDLE, LinkEvent.NEEDED), "a connection is opened only if it is needed"
    for runner in all_of_them:
        life, before = copy.copy(runner.life), runner.life.failures
        ends = life.state in (LinkState.DRAINING, LinkState.ENDED)
        life.take(LinkEvent.BROKEN)
        assert (life.state, life.act) == ((LinkState.ENDED, Act.END) if ends else (LinkState.PAUSED, Act.PAUSE))
        assert (life.node, life.target, life.failures) == (None, None, before + (not ends))


def test_ended_is_final_and_can_always_be_reached() -> None:
    assert {step for (state, _), step in TRANSITIONS.items() if state is LinkState.ENDED} == {
        Step(LinkState.ENDED, Act.END)
    }
    assert all(TRANSITIONS[state, LinkEvent.CLOSE].state is LinkState.ENDED for state in LinkState)
    assert {event for _, event in TRANSITIONS} == set(LinkEvent)


# ---------------------------------------------------------------- attempts


def connecting(settling: float | None = None, node: int = 0) -> Life[int]:
    life: Life[int] = Life(settling)
    life.take(LinkEvent.NEEDED)
    life.aim(node)
    return life


def again(life: Life[int], now: float, node: int = 0) -> None:
    """Connect after a pause."""
    if life.act is Act.PAUSE:
        life.take(LinkEvent.RESUME)
    life.take(LinkEvent.NEEDED)
    life.aim(node)
    life.opened()
    life.joined(now)


@pytest.mark.parametrize("settling", [None, 4.0])
def test_an_attempt_at_the_old_leader_is_followed_at_once_by_one_at_the_new(settling: float | None) -> None:
    life = connecting(settling)
    life.failed(1)
    assert (life.act, life.failures) == (Act.WAIT, 0)
    life.take(LinkEvent.NEEDED)
    life.aim(1)
    life.opened()
    life.failed(0)
    assert (life.act, life.failures) == (Act.WAIT, 0)


@pytest.mark.parametrize("settling", [None, 4.0])
def test_the_same_leader_is_tried_again_after_a_pause(settling: float | None) -> None:
    life = connecting(settling)
    for failures in (1, 2, 3):
        life.failed(0)
        assert (life.act, life.target, life.failures) == (Act.PAUSE, None, failures)
        life.take(LinkEvent.RESUME)
        assert life.act is Act.WAIT
        life.take(LinkEvent.NEEDED)
        life.aim(0)
    life.opened()
    life.failed(0)
    assert (life.act, life.failures) == (Act.PAUSE, 4)


def test_no_leader_is_a_failure_whatever_else_is_named() -> None:
    """Publishers may know a leader that accepts no writes."""
    life: Life[int] = Life()
    life.take(LinkEvent.NEEDED)
    life.failed(1)
    assert (life.act, life.failures) == (Act.PAUSE, 1)


def test_a_leader_that_comes_back_keeps_its_connection() -> None:
    life = connecting(4.0)
    life.opened()
    life.joined(0.0)
    life.look(is_moved=True)
    life.failed(None)
    assert (life.state, life.node, life.failures) == (LinkState.MOVE_PAUSED, 0, 1)
    life.take(LinkEvent.RESUME)
    life.aim(0)
    assert (life.state, life.act, life.node, life.target) == (LinkState.IN_USE, Act.USE, 0, None)


# ---------------------------------------------------------------- a connection in use


def in_use(settling: float | None = None) -> Life[int]:
    life = connecting(settling)
    life.opened()
    life.joined(0.0)
    return life


@pytest.mark.parametrize(
    ("facts", "publishing", "subscribing"),
    [
        ((), LinkState.IN_USE, LinkState.IN_USE),
        (("is_moved", "is_unused", "is_expiring"), LinkState.LEAVING, LinkState.MOVING),
        (("is_unused", "is_expiring"), LinkState.IDLE, LinkState.IDLE),
        (("is_due", "is_expiring"), LinkState.REPLACING, LinkState.REPLACING),
        (("is_expiring",), LinkState.EXPIRING, LinkState.EXPIRING),
    ],
)
def test_what_is_decided_about_a_connection_in_use(
    facts: tuple[str, ...], publishing: LinkState, subscribing: LinkState
) -> None:
    for settling, state in ((None, publishing), (4.0, subscribing)):
        life = in_use(settling)
        life.look(**dict.fromkeys(facts, True))
        assert life.state is state


def test_a_connection_that_expires_is_followed_by_a_pause_only_if_another_one_is_needed() -> None:
    for end, act in ((LinkEvent.LEFT_WAITING, Act.PAUSE), (LinkEvent.LEFT, Act.WAIT)):
        life = in_use()
        life.look(is_expiring=True)
        life.lost(0.0)
        assert life.act is Act.SETTLE, "the loss ends the wait for answers"
        life.take(end)
        assert life.act is act
    life = in_use()
    life.look(is_moved=True)
    life.take(LinkEvent.LEFT_WAITING)
    assert life.act is Act.WAIT, "the new leader is connected to at once"


def test_a_replacement_changes_neither_the_node_nor_the_failures() -> None:
    life = in_use(4.0)
    life.short_lives = 3
    life.look(is_due=True, is_expiring=True)
    life.opened()
    assert (life.state, life.act, life.node, life.may_write) == (LinkState.SWITCHING, Act.SWITCH, 0, False)
    life.joined(100.0)
    assert (life.state, life.node, life.failures, life.settled_at) == (LinkState.IN_USE, 0, 0, 4.0)


# ---------------------------------------------------------------- what counts as progress


def test_a_publishers_failures_count_until_an_answer() -> None:
    life: Life[str] = Life()
    for failures in (1, 2, 3):
        life.take(LinkEvent.NEEDED)
        life.aim("a")
        life.failed("a")
        assert (life.act, life.failures) == (Act.PAUSE, failures)
        life.take(LinkEvent.RESUME)
    life.take(LinkEvent.NEEDED)
    life.aim("a")
    life.opened()
    life.joined(0.0)
    assert life.failures == 3, "a connection alone is no progress"
    life.answered()
    life.lost(100.0)
    assert life.failures == 1


@pytest.mark.parametrize("lifetime", [0.0, 0.3, 3.9])
def test_a_node_that_accepts_and_then_fails_is_tried_less_and_less_often(lifetime: float) -> None:
    """Each accepted SUB used to reset the backoff: 22 reconnects a second without end."""
    backoff = Backoff()
    now = 0.0
    life = in_use(4.0)
    reconnects = []
    while now < 60.0:
        now += lifetime
        life.lost(now)
        assert life.act is Act.PAUSE
        now += delay_after(backoff, life.failures, lambda: 1.0)  # the shortest that chance allows
        again(life, now)
        reconnects.append(now)
    assert all(sum(second <= moment < second + 1 for moment in reconnects) <= 2 for second in range(10, 60)), reconnects


def test_one_loss_after_a_long_life_is_followed_at_once_whatever_was_before() -> None:
    life = in_use(4.0)
    for now in (1.0, 2.0, 3.0):
        life.lost(now)
        again(life, now)
    assert (life.short_lives, life.failures) == (3, 3)
    life.lost(7.0)  # four seconds after it was accepted
    assert (life.short_lives, life.failures) == (0, 1)
    assert delay_after(Backoff(), life.failures, lambda: 0.0) == 0.05


def test_a_long_outage_does_not_slow_the_first_losses_after_it() -> None:
    """An election ends in a subscription that is closed once or twice more within two seconds."""
    life: Life[int] = Life(4.0)
    for _ in range(30):
        life.take(LinkEvent.NEEDED)
        life.failed(None)
        life.take(LinkEvent.RESUME)
    assert life.failures == 30
    again(life, 22.0)
    assert life.failures == 0
    life.lost(22.5)
    assert delay_after(Backoff(), life.failures, lambda: 0.0) <= 0.1


def test_a_loss_while_it_moves_waits_for_nothing() -> None:
    life = in_use(4.0)
    life.look(is_moved=True)
    life.aim(1)
    life.lost(0.1)
    assert (life.act, life.target, life.failures) == (Act.CONNECT, 1, 0)
