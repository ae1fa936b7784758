"""Each row of the table of a publish, as the page of states shows it, happens in the machine, and nothing else does."""

from collections.abc import Callable

import pytest

from docs._ext.lane_table import STEPS, Doubt, LaneEvent, LaneStep, Standing, standing_of
from nsq_ha import ProducerConfig
from nsq_ha.errors import ConnectionLostError, server_error
from nsq_ha.message import Receipt
from nsq_ha.policy.liveness import DOUBTED_AFTER, PROMPT_REFUSAL
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.machine import Machine
from nsq_ha.producer.state import Check, Conn, Lane, Open, Request

NODES = {number: Node("h", number + 1, 0) for number in range(2)}


class Pub(Request, eq=False, kw_only=True):
    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        return [Receipt(self.topic, partition, nsqd)]


class Row:
    """A machine with a topic of two partitions, and the publish that a row is about."""

    def __init__(self, *, keyed: bool) -> None:
        self.now = 100.0
        self.machine = Machine(ProducerConfig(), lambda: 0.5)
        self.topic = self.machine.topic("t", self.now)
        self.conns: dict[Lane, Conn] = {}
        view = TopicView("t", TopicMeta(2), NODES, complete=True, exists=True)
        self.machine.viewed(self.topic, view, self.now)
        for lane in self.machine.prepare(self.topic, self.now):
            self.serve()
            assert lane.conn is not None
            self.conns[lane] = lane.conn
        self.lane = self.topic.lane(0)
        self.keys = ("k",) if keyed else ()
        self.request = self.new()
        self.before = self.new()

    def new(self) -> Pub:
        return Pub(topic="t", size=1, limit=1000.0, partition=0, keys=self.keys)

    def serve(self, *, write: bool = False) -> None:
        """Do what the machine asks for."""
        while actions := self.machine.actions:
            self.machine.actions = []
            for action in actions:
                if isinstance(action, Open):
                    self.machine.opened(action.conn, self.now)
                elif isinstance(action, Check):
                    self.machine.checked(action.lane, action.conn, None, self.now)
        if write:
            self.machine.take(self.lane, self.now)

    def queue(self, request: Pub) -> None:
        self.machine.publish(request, self.now)

    def begin(self, standing: Standing) -> None:
        """Bring the publish where the row begins."""
        if standing is Standing.OUTSIDE:
            return
        if standing is Standing.BLOCKED:
            self.queue(self.before)
            self.serve(write=True)
        self.queue(self.request)
        if standing in (Standing.SENT, Standing.ORPHANED, Standing.DONE):
            self.serve(write=True)
        if standing is Standing.ORPHANED:
            self.machine.cancel(self.request, self.now)
        if standing is Standing.DONE:
            self.answer()
        self.request.maybe_stored = False

    def answer(self) -> None:
        self.machine.stored(self.conns[self.lane], 1, self.now)

    def submit_behind(self) -> None:
        self.queue(self.before)
        self.queue(self.request)

    def refuse(self, code: bytes) -> None:
        self.machine.answered(self.conns[self.lane], [server_error(code)], self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)
        self.serve()


EVENTS: dict[LaneEvent, Callable[[Row], object]] = {
    LaneEvent.SUBMIT: lambda row: row.queue(row.request),
    LaneEvent.SUBMIT_BEHIND: Row.submit_behind,
    LaneEvent.FREED: Row.answer,
    LaneEvent.WRITE: lambda row: row.serve(write=True),
    LaneEvent.ANSWER: Row.answer,
    LaneEvent.REFUSE: lambda row: row.refuse(b"E_EXT_NOT_SUPPORT x"),
    LaneEvent.REFUSE_AGAIN: lambda row: row.refuse(b"E_FAILED_ON_NOT_WRITABLE"),
    LaneEvent.LOSE: lambda row: row.machine.closed(row.conns[row.lane], ConnectionLostError("lost"), row.now),
    LaneEvent.GIVE_UP: lambda row: row.machine.cancel(row.request, row.now),
    LaneEvent.ASK: lambda row: row.pass_time(DOUBTED_AFTER + 0.1),
    LaneEvent.WITHDRAW: lambda row: row.machine.trouble(row.lane, ConnectionLostError("lost"), row.now),
    LaneEvent.DIVERT: lambda row: row.pass_time(0.8),
}
MOVES = (LaneEvent.WITHDRAW, LaneEvent.DIVERT)


@pytest.mark.parametrize("late", [0.0, PROMPT_REFUSAL + 0.1])
@pytest.mark.parametrize(("at", "event", "step"), [(*key, step) for key, step in STEPS.items()])
def test_each_row_of_the_table(at: Standing, event: LaneEvent, step: LaneStep, late: float) -> None:
    row = Row(keyed=event not in MOVES)
    row.begin(at)
    assert standing_of(row.request) is at
    row.now += late if step.doubt is Doubt.IF_LATE else 0.0
    EVENTS[event](row)
    if step.standing is Standing.OUTSIDE:  # on its way to another lane, where it is at once
        assert row.request.lane is row.topic.lane(1)
        assert standing_of(row.request) is Standing.READY
    else:
        assert standing_of(row.request) is step.standing
    if step.doubt is not Doubt.NONE:
        assert row.request.maybe_stored is (step.doubt is Doubt.ALWAYS or late > PROMPT_REFUSAL)
    elif at is not Standing.ORPHANED:
        assert not row.request.maybe_stored
