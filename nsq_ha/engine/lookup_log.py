"""Log what a round of lookups has changed: a line for one partition, or one for several."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import few
from nsq_ha.policy.topology import Node, TopicView, changed_leaders

if TYPE_CHECKING:
    from collections.abc import Iterable

log: Final = logging.getLogger("nsq_ha.discovery")


def log_changes(old: TopicView | None, new: TopicView) -> None:
    """Log what differs in two views of a topic, at INFO."""
    if not log.isEnabledFor(logging.INFO):
        return
    topic, extra, changed = new.topic, {"topic": new.topic}, changed_leaders(old, new)
    gone = [(partition, before) for partition, (before, after) in changed.items() if before and not after]
    found = [(partition, after) for partition, (_, after) in changed.items() if after]
    if new.is_plain:
        for text, nodes in (("is on", found), ("is no longer listed for", gone)):
            if nodes:
                log.info(
                    "topic %s %s nsqd %s", topic, text, few(", ", [node.address for _, node in nodes]), extra=extra
                )
        return
    if len(changed) > 1:
        if found:
            log.info("topic %s: %s", topic, _leaders(found), extra=extra)
        if gone:
            log.info("topic %s: no leader of %s any more", topic, numbered(number for number, _ in gone), extra=extra)
    else:
        for partition, (before, after) in changed.items():
            _log_leader(topic, partition, before, after)
    if old is not None:
        _log_settings(old, new)


def _log_leader(topic: str, partition: int, before: Node | None, after: Node | None) -> None:
    text = "is led by" if before is None else "has no leader, previously" if after is None else "is now led by"
    node = after or before
    previously = f", previously by {before.address}" if before and after else ""
    address = "" if node is None else node.address
    extra = {"topic": topic, "partition": partition, "nsqd": address}
    log.info("%s-%d %s %s%s", topic, partition, text, address, previously, extra=extra)


def _leaders(found: Iterable[tuple[int, Node]]) -> str:
    """Return the leaders of several partitions as one line: there may be hundreds."""
    partitions: dict[str, list[int]] = {}
    for partition, node in found:
        partitions.setdefault(node.address, []).append(partition)
    return "; ".join(f"{address} leads {numbered(numbers)}" for address, numbers in partitions.items())


def numbered(numbers: Iterable[int]) -> str:
    """Return ascending numbers of partitions as text, those in a row as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts = [f"{each[0]}-{each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in ranges]
    return f"partition{'s' if sum(map(len, ranges)) > 1 else ''} {', '.join(texts)}"


def _log_settings(old: TopicView, new: TopicView) -> None:
    extra = {"topic": new.topic}
    if old.exists and not new.exists:
        log.info("topic %s does not exist", new.topic, extra=extra)
    elif old.meta is not None and new.meta is not None and old.meta != new.meta:
        first, second = dataclasses.asdict(old.meta), dataclasses.asdict(new.meta)
        differing = (f"{name} {value} -> {second[name]}" for name, value in first.items() if value != second[name])
        log.info("topic %s changed: %s", new.topic, ", ".join(differing), extra=extra)
