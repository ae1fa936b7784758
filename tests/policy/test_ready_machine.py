"""``max_in_flight`` over partitions that come and go, on the server's side of the account."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.policy.ready import BodySize, fitting, plan, share

MAX_BODY = 1000


@dataclass
class Link:
    """One subscribed connection: what was granted, and what the server made of it."""

    ceiling: int
    ready: int = 0
    in_flight: int = 0


class ReadyMachine(RuleBasedStateMachine):
    """Deliveries, answers, joins, losses, pauses, larger bodies; shared anew after each as a consumer does."""

    @initialize(most=st.integers(1, 12))
    def start(self, most: int) -> None:
        self.most = most
        self.max_bytes = 12 * MAX_BODY
        self.body = BodySize(MAX_BODY)
        self.links: dict[int, Link] = {}
        self.needs: dict[int, int] | None = None
        self.is_due = False

    @property
    def limit(self) -> int:
        return fitting(self.most, self.max_bytes, self.body.bytes)

    def _share(self) -> None:
        ceilings = {partition: link.ceiling for partition, link in self.links.items()}
        before = self._taken()
        wanted = share(self.limit, ceilings, self.needs)
        sent = {partition: link.ready for partition, link in self.links.items()}
        in_flight = {partition: link.in_flight for partition, link in self.links.items()}
        told = plan(self.limit, sent, in_flight, wanted)
        for partition, count in told.lower.items():
            assert count < self.links[partition].ready
            self.links[partition].ready = count
        for partition, count in told.raised.items():
            assert self.links[partition].ready < count <= wanted[partition]
            self.links[partition].ready = count
            assert self._taken() <= max(self.limit, before), "it may not be exceeded for a moment, either"
        self.is_due = told.is_raise_due
        if not self.is_due:
            assert {partition: link.ready for partition, link in self.links.items()} == wanted

    def _taken(self) -> int:
        return sum(max(link.ready, link.in_flight) for link in self.links.values())

    @rule(partition=st.integers(0, 7), ceiling=st.sampled_from((1, 2, 2500)))
    def join(self, partition: int, ceiling: int) -> None:
        """A partition is subscribed, or subscribed again: its messages of before come again from elsewhere."""
        self.links[partition] = Link(ceiling)
        self._share()

    @precondition(lambda self: self.links)
    @rule(place=st.integers(0, 7))
    def lose(self, place: int) -> None:
        del self.links[sorted(self.links)[place % len(self.links)]]
        self._share()

    @precondition(lambda self: any(link.ready > link.in_flight for link in self.links.values()))
    @rule(place=st.integers(0, 7), count=st.integers(1, 5), body_bytes=st.integers(1, MAX_BODY))
    def deliver(self, place: int, count: int, body_bytes: int) -> None:
        willing = [link for link in self.links.values() if link.ready > link.in_flight]
        link = willing[place % len(willing)]
        link.in_flight += min(count, link.ready - link.in_flight)
        before = self.limit
        self.body.seen(body_bytes)
        if self.limit != before:
            self._share()

    @precondition(lambda self: any(link.in_flight for link in self.links.values()))
    @rule(place=st.integers(0, 7))
    def answer(self, place: int) -> None:
        busy = [link for link in self.links.values() if link.in_flight]
        busy[place % len(busy)].in_flight -= 1
        if self.is_due:
            self._share()

    @rule(most=st.integers(0, 12))
    def set_max_in_flight(self, most: int) -> None:
        self.most = most
        self._share()

    @rule(needs=st.none() | st.dictionaries(st.integers(0, 7), st.sampled_from((1, 2, 4, 8, 4096))))
    def look(self, needs: dict[int, int] | None) -> None:
        """The backlog is elsewhere."""
        self.needs = needs
        self._share()

    @invariant()
    def never_more_than_allowed(self) -> None:
        """Beyond what was delivered before the limit fell, nothing is granted."""
        unanswered = sum(link.in_flight for link in self.links.values())
        granted = sum(link.ready for link in self.links.values())
        assert granted <= self.limit
        assert self._taken() <= max(self.limit, unanswered)
        assert all(link.ready <= link.ceiling for link in self.links.values())

    @invariant()
    def bodies_fit(self) -> None:
        assert self.limit * self.body.bytes <= self.max_bytes or self.limit <= 1

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        """What is not granted of the whole is taken by messages whose answer brings the next sharing."""
        ceilings = sum(link.ceiling for link in self.links.values())
        granted = sum(link.ready for link in self.links.values())
        if granted < min(self.limit, ceilings):
            assert self.is_due
            assert any(link.in_flight > link.ready for link in self.links.values())

    def teardown(self) -> None:
        """When all is answered the whole is shared, and as many partitions as can get a part."""
        if not hasattr(self, "links"):
            return
        for link in self.links.values():
            while link.in_flight:
                link.in_flight -= 1
                if self.is_due:
                    self._share()
        assert not self.is_due
        ceilings = sum(link.ceiling for link in self.links.values())
        assert sum(link.ready for link in self.links.values()) == min(self.limit, ceilings)
        served = [partition for partition, link in self.links.items() if link.ready]
        assert len(served) >= min(self.limit, len(self.links))


ReadyMachine.TestCase.settings = settings(stateful_step_count=40)
TestReady = ReadyMachine.TestCase
