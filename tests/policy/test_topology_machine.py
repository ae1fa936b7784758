"""A topic's view and number of partitions on a virtual clock: three nsqlookupds that lag, restart, die and disagree."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha.policy.growth import PartitionCount
from nsq_ha.policy.topology import (
    CONFIRM_ROUNDS,
    DISPUTED_ROUNDS,
    LookupAnswer,
    Node,
    TopicMeta,
    TopicView,
    changed_leaders,
    merge,
)

NODES = tuple(Node("10.0.0.1", 4150 + 10 * number, 4151 + 10 * number) for number in range(4))
LAG = 2.0
"""Seconds that a sound nsqlookupd is behind at most."""
BLIND = 2.0
"""Seconds after its start in which an nsqlookupd lists nothing."""
ROUND = 0.4
"""Seconds between two rounds while a change is pending; below the real mean, which makes it harder."""
DELAY = 5.0


@dataclass(frozen=True)
class Truth:
    """What a topic is; ``incarnation`` counts how often it was made."""

    exists: bool
    number: int
    leaders: dict[int, Node]
    incarnation: int


@dataclass
class Lookupd:
    """One nsqlookupd: it says what was true a while ago."""

    name: str
    lag: float
    is_up: bool = True
    blind_until: float = -1.0
    news: list[tuple[float, Truth]] = field(default_factory=list)

    def knows(self, now: float, *, leads: bool) -> Truth:
        lag = 0.0 if leads else self.lag
        return [truth for at, truth in self.news if at + lag <= now][-1]

    def says(self, now: float, *, leads: bool) -> LookupAnswer | None:
        if not self.is_up:
            return None
        known = self.knows(now, leads=leads)
        meta = TopicMeta(known.number) if known.exists else None
        partitions = known.leaders if known.exists and now >= self.blind_until else {}
        return LookupAnswer(self.name, leads, meta, partitions, known.exists)


class TopologyMachine(RuleBasedStateMachine):
    """One client's view of a topic that grows, loses leaders, is deleted and re-created."""

    @initialize(number=st.integers(1, 3), lags=st.lists(st.sampled_from((0.0, 1.0, LAG)), min_size=3, max_size=3))
    def start(self, number: int, lags: list[float]) -> None:
        self.now = 0.0
        self.truth = self._made(number, 1)
        self.lookupds = [Lookupd(name, lag, news=[(-10.0, self.truth)]) for name, lag in zip("abc", lags, strict=True)]
        self.leading: str | None = "a"
        self.view: TopicView = merge(None, [], topic="orders")
        self.count = PartitionCount()
        self.numbers: set[int] = {0, number}
        self.settled_at = 0.0
        self.seen = 0
        self.ask()

    def _made(self, number: int, incarnation: int) -> Truth:
        leaders = {partition: NODES[partition % 4] for partition in range(number)}
        return Truth(exists=True, number=number, leaders=leaders, incarnation=incarnation)

    def _becomes(self, truth: Truth) -> None:
        self.truth = truth
        self.settled_at = self.now
        for lookupd in self.lookupds:
            lookupd.news.append((self.now, truth))

    # -- the cluster

    @precondition(lambda self: self.truth.exists)
    @rule(partition=st.integers(0, 7), node=st.sampled_from((None, *NODES)))
    def move(self, partition: int, node: Node | None) -> None:
        leaders = dict(self.truth.leaders)
        leaders.pop(partition % self.truth.number, None)
        if node is not None:
            leaders[partition % self.truth.number] = node
        self._becomes(Truth(exists=True, number=self.truth.number, leaders=leaders, incarnation=self.truth.incarnation))

    @precondition(lambda self: self.truth.exists and self.truth.number < 8)
    @rule(more=st.integers(1, 3), led=st.booleans(), is_seen=st.booleans())
    def expand(self, more: int, led: bool, is_seen: bool) -> None:
        number = self.truth.number + more
        leaders = dict(self.truth.leaders)
        if led:
            leaders |= {partition: NODES[partition % 4] for partition in range(self.truth.number, number)}
        self.numbers.add(number)
        self._becomes(Truth(exists=True, number=number, leaders=leaders, incarnation=self.truth.incarnation))
        if is_seen:
            self.ask({place for place in range(3) if not self._is_newest(place)}, rounds=CONFIRM_ROUNDS)

    @precondition(lambda self: self.truth.exists and self.now > 20.0)
    @rule()
    def delete(self) -> None:
        self._becomes(Truth(exists=False, number=0, leaders={}, incarnation=self.truth.incarnation))

    @precondition(lambda self: not self.truth.exists)
    @rule(number=st.integers(1, 4))
    def make_again(self, number: int) -> None:
        self.numbers.add(number)
        self._becomes(self._made(number, self.truth.incarnation + 1))

    # -- the nsqlookupds

    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        self.lookupds[which].is_up = False
        if self.leading == self.lookupds[which].name:
            self.leading = None

    @rule(which=st.integers(0, 2))
    def restart(self, which: int) -> None:
        self.lookupds[which].is_up = True
        self.lookupds[which].blind_until = self.now + BLIND

    @rule(which=st.integers(0, 2))
    def elect(self, which: int) -> None:
        if self.leading is None and self.lookupds[which].is_up:
            self.leading = self.lookupds[which].name

    # -- the client

    @rule(missing=st.sets(st.integers(0, 2), max_size=2), rounds=st.sampled_from((1, 1, 2, 4)))
    def ask(self, missing: set[int] | None = None, rounds: int = 1) -> None:
        """Some rounds; some answers do not come in time."""
        for _ in range(rounds):
            told = []
            for place, lookupd in enumerate(self.lookupds):
                leads = lookupd.name == self.leading
                answer = lookupd.says(self.now, leads=leads) if place not in (missing or ()) else None
                if answer is not None:
                    told.append(answer)
                    self.seen = max(self.seen, lookupd.knows(self.now, leads=leads).incarnation)
            self._round(told)

    @rule(rounds=st.integers(1, 2))
    def ask_those_that_are_behind(self, rounds: int) -> None:
        """The others hang."""
        self.ask({place for place in range(3) if self._is_newest(place)}, rounds)

    def _is_newest(self, place: int) -> bool:
        lookupd = self.lookupds[place]
        return lookupd.knows(self.now, leads=lookupd.name == self.leading) is self.truth

    @precondition(lambda self: self.truth.exists and self.view.partition_num)
    @rule(number=st.integers(1, 9), partition=st.integers(0, 9), led=st.booleans())
    def ask_with_a_liar(self, number: int, partition: int, led: bool) -> None:
        """One that leads nothing claims anything, beside sound ones."""
        names = [lookupd.name for lookupd in self.lookupds]
        leading = self.leading if led else None
        told = [
            lookupd.says(self.now, leads=name == leading) for name, lookupd in zip(names, self.lookupds, strict=True)
        ]
        answers = [answer for answer in told if answer is not None and answer.meta is not None]
        if not answers:
            return
        lie = LookupAnswer("liar", False, TopicMeta(number), {partition: NODES[0]}, True)
        before = self.view.partition_num
        self._round([*answers, lie])
        numbers = {answer.meta.partition_num for answer in answers if answer.meta is not None}
        assert self.view.partition_num in {before} | numbers

    def _round(self, answers: list[LookupAnswer]) -> None:
        old = self.view
        self.view = view = merge(old, answers)
        self.now += ROUND
        if not answers:
            assert view is old
            return
        told = {pair for answer in answers for pair in answer.partitions.items()}
        assert set(view.leaders.items()) <= told
        if any(answer.exists for answer in answers):
            assert view.exists
            # One that lists fewer takes nothing away: what was known stays known, with its connection.
            if view.partition_num >= old.partition_num:
                assert set(old.known) <= set(view.known)
        assert bool(changed_leaders(old, view)) == (old.leaders != view.leaders)
        if 0 < old.partition_num < view.partition_num:
            assert set(range(old.partition_num, view.partition_num)) <= set(view.leaders)
        if self.truth.incarnation == 1 and self.truth.exists:
            assert old.partition_num <= view.partition_num <= self.truth.number
        self._use(view)

    def _use(self, view: TopicView) -> None:
        """What a producer does with it."""
        if view.meta is None:
            if not view.exists:
                self.count = PartitionCount()
            return
        self.count.found(view.meta.partition_num, self.now, DELAY)
        self.count.take(self.now)

    @rule(seconds=st.sampled_from((0.3, 1.0, 6.0)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # -- what always holds

    @invariant()
    def the_number_was_true_at_some_time(self) -> None:
        assert self.view.partition_num in self.numbers
        assert self.count.used in self.numbers

    @invariant()
    def nothing_is_hashed_over_a_number_that_is_not_taken(self) -> None:
        assert set(self.view.publishable) <= set(range(self.view.partition_num))
        assert not self.view.complete or set(self.view.publishable) == set(range(self.view.partition_num))
        assert not (set(self.view.leaders) & set(self.view.last_known))

    @invariant()
    def a_topic_that_was_seen_does_not_go(self) -> None:
        """Though an nsqlookupd that lags may not know yet that it was re-created."""
        if self.truth.exists and self.seen == self.truth.incarnation:
            assert self.view.exists

    def teardown(self) -> None:
        """When all are well and nothing changes, the view is the truth within the lag and the rounds that confirm."""
        if not hasattr(self, "view"):
            return
        self.now = max(self.now, self.settled_at)
        for lookupd in self.lookupds:
            lookupd.is_up, lookupd.blind_until = True, self.now
        self.leading = self.leading or "a"
        began = self.now
        while self.now < began + LAG + ROUND:
            self.ask()
        for _ in range(DISPUTED_ROUNDS):
            self.ask()
        self._lead_what_was_added()
        truth = self.truth
        assert self.view.exists == truth.exists
        assert self.view.partition_num == (truth.number if truth.exists else 0)
        assert dict(self.view.leaders) == dict(sorted(truth.leaders.items()))
        assert self.view.complete == (truth.exists and len(truth.leaders) == truth.number)
        assert not self.view.unsettled
        self.now += DELAY
        self._use(self.view)
        assert self.count.used == self.view.partition_num

    def _lead_what_was_added(self) -> None:
        """Until the cluster leads them, new partitions are asked about and not used; then they are at once."""
        old, truth = self.view.partition_num, self.truth
        missing = set(range(old, truth.number)) - set(truth.leaders) if old else set()
        if not missing:
            return
        assert self.view.unsettled
        leaders = truth.leaders | dict.fromkeys(missing, NODES[0])
        self._becomes(Truth(exists=True, number=truth.number, leaders=leaders, incarnation=truth.incarnation))
        self.ask()
        assert self.view.partition_num == truth.number
        self.now += LAG
        self.ask()


TopologyMachine.TestCase.settings = settings(stateful_step_count=40)
TestTopology = TopologyMachine.TestCase


def test_a_disputed_number_outlasts_the_lag_of_a_sound_server() -> None:
    assert DISPUTED_ROUNDS * 0.3 > LAG
    assert CONFIRM_ROUNDS < DISPUTED_ROUNDS
