"""A machine with the owner that a test needs: it does what the machine asks for, and servers answer when asked to."""

from typing import Any

from msgspec.structs import asdict

from nsq_ha import ProducerConfig
from nsq_ha.errors import RemoteProtocolError, server_error
from nsq_ha.message import Receipt
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.actions import Action, CheckChannels, CloseConnection, LookUp, OpenConnection, Report
from nsq_ha.producer.machine import ProducerMachine
from nsq_ha.producer.state import Lane, ProducerConn, ProducerTopic, PublishRequest
from tests.story import Story

NODES = tuple(Node("h", number + 1, 0) for number in range(4))
PLAIN = tuple(Node("h", number + 1, 0, is_plain=True) for number in range(4))


class Pub(PublishRequest, eq=False, kw_only=True):
    """A publish whose answer is OK."""

    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        if answer != b"OK":
            raise RemoteProtocolError("it is not OK")
        return [Receipt(self.topic, partition, nsqd, self.attempts)] * self.count


class Driven(Story):
    """The machine of a producer of topic ``t``.

    Attributes:
        machine: The machine.
        log: All that the machine asked for.
        requests: What was published.
        ended: How much of that has ended.
        written: What was written, by connection.
        opens: Whether attempts to connect succeed at once.
        checks: Whether partitions have their channels at once.
        lifetime: Seconds for which servers can write to a connection.
    """

    def __init__(self, *nodes: Node, **options: Any) -> None:  # noqa: ANN401 - of a producer
        super().__init__()
        self.machine = ProducerMachine(ProducerConfig(**options), lambda: 0.5)
        self.log: list[Action] = []
        self.requests: list[PublishRequest] = []
        self.ended = 0
        self.written: dict[ProducerConn, list[PublishRequest]] = {}
        self.opens = self.checks = True
        self.lifetime: float | None = None
        self.topic = self.machine.topic("t", self.now)
        if nodes:
            self.view(*nodes)

    def view(self, *nodes: Node | None, **meta: Any) -> None:  # noqa: ANN401 - TopicMeta's fields
        """Let these nodes lead the partitions."""
        led = {number: node for number, node in enumerate(nodes) if node is not None}
        is_plain = any(node.is_plain for node in led.values())
        known = TopicMeta(meta.pop("partition_num", len(nodes)), is_partitioned=not is_plain, **meta)
        view = TopicView("t", known, led, complete=True, exists=True, is_plain=is_plain)
        self.machine.viewed(self.topic, view, self.now)
        self.serve()

    def publish(self, **fields: Any) -> Pub:  # noqa: ANN401 - a request's
        """Publish a message."""
        request = Pub(**{"topic": "t", "size": 1, "limit": 1000.0, **fields})
        self.requests.append(request)
        writes_now = self.machine.publish(request, self.now)
        conn = request.lane and request.lane.conn
        assert writes_now in (True, False)
        assert writes_now or (conn and conn.sent), "no answer would wake it"
        assert not (writes_now and conn and conn.sent) or self.topic.waiting, "more may follow"
        self.serve()
        return request

    def serve(self) -> None:
        """Do what the machine asks for."""
        machine = self.machine
        for each in machine.finished[self.ended :]:
            self.tell("end", each, each.error)
        self.ended = len(machine.finished)
        while machine.actions or machine.dirty:
            dirty, machine.dirty = machine.dirty, {}
            for lane in dirty:
                while requests := machine.take(lane, self.now):
                    assert lane.conn is not None
                    self.written.setdefault(lane.conn, []).extend(requests)
                    self.tell("write", lane.conn, *requests)
            actions, machine.actions = machine.actions, []
            self.log += actions
            for action in actions:
                if isinstance(action, LookUp):
                    assert action.topic in machine.topics.values()
                    self.tell("look", action.how, unless_as=action.how == "if old" or None)
                elif isinstance(action, Report):
                    self.tell(*action, unless_as=action.lane if action.what == "failed" else None)
                else:
                    self.tell(self.kind(action), *action)
                if isinstance(action, OpenConnection) and self.opens:
                    self.open(action.conn)
                elif isinstance(action, CheckChannels) and self.checks:
                    machine.checked(action.lane, action.conn, None, self.now)

    def open(self, conn: ProducerConn) -> None:
        """Let an attempt to connect succeed."""
        if self.lifetime is not None:
            conn.lifetime = Lifetime(self.now, self.lifetime, 0.0)
        asked = self.machine.opened(conn, self.now)
        self.written.setdefault(conn, []).extend(asked)
        self.tell("opened", conn, *asked)

    def ok(self, conn: ProducerConn | None, count: int = 1) -> None:
        """Let a server store what is unanswered."""
        assert conn is not None
        self.machine.stored(conn, count, self.now)
        self.serve()

    def answer(self, conn: ProducerConn | None, *answers: bytes) -> None:
        """Let a server answer; what begins with E_ is an error."""
        assert conn is not None
        given = [server_error(each) if each.startswith(b"E_") else each for each in answers]
        self.machine.answered(conn, given, self.now)
        self.serve()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        ticks = 0
        while self.machine.wake_at <= end:
            self.now = max(self.now + 0.001, self.machine.wake_at)
            self.machine.tick(self.now)
            self.serve()
            ticks += 1
            assert ticks < 1000 + 20 * seconds, "it ticks without end"
        self.now = max(end, self.now)

    def facts(self) -> list[str]:
        facts = [f"next {self.machine.wake_at - 100.0:.2f}"]
        counted = {self.word(lane): lane.counts for lane in self.topic.lanes.values()} | {"no lane": self.topic.unsent}
        for name, counts in counted.items():
            fields = [f"{field}={number}" for field, number in asdict(counts).items() if number]
            facts += [f", {name}", *fields] if fields else ()
        return facts + [
            f"- {at} {each.failures}{' suspect' * each.is_suspect}" for at, each in self.machine.nsqds.items()
        ]

    def word(self, thing: object) -> str:
        if isinstance(thing, ProducerConn):
            return f"#{self.attempts.index(thing)}"
        if isinstance(thing, PublishRequest):
            return str(self.requests.index(thing)) if thing in self.requests else type(thing).__name__
        if isinstance(thing, Lane):
            return f"{thing.topic.name}-{thing.number}"
        return thing.name if isinstance(thing, ProducerTopic) else super().word(thing)

    def lane(self, number: int = 0) -> Lane:
        """Return a lane."""
        return self.topic.lane(number)

    @property
    def attempts(self) -> list[ProducerConn]:
        """All attempts to connect."""
        return [action.conn for action in self.log if isinstance(action, OpenConnection)]

    @property
    def closed(self) -> dict[ProducerConn, str]:
        """The connections that the machine has ended, and why."""
        return {action.conn: str(action.reason) for action in self.log if isinstance(action, CloseConnection)}

    def reports(self, what: str) -> list[Report]:
        """Return what was reported."""
        return [action for action in self.log if isinstance(action, Report) and action.what == what]
