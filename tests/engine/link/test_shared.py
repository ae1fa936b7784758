"""Senders that share a connection: each gets the answers to its own requests, and trouble ends it for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsq_ha import ProducerConfig
from nsq_ha.engine import shared as module
from nsq_ha.engine.connection import Callbacks
from nsq_ha.engine.shared import Connections, Share, Trunk
from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Identity
from tests.support.waiting import turn

NODE = Node("10.0.0.1", 4150, 4151, is_plain=True)


class FakeConnection:
    """A connection of which a test says what arrives."""

    def __init__(self, callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self.node, self.name = NODE, "c1 10.0.0.1:4150"
        self.is_open = self.takes_more = True
        self.is_unanswered = False
        self.heartbeat_age = 0.5
        self.lifetime, self.identity = None, Identity()
        self.written: list[object] = []
        self.reasons: list[NsqError] = []
        self.resume: Any = None
        self.on_end: list[Any] = []

    def write_publishes(self, data: object, count: int) -> None:
        self.written.append((data, count))

    def on_resume(self, callback: object) -> None:
        self.resume = callback

    @property
    def was_ended_by_peer(self) -> bool:
        return not self.reasons

    def when_ended(self, callback: object) -> None:
        self.on_end.append(callback)

    def abort(self, reason: NsqError) -> None:
        self.reasons.append(reason)
        self.end(reason)

    def end(self, reason: NsqError) -> None:
        self.is_open = False
        self.callbacks.lost(reason)
        for callback in self.on_end:
            callback()


class User:
    """A sender that notes what it gets."""

    def __init__(self) -> None:
        self.notes: list[object] = []
        self.callbacks = Callbacks(
            lambda reason: self.notes.append(str(reason)),
            answers=lambda answers: self.notes.append([str(answer) for answer in answers]),
            stored=self.notes.append,
        )


class Case:
    """Shared connections whose connections are fake ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[FakeConnection] = []
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.error: NsqError | None = None
        self.shared = Connections(ProducerConfig())
        case = self

        class Opens:
            @classmethod
            async def open(cls, _config: object, _node: Node, callbacks: Callbacks) -> FakeConnection:
                await case.may_open.wait()
                if case.error is not None:
                    raise case.error
                case.opened.append(FakeConnection(callbacks))
                return case.opened[-1]

        monkeypatch.setattr(module, "Connection", Opens)

    async def open(self, user: User, *, is_wanted: bool = True) -> Share:
        share = await self.shared.open(
            NODE, user.callbacks, replaced=None, news=asyncio.Event(), is_wanted=lambda: is_wanted
        )
        assert isinstance(share, Share)
        return share


@pytest.fixture
async def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(monkeypatch)


async def test_answers_go_to_those_who_asked(case: Case) -> None:
    one, other = User(), User()
    first, second = await asyncio.gather(case.open(one), case.open(other))
    (connection,) = case.opened
    assert (first.name, first.node, first.lifetime, first.heartbeat_age) == (connection.name, NODE, None, 0.5)
    first.write_publishes(b"a", 2)
    second.write_publishes(b"b", 3)
    first.write_publishes([b"c"], 1)
    assert connection.written == [(b"a", 2), (b"b", 3), ([b"c"], 1)]
    connection.callbacks.stored and connection.callbacks.stored(3)
    assert (one.notes, other.notes) == ([2], [1])
    connection.callbacks.answers([b"x", b"y", b"z"])
    assert (one.notes, other.notes) == ([2, ["b'z'"]], [1, ["b'x'", "b'y'"]])
    assert first.trunk.answered_at > 0


async def test_a_sender_gets_all_its_answers_of_one_read_at_once(case: Case) -> None:
    # It writes its next requests when it gets answers: many small writes would stay many small writes.
    one, other = User(), User()
    first, second = await case.open(one), await case.open(other)
    for _ in range(3):
        first.write_publishes(b"a", 1)
        first.write_publishes(b"a", 2)
        second.write_publishes(b"b", 1)
    stored = case.opened[0].callbacks.stored
    assert stored is not None
    stored(5)
    assert (one.notes, other.notes) == ([4], [1])
    stored(7)
    assert (one.notes, other.notes) == ([4, 5], [1, 2])


