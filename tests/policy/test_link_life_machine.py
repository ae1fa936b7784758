"""A subscription's life in whole stories on a virtual clock: a cluster that moves, dies, freezes and lies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.options.types import Backoff
from nsq_ha.policy.link_life import Act, Life, LinkEvent, LinkState, settle_time
from nsq_ha.policy.liveness import is_silent, next_look
from nsq_ha.policy.timing import delay_after

BACKOFF = Backoff()
INTERVAL = 2.0
ROUND = 0.4
"""Seconds that a lookup takes to come, once it is asked for."""
LIMIT = 1.0
"""Seconds for a handshake and for SUB."""


@dataclass
class Link:
    """One connection of the model's client."""

    node: int
    opened_at: float
    received_at: float
    is_subscribed: bool = False
    is_open: bool = True


class SubscriptionMachine(RuleBasedStateMachine):
    """One subscription, three nodes and what nsqlookupd says of them; moves, deaths, freezes, lies and closing."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.life: Life[int] = Life(settle_time(INTERVAL))
        self.leader: int | None = 0
        self.view: int | None = None
        self.frozen: set[int] = set()
        self.dead: set[int] = set()
        self.links: list[Link] = []
        self.trying: Link | None = None
        self.due = 0.0
        self.asked_at: float | None = None
        self.asks = 0
        self.troubles = 0
        self.look_at = next_look(0.0, -math.inf, INTERVAL)  # one timer stands for those of all connections
        self.told_to_end = False
        self._do()

    # -- whoever runs it

    @property
    def subscribed(self) -> Link | None:
        return next((link for link in self.links if link.is_subscribed), None)

    def _do(self) -> None:
        """Do what the life says; what takes time is ended by a rule or by the clock."""
        life = self.life
        while life.act is Act.WAIT or (life.act is Act.CONNECT and self.trying is None) or self._is_moved():
            if life.act is Act.WAIT:
                life.take(LinkEvent.NEEDED)
            elif life.act is Act.USE:
                life.look(is_moved=True)
            elif self.view is None:
                self.troubles += 1
                life.failed(None)
            else:
                life.aim(self.view)
                if life.act is Act.CONNECT:
                    self.trying = Link(self.view, self.now, self.now)
                    self.links.append(self.trying)
        if life.act is Act.PAUSE:
            self.asks += 1
            self.asked_at = self.now if self.asked_at is None else self.asked_at
            self.due = self.now + delay_after(BACKOFF, life.failures, lambda: 0.0)
        elif life.act is Act.END:
            assert self.told_to_end
            for link in self.links:
                self._drop(link)
        self.links = [link for link in self.links if link.is_open]

    def _is_moved(self) -> bool:
        return self.life.state is LinkState.IN_USE and self.view not in (None, self.life.node)

    def _drop(self, link: Link) -> None:
        link.is_open = link.is_subscribed = False
        if self.trying is link:
            self.trying = None

    def _check_leader(self) -> None:
        if self.trying is None and self.life.act is Act.PAUSE:
            self.life.take(LinkEvent.RESUME)
            self._do()
        elif self._is_moved():
            self._do()

    def _fail(self, *, for_good: bool = False) -> None:
        assert self.trying is not None
        self._drop(self.trying)
        self.troubles += 1
        self.told_to_end |= for_good
        self.life.failed(self.view, for_good=for_good)
        self._do()

    def _lose(self) -> None:
        link = self.subscribed
        assert link is not None
        self._drop(link)
        self.troubles += 1
        self.life.lost(self.now)
        if self.life.act is not Act.CONNECT or self.trying is None:
            self._do()

    def _news(self, view: int | None) -> None:
        changed, self.view = view != self.view, view
        self.asked_at = None
        if changed and view is not None and view != (self.subscribed.node if self.subscribed else None):
            if self.trying is not None and self.life.state in (LinkState.CONNECTING, LinkState.MOVING):
                if view != self.life.target:
                    self._fail()
            else:
                self._check_leader()

    # -- what the cluster does

    @rule(node=st.sampled_from((None, 0, 1, 2)))
    def move(self, node: int | None) -> None:
        self.leader = node

    @rule(node=st.sampled_from((0, 1, 2)))
    def kill(self, node: int) -> None:
        self.dead.add(node)
        self._cut(node)

    @rule(node=st.sampled_from((0, 1, 2)))
    def revive(self, node: int) -> None:
        self.dead.discard(node)
        self.frozen.discard(node)

    @rule(node=st.sampled_from((0, 1, 2)))
    def freeze(self, node: int) -> None:
        self.frozen.add(node)

    @rule()
    def close_without_a_frame(self) -> None:
        """The server closes the consumers of a leader that was moved."""
        if self.subscribed is not None:
            self._lose()

    @rule()
    def break_down(self) -> None:
        """An unexpected error is raised in the task that runs it."""
        for link in self.links:
            self._drop(link)
        self.troubles += 1
        self.told_to_end |= self.life.state is LinkState.DRAINING
        self.life.take(LinkEvent.BROKEN)
        self._do()

    def _cut(self, node: int) -> None:
        if self.subscribed is not None and self.subscribed.node == node:
            self._lose()
        if self.trying is not None and self.trying.node == node:
            self._fail()

    # -- what nsqlookupd says

    @rule()
    def look_up(self) -> None:
        self._news(self.leader)

    @rule(lie=st.sampled_from((None, 0, 1, 2)))
    def disagree(self, lie: int | None) -> None:
        self._news(lie)

    # -- what a node answers

    @precondition(lambda self: self.trying is not None)
    @rule(accepts=st.sampled_from(("yes", "no", "never")))
    def answer(self, accepts: str) -> None:
        link = self.trying
        assert link is not None
        if link.node in self.frozen:
            return
        link.received_at = self.now
        if link.node in self.dead or accepts == "no":
            self._fail()
        elif accepts == "never":
            self._fail(for_good=True)
        elif self.life.state is LinkState.JOINING:
            if link.node == self.leader:
                self.trying, link.is_subscribed = None, True
                self.life.joined(self.now)
                self._do()
            else:
                self._fail()
        else:
            self._opened(link)

    def _opened(self, link: Link) -> None:
        self.life.opened()
        if self.life.act is not Act.JOIN:
            self._fail()
            return
        old = self.subscribed
        if old is not None:
            self._drop(old)
        link.opened_at = self.now

    # -- time

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.0, 5.0)))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.05, end)
            self._tick()

    def _tick(self) -> None:
        for link in self.links:
            if link.node not in self.frozen | self.dead and self.now - link.received_at >= INTERVAL:
                link.received_at = self.now
        if self.asked_at is not None and self.now - self.asked_at >= ROUND:
            self._news(self.leader)
        if self.trying is not None and self.now - self.trying.opened_at >= LIMIT:
            self._fail()
        if self.life.act is Act.PAUSE and self.trying is None and self.now >= self.due:
            self._check_leader()
        if self.now >= self.look_at:
            silent = self.subscribed
            if silent is not None and is_silent(self.now, self.look_at, silent.received_at, INTERVAL):
                self._lose()
            self.look_at = next_look(self.now, -math.inf, INTERVAL)

    # -- the application

    @precondition(lambda self: not self.told_to_end)
    @rule(really=st.integers(0, 9))
    def stop(self, really: int) -> None:
        if really == 0:
            self.told_to_end = True
            self.life.take(LinkEvent.STOP)
            self._do()

    # -- what always holds

    @invariant()
    def one_connection_is_subscribed_and_it_is_the_one_that_is_read(self) -> None:
        subscribed = [link for link in self.links if link.is_subscribed]
        assert len(subscribed) == (1 if self.life.is_reading else 0)
        assert all(link.node == self.life.node for link in subscribed)
        assert len(self.links) <= 2

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """It reads, or tries, or has asked and will take its turn."""
        life = self.life
        if life.state is LinkState.ENDED:
            assert self.told_to_end
            assert not self.links
        elif life.act is Act.PAUSE:
            assert self.due <= self.now + BACKOFF.maximum
        elif life.act in (Act.CONNECT, Act.JOIN):
            assert self.trying is not None
            assert self.now - self.trying.opened_at <= LIMIT
        else:
            assert life.is_reading

    @invariant()
    def silence_ends_within_two_heartbeats_and_a_look(self) -> None:
        if self.subscribed is not None:
            assert self.now - self.subscribed.received_at <= 2.5 * INTERVAL + 0.06

    @invariant()
    def trouble_is_asked_about(self) -> None:
        assert self.asks > 0 or self.life.failures == 0

    def teardown(self) -> None:
        """When the cluster is well again it is subscribed to its leader, soon; unless it was told to end."""
        if not hasattr(self, "life"):
            return
        self.dead.clear()
        self.frozen.clear()
        self.leader = 1
        healed = self.now
        self._news(1)
        while self.now < healed + BACKOFF.maximum + 2 * LIMIT and not self._is_home():
            self.now += 0.05
            self._tick()
            if self.trying is not None:
                self.answer("yes")
        assert self._is_home()
        assert self.now - healed <= BACKOFF.maximum + 0.2

    def _is_home(self) -> bool:
        if self.told_to_end:
            return True
        return self.life.state is LinkState.IN_USE and self.life.node == 1


SubscriptionMachine.TestCase.settings = settings(stateful_step_count=50)
TestSubscription = SubscriptionMachine.TestCase
