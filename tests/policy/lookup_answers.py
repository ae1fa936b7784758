"""Answers of nsqlookupds, written short."""

from collections.abc import Mapping, Sequence

from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta, TopicView, merge

NODES = tuple(Node("10.0.0.1", 4150 + 10 * number, 4151 + 10 * number) for number in range(4))


def led(*partitions: int, shift: int = 0) -> dict[int, Node]:
    return {partition: NODES[(partition + shift) % len(NODES)] for partition in partitions}


def answer(
    partition_num: int | None = 2,
    partitions: Mapping[int, Node] | None = None,
    *,
    lookupd: str = "a",
    leads: bool = False,
    exists: bool = True,
    note: str = "",
    ordered: bool = False,
) -> LookupAnswer:
    """An answer with a leader for every partition, unless said otherwise."""
    meta = None if partition_num is None else TopicMeta(partition_num, ordered=ordered)
    if partitions is None:
        partitions = led(*range(partition_num or 0))
    return LookupAnswer(lookupd, leads, meta, partitions, exists, note)


def denial(lookupd: str = "a", *, leads: bool = False, note: str = "") -> LookupAnswer:
    return answer(None, {}, lookupd=lookupd, leads=leads, exists=False, note=note)


def empty(lookupd: str = "a", *, leads: bool = False, partition_num: int | None = 2) -> LookupAnswer:
    return answer(partition_num, {}, lookupd=lookupd, leads=leads)


def good(partition_num: int = 2) -> TopicView:
    view = merge(None, [answer(partition_num, leads=True), answer(partition_num, lookupd="b")], topic="orders")
    assert view.complete
    return view


def rounds(view: TopicView, *each: Sequence[LookupAnswer]) -> TopicView:
    for answers in each:
        view = merge(view, answers)
    return view
