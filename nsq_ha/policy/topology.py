"""Merge the answers of the nsqlookupds into one view of a topic.

Owns the rules for this: which node leads a partition, how many partitions there
are, whether the topic exists. ``engine.servers`` sends the requests. This module has
no clock: it counts lookup rounds.

The invariants: ``partition_num`` comes from ``meta`` alone, never from the number
of partitions that happen to be listed. No answer, however empty, erases earlier
knowledge before further rounds confirm it.

Source: server failures 2, 3.6, 3.8, 3.9, 4.1; server protocol 11.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from nsq_ha.errors import LookupUnavailableError

CONFIRM_ROUNDS: Final = 3
"""Rounds in a row after which a change is accepted if no answer contradicts it."""

DISPUTED_ROUNDS: Final = 8
"""Rounds in a row after which the leading nsqlookupd wins against another one. A working
follower is about 2 s behind, which is fewer rounds than this."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Node:
    """An nsqd as nsqlookupd lists it.

    Attributes:
        host: Host name or IP address.
        tcp_port: Port of the TCP protocol.
        http_port: Port of the HTTP API.
        distributed_id: The cluster's name for it (``ip:rpc:tcp:n``), needed to
            move partitions. Empty if the server sent none. Not compared.
        is_plain: Whether it is an upstream nsqd without partitions. Not compared.
    """

    host: str
    tcp_port: int
    http_port: int
    distributed_id: str = field(default="", compare=False)
    is_plain: bool = field(default=False, compare=False)

    @property
    def address(self) -> str:
        """``host:port`` of the TCP protocol, an IPv6 host in brackets."""
        return f"{_bracketed(self.host)}:{self.tcp_port}"

    @property
    def http_url(self) -> str:
        """Base URL of the HTTP API."""
        return f"http://{_bracketed(self.host)}:{self.http_port}"


def tcp_address(name: str) -> str:
    """Return the TCP address in a node's ``distributed_id``; empty if it has none."""
    host, *numbers = name.rsplit(":", 3)
    if len(numbers) != 3 or not all(len(each) < 6 and each.isascii() and each.isdigit() for each in numbers[:2]):
        return ""
    return f"{_bracketed(host)}:{int(numbers[1])}"


@dataclass(frozen=True, slots=True)
class TopicMeta:
    """The settings of a topic, fixed at its creation.

    Attributes:
        partition_num: Number of partitions, 1 or more; keys are hashed over it.
        replica: Copies of each partition, leader included.
        extend_support: Messages may have extension headers.
        ordered: Consumers must subscribe ordered.
        multi_part: Several partitions may share a node.
        disable_channel_auto_create: Channels must be registered before use.
        is_partitioned: False for plain nsqds: their commands have no partition,
            and they support no keys, traces or headers.
    """

    partition_num: int
    replica: int = 1
    extend_support: bool = False
    ordered: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False
    is_partitioned: bool = True


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """One nsqlookupd's valid answer to a lookup of a topic.

    Attributes:
        lookupd: Base URL of the nsqlookupd.
        leads: Whether the lists name it as the leading nsqlookupd.
        meta: The topic's settings. None if the answer has no valid ones.
        partitions: Leader by partition, only for partitions that have one.
        exists: False if the answer says that the topic does not exist.
        note: Why partitions are missing, if the answer shows it; else empty.
        nodes: The nsqds that have the topic, if the nsqlookupd is of a plain cluster
            (see ``policy.plain_topology``). None if it is of a partitioned one.
        candidates: Nsqds of a plain cluster that would create the topic if it were
            published to them.
        channels: The channels that any partition has, if the cluster is a partitioned one.
    """

    lookupd: str
    leads: bool = False
    meta: TopicMeta | None = None
    partitions: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    exists: bool = True
    note: str = ""
    nodes: tuple[Node, ...] | None = None
    candidates: tuple[Node, ...] = ()
    channels: tuple[str, ...] = ()


class Round(msgspec.Struct, frozen=True):
    """What asking the nsqlookupds once has brought.

    Attributes:
        answers: The usable answers that arrived in time.
        error: None if there is an answer.
    """

    answers: tuple[LookupAnswer, ...]
    error: LookupUnavailableError | None


class Pending(msgspec.Struct, frozen=True):
    """A change that some answers contain but that is not accepted yet.

    Attributes:
        partition_num: The proposed number. None if none is proposed.
        partition_rounds: Rounds in a row that proposed it.
        gone_rounds: Rounds in a row in which every answer denied the topic.
    """

    partition_num: int | None = None
    partition_rounds: int = 0
    gone_rounds: int = 0


