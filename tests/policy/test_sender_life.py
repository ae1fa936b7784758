"""The life of a producer's connection: each row of its table, and what holds in every order of events."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from nsq_ha.policy.sender_life import TRANSITIONS, WRITABLE, Act, Event, Life, State, Step
from nsq_ha.policy.tls_renewal import Act as Renewal

NODE = "127.0.0.1:4150"


def look(
    *,
    is_moved: bool = False,
    is_unused: bool = False,
    renewal: Renewal = Renewal.USE,
    has_old: bool = False,
    may_replace: bool = False,
) -> Callable[[Life[str]], None]:
    return lambda life: life.look(
        is_moved=is_moved, is_unused=is_unused, renewal=renewal, has_old=has_old, may_replace=may_replace
    )


CONTROL: dict[Event, Callable[[Life[str]], None]] = {
    Event.WORK: lambda life: life.work(),
    Event.RESUME: lambda life: life.resume(),
    Event.OPENED: lambda life: life.opened(),
    Event.FAILED: lambda life: life.failed(),
    Event.OUTDATED: lambda life: life.failed(is_outdated=True),
    Event.LOST: lambda life: life.lost(),
    Event.MOVED: look(is_moved=True),
    Event.REPLACE: look(renewal=Renewal.REPLACE, may_replace=True),
    Event.EXPIRES: look(renewal=Renewal.SETTLE),
    Event.UNUSED: lambda life: life.unused(),
    Event.LEFT: lambda life: life.left(is_waiting=False),
    Event.LEFT_WAITING: lambda life: life.left(is_waiting=True),
    Event.BROKEN: lambda life: life.broken(),
    Event.CLOSE: lambda life: life.close(),
}
"""What reports each event."""


def life_in(state: State) -> Life[str]:
    """Return a life that came to ``state`` by its shortest way."""
    lives = [Life[str]()]
    seen = {lives[0].state}
    for life in lives:
        if life.state is state:
            return life
        for event, report in CONTROL.items():
            if (life.state, event) in TRANSITIONS:
                following = copy.copy(life)
                report(following)
                if following.state not in seen:
                    seen.add(following.state)
                    lives.append(following)
    raise AssertionError(f"{state} cannot be reached")


@pytest.mark.parametrize(("state", "event"), TRANSITIONS, ids=lambda part: part.name)
def test_each_row_is_what_a_report_does(state: State, event: Event) -> None:
    life = life_in(state)
    life.node = NODE
    failures = life.failures
    CONTROL[event](life)
    step = TRANSITIONS[state, event]
    assert (life.state, life.act) == step
    assert life.may_write == (step.state in WRITABLE)
    has_failed = step.state is State.PAUSED and state is not State.PAUSED
    assert life.failures == failures + has_failed
    assert (life.node is None) == (step.state in (State.IDLE, State.PAUSED, State.ENDED))


@pytest.mark.parametrize("state", State)
def test_other_pairs_cannot_happen(state: State) -> None:
    for event, report in CONTROL.items():
        if (state, event) not in TRANSITIONS:
            with pytest.raises(KeyError):
                report(life_in(state))


def test_what_holds_in_every_state() -> None:
    for (state, event), step in TRANSITIONS.items():
        if state is State.ENDED:
            assert step == Step(State.ENDED, Act.END)
        if step.state in WRITABLE:
            # Only an open connection is written to: no failure and no loss leads there from outside.
            assert state in WRITABLE or (state, event) == (State.CONNECTING, Event.OPENED)
        if step.state is State.CONNECTING:
            assert (state, event) == (State.IDLE, Event.WORK), "connected only if publishes wait"
        if event is Event.LOST and state in WRITABLE:
            assert step.act is Act.PAUSE
    assert {event for _, event in TRANSITIONS} == set(Event)
    for state in State:
        assert TRANSITIONS[state, Event.CLOSE].act is Act.END
        # A broken connection is never written to, and the attempt after it comes after a pause.
        assert state is State.ENDED or TRANSITIONS[state, Event.BROKEN].act is Act.PAUSE


def test_it_begins_without_a_connection() -> None:
    life: Life[str] = Life()
    assert (life.state, life.act, life.node, life.failures) == (State.IDLE, Act.WAIT, None, 0)
    assert life.may_write is False


def test_failures_count_until_an_answer() -> None:
    life: Life[str] = Life()
    for failures in (1, 2, 3):
        life.work()
        life.failed()
        assert (life.act, life.failures) == (Act.PAUSE, failures)
        life.lost()  # reported late: it is the same failure
        assert life.failures == failures
        life.resume()
        assert life.act is Act.WAIT
    life.work()
    life.opened()
    assert life.failures == 3, "a connection alone is no progress"
    life.answered()
    life.lost()
    assert life.failures == 1


def test_an_attempt_at_the_old_leader_is_followed_at_once_by_one_at_the_new() -> None:
    life: Life[str] = Life()
    life.work()
    life.failed(is_outdated=True)
    assert (life.act, life.failures) == (Act.WAIT, 0)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (look(), State.WRITING),
        (look(is_moved=True, is_unused=True, renewal=Renewal.LEAVE), State.MOVING),
        (look(is_unused=True, renewal=Renewal.LEAVE), State.IDLE),
        (look(renewal=Renewal.REPLACE, may_replace=True), State.REPLACING),
        (look(renewal=Renewal.REPLACE, may_replace=True, has_old=True), State.WRITING),
        (look(renewal=Renewal.REPLACE, has_old=True), State.WRITING),
        (look(renewal=Renewal.REPLACE), State.EXPIRING),
        (look(renewal=Renewal.SETTLE, has_old=True, may_replace=True), State.EXPIRING),
        (look(renewal=Renewal.CLOSE), State.EXPIRING),
        (look(renewal=Renewal.LEAVE), State.EXPIRING),
    ],
)
def test_what_is_decided_about_an_open_connection(facts: Callable[[Life[str]], None], state: State) -> None:
    life = life_in(State.WRITING)
    facts(life)
    assert life.state is state


def test_a_connection_that_expires_is_followed_by_a_pause_only_if_publishes_wait() -> None:
    for is_waiting, act in ((True, Act.PAUSE), (False, Act.WAIT)):
        life = life_in(State.EXPIRING)
        life.lost()
        assert life.act is Act.SETTLE, "the loss ends the wait for answers"
        life.left(is_waiting=is_waiting)
        assert life.act is act
    life = life_in(State.MOVING)
    life.left(is_waiting=True)
    assert life.act is Act.WAIT, "the new leader is connected to at once"