async def test_a_loss_ends_all_shares(case: Case) -> None:
    one, other = User(), User()
    first, second = await case.open(one), await case.open(other)
    case.opened[0].end(ConnectionLostError("reset"))
    assert (one.notes, other.notes) == (["reset"], ["reset"])
    assert not first.is_open
    assert str(await second.ended()) == "reset"
    first.abort(ConnectionLostError("again"))
    assert one.notes == ["reset"]
    again = await case.open(one)
    assert again.is_open
    assert len(case.opened) == 2


async def test_who_leaves_an_unanswered_request_ends_the_connection(case: Case) -> None:
    one, other = User(), User()
    first, _ = await case.open(one), await case.open(other)
    first.write_publishes(b"a", 1)
    first.abort(ConnectionLostError("overdue"))
    await turn(2)
    assert [str(reason) for reason in case.opened[0].reasons] == ["overdue"]
    assert (one.notes, other.notes) == (["overdue"], ["overdue"])


async def test_who_leaves_without_one_leaves_alone(case: Case) -> None:
    one, other = User(), User()
    first, second = await case.open(one), await case.open(other)
    first.write_publishes(b"a", 1)
    case.opened[0].callbacks.answers([b"OK"])
    first.abort(ConnectionLostError("unused"))
    await turn(2)
    assert one.notes == [["b'OK'"], "unused"]
    assert (other.notes, second.is_open, case.opened[0].reasons) == ([], True, [])
    second.abort(ConnectionLostError("unused"))
    assert [str(reason) for reason in case.opened[0].reasons] == ["unused"]


async def test_all_are_woken_when_the_socket_has_space(case: Case) -> None:
    woken: list[int] = []
    for number in range(2):
        (await case.open(User())).on_resume(lambda number=number: woken.append(number))  # type: ignore[misc]
    case.opened[0].resume()
    assert woken == [0, 1]


async def test_an_attempt_that_fails_fails_all(case: Case) -> None:
    case.error = ConnectError("refused")
    outcomes = await asyncio.gather(case.open(User()), case.open(User()), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["refused", "refused"]
    case.error = None
    assert (await case.open(User())).is_open


async def test_an_attempt_that_nobody_waits_for_ends(case: Case) -> None:
    case.may_open.clear()
    tasks = [asyncio.ensure_future(case.open(User())) for _ in range(2)]
    await turn(3)
    tasks[0].cancel()
    await turn(3)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await turn(3)
    case.may_open.set()
    await turn(3)
    assert not case.opened
    await case.open(User())
    assert len(case.opened) == 1


class Opened:
    """A connection that notes its end."""

    is_open, node, name, lifetime = True, None, "c1", None

    def __init__(self) -> None:
        self.has_ended = False

    def on_resume(self, _: object) -> None: ...

    def when_ended(self, _: object) -> None: ...

    def abort(self, _: object) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.has_ended = True


@pytest.mark.parametrize("turns", range(6))
async def test_a_shared_connection_that_opens_as_its_last_user_is_cancelled_does_not_stay(turns: int) -> None:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection, over = Opened(), []

    async def opening(*_: object) -> Any:  # noqa: ANN401 - a double
        return await opened

    trunk = Trunk(opening, lambda: over.append(True))
    joining = asyncio.create_task(trunk.join(Callbacks(lambda _: None)))
    await turn(3)
    opened.set_result(connection)
    await turn(turns)
    joining.cancel()
    await asyncio.wait({joining})
    if not joining.cancelled():
        (await joining).abort(ConnectionLostError("done"))
    await turn(3)
    assert connection.has_ended
    assert over