class PlainTopic(msgspec.Struct, frozen=True):
    """What is remembered of a plain topic from round to round.

    Attributes:
        answers: The last answer of each nsqlookupd by its base URL, and how many rounds ago it came.
        slots: The nsqds by slot, and how many rounds ago each was listed.
    """

    answers: Mapping[str, tuple[LookupAnswer, int]] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    slots: Mapping[int, tuple[Node, int]] = msgspec.field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class TopicView:
    """The merged view of a topic.

    Attributes:
        topic: The topic.
        meta: The topic's settings. None until the number of partitions is certain.
        leaders: Leader by partition in the last round with answers. While the topic
            grows it may have partitions at or above ``meta.partition_num``: subscribe
            to these at once, but publish to them only when the number is accepted.
        complete: Every partition has a leader and no change is pending.
        exists: False if every answer denied the topic (repeatedly, if it was known
            before).
        last_known: Last leader of each partition that is missing in ``leaders``. Its
            healthy connections stay in use; new ones are opened only to ``leaders``.
        is_plain: The nsqlookupds are of a plain cluster: its partitions are nsqds, see
            ``policy.plain_topology``.
        note: Why partitions are missing, if an answer shows it; else empty.
        pending: A change that waits for confirmation. Not compared.
        channels: The channels that any partition had in the last round with answers; none of a plain topic. Not
            compared.
        plain: What is remembered of a plain topic. None of a partitioned one. Not compared.
        is_answered: False before the first answer: nothing is known, not even that the topic does not exist.
    """

    topic: str
    meta: TopicMeta | None
    leaders: Mapping[int, Node]
    complete: bool
    exists: bool
    last_known: Mapping[int, Node] = field(default_factory=lambda: MappingProxyType({}))
    is_plain: bool = False
    note: str = field(default="", compare=False)
    pending: Pending = field(default=Pending(), compare=False)
    channels: frozenset[str] = field(default=frozenset(), compare=False)
    plain: PlainTopic | None = field(default=None, compare=False, repr=False)
    is_answered: bool = True

    @property
    def partition_num(self) -> int:
        """Number of partitions to hash over; 0 while unknown."""
        return 0 if self.meta is None else self.meta.partition_num

    def name_of(self, partition: int) -> str:
        """Return how texts name a partition: ``orders-3``, or only the topic if the cluster has no partitions."""
        is_partitioned = self.meta is None or self.meta.is_partitioned
        return f"{self.topic}-{partition}" if is_partitioned else self.topic

    @property
    def cause(self) -> str:
        """The note as the end of a message that a partition has no leader; empty if there is no note."""
        return f": {self.note}" if self.note else ""

    @property
    def publishable(self) -> Mapping[int, Node]:
        """The leaders of partitions below ``partition_num``."""
        return {partition: node for partition, node in self.leaders.items() if partition < self.partition_num}

    @property
    def known(self) -> Mapping[int, Node]:
        """The newest leader of each partition that has or had one."""
        return {**self.last_known, **self.leaders}

    @property
    def unsettled(self) -> bool:
        """Whether a change waits for confirmation: ask again soon."""
        return self.pending != Pending()


def merge(previous: TopicView | None, answers: Sequence[LookupAnswer], *, topic: str = "") -> TopicView:
    """Return the view after one lookup round.

    Answers are ranked: the leading nsqlookupd first, then by the number of listed
    partitions. The first answer in that order that lists a partition names its
    leader. The lists are merged, since a server that has just started lists nothing
    although nothing is wrong. A partition that no answer lists loses its leader and
    keeps it as ``last_known``.

    ``partition_num`` is taken from ``meta`` if enough answers and rounds confirm it:

    ============  ==============================  ===========================  ==========
    the number    nobody contradicts              only the leading one says so  otherwise
    ============  ==============================  ===========================  ==========
    is the first  at once                         8 rounds in a row            8 rounds
    grows         at once if two say so and all   8 rounds                     never
                  partitions are led, else 3
    falls         3 rounds with the leading one,  8 rounds                     never
                  else 8
    ============  ==============================  ===========================  ==========

    A larger number must also wait until each new partition has a leader, else
    messages hashed to it could only wait. With access ``w`` this is a leader that
    accepts writes, and the cluster may need a minute to elect one.

    A known topic is gone only after all have denied it for the same 3 or 8 rounds;
    a first answer is accepted at once.

    Args:
        previous: The view so far. None at the beginning.
        answers: The valid answers of one round, without those of failed servers.
        topic: Name of the topic; needed if there is no previous view.

    Returns:
        The new view; ``previous`` itself (or an empty view) if there are no answers.
    """
    old = previous or unanswered(topic)
    if not answers:
        return old
    ranked = sorted(answers, key=lambda answer: (not answer.leads, -len(answer.partitions)))
    if not any(answer.exists for answer in ranked):
        return _denied(old, ranked)
    meta, pending = _merge_meta(old, ranked)
    leaders, last_known = _merge_leaders(old, ranked, meta)
    return TopicView(
        topic=old.topic,
        meta=meta,
        leaders=MappingProxyType(leaders),
        complete=meta is not None and pending == Pending() and leaders.keys() >= set(range(meta.partition_num)),
        exists=True,
        last_known=MappingProxyType(last_known),
        note=next((answer.note for answer in ranked if answer.note), ""),
        pending=pending,
        channels=frozenset(name for answer in ranked for name in answer.channels),
    )


