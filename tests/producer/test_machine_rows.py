"""Each row of the table of a publish, as the page of states shows it, happens in the machine, and nothing else does."""

from collections.abc import Callable

import pytest

from docs._ext.lane_table import STEPS, Doubt, LaneEvent, LaneStep, Standing, standing_of
from nsq_ha.errors import ConnectionLostError, server_error
from nsq_ha.policy.liveness import DOUBTED_AFTER, PROMPT_REFUSAL
from tests.producer.driven import NODES, Driven, Pub


class Row(Driven):
    """A machine with a topic of two partitions, and the publish that a row is about."""

    def __init__(self, *, keyed: bool) -> None:
        super().__init__(*NODES[:2])
        self.machine.prepare(self.topic, self.now)
        self.serve()
        self.first = self.lane()
        assert self.first.conn is not None
        self.made = self.first.conn
        self.keys = ("k",) if keyed else ()
        self.request = self.new()
        self.before = self.new()

    def new(self) -> Pub:
        return Pub(topic="t", size=1, limit=1000.0, partition=0, keys=self.keys)

    def write(self) -> None:
        self.machine.take(self.first, self.now)

    def queue(self, request: Pub) -> None:
        self.machine.publish(request, self.now)

    def begin(self, standing: Standing) -> None:
        """Bring the publish where the row begins."""
        if standing is Standing.OUTSIDE:
            return
        if standing is Standing.BLOCKED:
            self.queue(self.before)
            self.write()
        self.queue(self.request)
        if standing in (Standing.SENT, Standing.ORPHANED, Standing.DONE):
            self.write()
        if standing is Standing.ORPHANED:
            self.machine.cancel(self.request, self.now)
        if standing is Standing.DONE:
            self.stored()
        self.request.maybe_stored = False

    def stored(self) -> None:
        self.machine.stored(self.made, 1, self.now)

    def submit_behind(self) -> None:
        self.queue(self.before)
        self.queue(self.request)

    def refuse(self, code: bytes) -> None:
        self.machine.answered(self.made, [server_error(code)], self.now)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)


EVENTS: dict[LaneEvent, Callable[[Row], object]] = {
    LaneEvent.SUBMIT: lambda row: row.queue(row.request),
    LaneEvent.SUBMIT_BEHIND: Row.submit_behind,
    LaneEvent.FREED: Row.stored,
    LaneEvent.WRITE: lambda row: row.write(),
    LaneEvent.ANSWER: Row.stored,
    LaneEvent.REFUSE: lambda row: row.refuse(b"E_EXT_NOT_SUPPORT x"),
    LaneEvent.REFUSE_AGAIN: lambda row: row.refuse(b"E_FAILED_ON_NOT_WRITABLE"),
    LaneEvent.LOSE: lambda row: row.machine.closed(row.made, ConnectionLostError("lost"), row.now),
    LaneEvent.GIVE_UP: lambda row: row.machine.cancel(row.request, row.now),
    LaneEvent.ASK: lambda row: row.wait(DOUBTED_AFTER + 0.1),
    LaneEvent.WITHDRAW: lambda row: row.machine.trouble(row.first, ConnectionLostError("lost"), row.now),
    LaneEvent.DIVERT: lambda row: row.tick(0.8),
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
        assert row.request.lane is row.lane(1)
        assert standing_of(row.request) is Standing.READY
    else:
        assert standing_of(row.request) is step.standing
    if step.doubt is not Doubt.NONE:
        assert row.request.maybe_stored is (step.doubt is Doubt.ALWAYS or late > PROMPT_REFUSAL)
    elif at is not Standing.ORPHANED:
        assert not row.request.maybe_stored
