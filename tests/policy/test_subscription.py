"""A subscription's life: every state that it can reach. Whole stories are in ``test_subscription_machine``."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import pytest

from nsq_ha.options.types import Backoff
from nsq_ha.policy.subscription import READING, TRANSITIONS, Act, Event, Life, State, settle_time
from nsq_ha.policy.timing import delay_after

NODES = (0, 1, 2)


# ---------------------------------------------------------------- all that can happen


class Seen(Life[int]):
    """A life that notes the rows of the table that it used."""

    rows: set[tuple[State, Event]]

    def __init__(self) -> None:
        super().__init__(4.0)
        self.rows = set()

    def _take(self, event: Event) -> None:
        self.rows.add((self.state, event))
        super()._take(event)


@dataclass
class Runner:
    """Where whoever runs a life is: between two acts, or waiting for a connection or an answer."""

    life: Seen
    at: str = "check"

    def key(self) -> tuple[object, ...]:
        life = self.life
        return life.state, life.act, life.node, life.target, min(life.failures, 2), self.at

    def following(self) -> list[Runner]:
        """Everything that may happen next."""
        found = []

        def after(at: str, call: str, *arguments: object, **options: object) -> None:
            other = copy.deepcopy(self)
            getattr(other.life, call)(*arguments, **options)
            other.at = at if at != "check" or other.life.act is not Act.CONNECT else "open"
            found.append(other)

        after(self.at, "stop")
        after(self.at, "close")
        after("check", "broken")
        if self.life.is_reading:
            after(self.at, "lost", 0.0)
        leaders = (None, *NODES)
        if self.at == "check" and self.life.act in (Act.ASK, Act.READ):
            for leader in leaders:
                after("check", "check", leader)
        if self.at != "check":
            for leader in leaders:
                after("check", "failed", leader)
            after("check", "failed", None, for_good=True)
        if self.at == "open":
            after("sub", "opened")
            if found[-1].life.act is not Act.SUBSCRIBE:
                # The connection is dropped, and its failure told.
                found[-1].life.failed(None)
                found[-1].at = "check"
        if self.at == "sub":
            after("check", "accepted", 0.0)
        return found


def everything() -> list[Runner]:
    start = Runner(Seen())
    known = {start.key(): start}
    todo = deque([start])
    rows = start.life.rows
    while todo:
        for runner in todo.popleft().following():
            rows |= runner.life.rows
            if runner.key() not in known:
                known[runner.key()] = runner
                todo.append(runner)
    start.life.rows = rows
    return list(known.values())


def test_each_row_of_the_table_can_happen_and_nothing_else_does() -> None:
    all_of_them = everything()
    assert all_of_them[0].life.rows == set(TRANSITIONS)
    assert {runner.life.state for runner in all_of_them} == set(State)


def test_what_holds_in_every_state() -> None:
    for runner in everything():
        life = runner.life
        assert life.is_reading == (life.state in READING)
        if life.state not in (State.DRAINING, State.ENDED):
            assert (life.target is not None) == (life.state in (State.CONNECTING, State.MOVING)), runner
        if life.state in READING or life.state is State.SUBSCRIBING:
            assert life.node is not None, runner
        if life.state in (State.PAUSED, State.CONNECTING):
            assert life.node is None, runner
        assert life.target is None or life.target != life.node, "a healthy connection is not left for its like"
        assert (life.act in (Act.END, Act.REPORT)) == (life.state is State.ENDED)
        assert life.state is not State.SUBSCRIBED or life.failures == 0 or life.act is Act.READ


def test_after_an_error_that_no_rule_foresees_it_begins_again_or_ends() -> None:
    for runner in everything():
        before, ends = runner.life.failures, runner.life.state in (State.DRAINING, State.ENDED)
        life = copy.deepcopy(runner.life)
        life.broken()
        assert (life.state, life.act) == ((State.ENDED, Act.END) if ends else (State.PAUSED, Act.ASK))
        assert (life.node, life.target, life.failures) == (None, None, before + 1)


def test_ended_is_final() -> None:
    assert {step.state for (state, _), step in TRANSITIONS.items() if state is State.ENDED} == {State.ENDED}


@pytest.mark.parametrize("state", State)
def test_from_every_state_it_can_end(state: State) -> None:
    assert TRANSITIONS[state, Event.CLOSE].state is State.ENDED


def test_a_failure_pauses_and_a_leader_that_changed_meanwhile_does_not() -> None:
    life: Life[int] = Life(4.0)
    life.check(0)
    life.failed(None)
    assert (life.act, life.failures) == (Act.ASK, 1)
    life.check(0)
    life.failed(1)
    assert (life.act, life.target, life.failures) == (Act.CONNECT, 1, 2)
    life.opened()
    life.failed(0)
    assert (life.act, life.target, life.failures) == (Act.CONNECT, 0, 3)


def test_the_same_leader_is_tried_again_after_a_pause() -> None:
    life: Life[int] = Life(4.0)
    life.check(0)
    life.failed(0)
    assert (life.act, life.target, life.failures) == (Act.ASK, None, 1)
    life.check(0)
    life.opened()
    life.failed(0)
    assert (life.act, life.target, life.failures) == (Act.ASK, None, 2)


def test_a_leader_that_is_not_named_is_a_failure_unless_a_connection_is_there() -> None:
    life: Life[int] = Life(4.0)
    life.check(None)
    life.check(None)
    assert life.failures == 2
    life = subscribed(0.0)
    before = life.failures
    life.check(None)
    assert (life.state, life.failures) == (State.SUBSCRIBED, before)


def test_an_attempt_is_wanted_while_nobody_else_is_named() -> None:
    life: Life[int] = Life(4.0)
    life.check(0)
    assert (life.is_wanted(None), life.is_wanted(0), life.is_wanted(1)) == (True, True, False)


# ---------------------------------------------------------------- what counts as progress


def subscribed(now: float) -> Life[int]:
    life: Life[int] = Life(4.0)
    life.check(0)
    life.opened()
    life.accepted(now)
    return life


def again(life: Life[int], now: float) -> None:
    life.check(0)
    life.opened()
    life.accepted(now)


@pytest.mark.parametrize("lifetime", [0.0, 0.3, 3.9])
def test_a_node_that_accepts_and_then_fails_is_tried_less_and_less_often(lifetime: float) -> None:
    """Each accepted SUB used to reset the backoff: 22 reconnects a second without end."""
    backoff = Backoff()
    now = 0.0
    life = subscribed(now)
    reconnects = []
    while now < 60.0:
        now += lifetime
        life.lost(now)
        assert life.act is Act.ASK
        now += delay_after(backoff, life.failures, lambda: 1.0)  # the shortest that chance allows
        again(life, now)
        reconnects.append(now)
    assert all(sum(second <= moment < second + 1 for moment in reconnects) <= 2 for second in range(10, 60)), reconnects


def test_one_loss_after_a_long_life_is_followed_at_once_whatever_was_before() -> None:
    life = subscribed(0.0)
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
        life.check(None)
    again(life, 22.0)
    assert life.failures == 0
    life.lost(22.5)
    assert delay_after(Backoff(), life.failures, lambda: 0.0) <= 0.1


def test_a_loss_while_it_moves_waits_for_nothing() -> None:
    life = subscribed(0.0)
    life.check(1)
    life.lost(0.1)
    assert (life.act, life.target, life.failures) == (Act.CONNECT, 1, 0)


def test_a_connection_settles_after_two_heartbeats_and_after_ten_seconds_at_most() -> None:
    assert [settle_time(interval) for interval in (1.0, 2.0, 60.0)] == [2.0, 4.0, 10.0]
