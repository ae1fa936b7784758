"""The view of a topic in a cluster of plain nsqds, merged from what independent nsqlookupds say.

A plain topic has no partitions: each nsqd that has it holds messages of its own. Here each of these nsqds gets a
number, a *slot*, in the place of a partition's number, so that producers and consumers treat both kinds of cluster
alike. ``policy.topology`` has the rules for the partitioned kind.

The invariant: an nsqd keeps its slot while it is listed and for ``FORGET_ROUNDS`` rounds after. Independent nsqlookupds
know different nsqds, so the union of their answers counts. The last answer of one that is silent counts for as many
rounds.

Source: upstream nsqlookupd's ``/lookup`` and ``/nodes``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from nsq_ha.errors import NsqError, TopicNotExistError
from nsq_ha.policy.topology import LookupAnswer, Node, PlainTopic, TopicMeta, TopicView, merge

FORGET_ROUNDS: Final = 120
"""Rounds after which an unlisted nsqd loses its slot, and a silent nsqlookupd's last answer is dropped. They take a
minute while callers wait for news, and up to two hours while nothing changes. Until then an
unlisted nsqd only keeps its slot."""


def merge_round(topic: str, known: TopicView | None, answers: Sequence[LookupAnswer]) -> TopicView:
    """Return the view of a topic in a cluster of either kind after one round.

    Args:
        topic: The topic.
        known: The view so far. None at the beginning.
        answers: Those of the round. Answers of the other kind do not count.
    """
    if answers and is_plain(known, answers):
        before = (known and known.plain) or PlainTopic()
        return _view(topic, _after(before, [answer for answer in answers if answer.nodes is not None]))
    return merge(known, [answer for answer in answers if answer.nodes is None], topic=topic)


def is_plain(known: TopicView | None, answers: Sequence[LookupAnswer]) -> bool:
    """Return whether the topic's cluster is a plain one.

    The first answers that name nodes decide: a cluster does not change its kind while a client runs, so an answer of
    the other kind is of a server that belongs to another cluster. Until then a partitioned answer wins, since any
    broken server may know nothing.

    Args:
        known: The view so far. None at the beginning.
        answers: Those of one round; at least one.
    """
    if known is not None and known.meta is not None:
        return known.is_plain
    return all(answer.nodes is not None for answer in answers)


def _after(before: PlainTopic, answers: Sequence[LookupAnswer]) -> PlainTopic:
    """Return what to remember after a round in which these plain nsqlookupds answered."""
    kept = {url: (last, age + 1) for url, (last, age) in before.answers.items() if age < FORGET_ROUNDS}
    kept |= {answer.lookupd: (answer, 0) for answer in answers}
    has_topic = _union(last.nodes or () for last, _ in kept.values())
    nodes = has_topic or _union(last.candidates for last, _ in kept.values())
    return PlainTopic(MappingProxyType(kept), MappingProxyType(_assign(before.slots, nodes)))


def _view(topic: str, plain: PlainTopic) -> TopicView:
    """Return the view of the topic.

    It exists if any nsqlookupd knows the topic, or knows an nsqd that would create it.
    """
    answers = [last for last, _ in plain.answers.values()]
    slot_num = max(plain.slots, default=-1) + 1
    leaders = {number: node for number, (node, age) in plain.slots.items() if not age}
    unlisted = {number: node for number, (node, age) in plain.slots.items() if age}
    return TopicView(
        topic=topic,
        meta=TopicMeta(partition_num=slot_num, is_partitioned=False) if slot_num else None,
        leaders=MappingProxyType(leaders),
        complete=bool(leaders),
        exists=bool(slot_num) or any(answer.exists for answer in answers),
        last_known=MappingProxyType(unlisted),
        is_plain=True,
        note=next((answer.note for answer in answers if answer.note), ""),
        plain=plain,
    )


def _union(lists: Iterable[Iterable[Node]]) -> list[Node]:
    """Return each nsqd once, in an order that does not depend on the order of the lists."""
    nodes = {(node.host, node.tcp_port): node for listed in lists for node in listed}
    return [nodes[address] for address in sorted(nodes)]


def _assign(slots: Mapping[int, tuple[Node, int]], listed: Sequence[Node]) -> dict[int, tuple[Node, int]]:
    """Return the slots after a round that listed these nsqds."""
    numbers = {node.address: number for number, (node, _) in slots.items()}
    assigned = {numbers[node.address]: (node, 0) for node in listed if node.address in numbers}
    assigned |= {n: (node, age + 1) for n, (node, age) in slots.items() if n not in assigned and age < FORGET_ROUNDS}
    free = (number for number in itertools.count() if number not in assigned)
    new = [(node, 0) for node in listed if node.address not in numbers]
    return dict(sorted((assigned | dict(zip(free, new, strict=False))).items()))


def explained(error: NsqError, topic: str) -> NsqError:
    """Return the error to report if an nsqd given by the user sent ``error``.

    Only a partitioned nsqd answers that a topic does not exist; others create it.
    """
    if not isinstance(error, TopicNotExistError):
        return error
    return TopicNotExistError(
        error.code,
        f"topic {topic!r} is not on this nsqd, which is one of a partitioned cluster: give lookupd= with the address of"
        f" an nsqlookupd instead of nsqd=, and create the topic there if it does not exist (nsq-ha topic create)",
    )