def changed_leaders(old: TopicView, new: TopicView) -> dict[int, tuple[Node | None, Node | None]]:
    """Return the old and the new leader of each partition where they differ."""
    numbers = sorted(old.leaders.keys() | new.leaders.keys())
    pairs = ((number, (old.leaders.get(number), new.leaders.get(number))) for number in numbers)
    return {number: pair for number, pair in pairs if pair[0] != pair[1]}


def unanswered(topic: str) -> TopicView:
    """Return the view of a topic before the first answer."""
    return TopicView(topic, None, MappingProxyType({}), complete=False, exists=False, is_answered=False)


def _denied(old: TopicView, answers: Sequence[LookupAnswer]) -> TopicView:
    """Return the view if every answer says that there is no such topic."""
    note = next((answer.note for answer in answers if answer.note), "")
    rounds = old.pending.gone_rounds + 1
    needed = CONFIRM_ROUNDS if answers[0].leads else DISPUTED_ROUNDS
    if not old.exists or rounds >= needed:
        return dataclasses.replace(unanswered(old.topic), note=note, is_answered=True)
    return dataclasses.replace(
        old,
        leaders=MappingProxyType({}),
        complete=False,
        last_known=MappingProxyType(dict(old.known)),
        note=note,
        pending=Pending(gone_rounds=rounds),
    )


def _merge_meta(old: TopicView, ranked: Sequence[LookupAnswer]) -> tuple[TopicMeta | None, Pending]:
    found = [(answer.leads, answer.meta) for answer in ranked if answer.meta is not None]
    if not found:
        return old.meta, Pending()
    numbers = [meta.partition_num for _, meta in found]
    led, best = found[0]
    number = numbers[0] if led else max(numbers)
    pending = Pending()
    if number != old.partition_num:
        rounds = old.pending.partition_rounds + 1 if number == old.pending.partition_num else 1
        needed = _rounds_needed(old.partition_num, number, numbers, led=led, listed=_are_led(ranked, 0, number))
        if needed is None:
            number = old.partition_num
        elif rounds < needed or (0 < old.partition_num < number and not _are_led(ranked, old.partition_num, number)):
            pending = Pending(partition_num=number, partition_rounds=rounds)
            number = old.partition_num
    if not number:
        return None, pending
    known = old.meta or best
    # Without the leading one, keep settings that some answer still confirms.
    is_confirmed = any(dataclasses.replace(meta, partition_num=known.partition_num) == known for _, meta in found)
    return dataclasses.replace(best if led or not is_confirmed else known, partition_num=number), pending


def _rounds_needed(settled: int, number: int, numbers: Sequence[int], *, led: bool, listed: bool) -> int | None:
    """Return after how many rounds in a row ``number`` is accepted; None if these answers do not suffice."""
    if len(set(numbers)) > 1:
        return DISPUTED_ROUNDS if led or not settled else None
    if not settled:
        return 1
    if number > settled:
        return 1 if listed and len(numbers) > 1 else CONFIRM_ROUNDS
    return CONFIRM_ROUNDS if led else DISPUTED_ROUNDS


def _are_led(answers: Sequence[LookupAnswer], first: int, end: int) -> bool:
    return set(range(first, end)) <= {partition for answer in answers for partition in answer.partitions}


def _merge_leaders(
    old: TopicView, ranked: Sequence[LookupAnswer], meta: TopicMeta | None
) -> tuple[dict[int, Node], dict[int, Node]]:
    numbers = [answer.meta.partition_num for answer in ranked if answer.meta is not None]
    if meta is not None:
        numbers.append(meta.partition_num)
    bound = max(numbers, default=0)
    leaders: dict[int, Node] = {}
    for answer in ranked:
        for partition, node in answer.partitions.items():
            if partition < bound:
                leaders.setdefault(partition, node)
    fallen = meta is not None and meta.partition_num < old.partition_num
    last_known = {
        partition: node
        for partition, node in old.known.items()
        # While a topic grows, a server that is behind must not remove partitions that it does not know yet.
        if partition not in leaders and not (fallen and partition >= bound)
    }
    return dict(sorted(leaders.items())), last_known


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
