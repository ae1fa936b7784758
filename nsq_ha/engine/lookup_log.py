"""Log what a round of lookups has changed: a line for one partition, or one for several."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.base.grouping import grouped
from nsq_ha.errors import few
from nsq_ha.policy.topology import Node, TopicView, changed_leaders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log: Final = logging.getLogger("nsq_ha.discovery")


def log_changes(old: TopicView, new: TopicView) -> None:
    """Log what differs in two views of a topic, at INFO."""
    if log.isEnabledFor(logging.INFO):
        for line, facts in (*_leader_lines(old, new), *((line, {}) for line in _setting_lines(old, new))):
            log.info("%s", line, extra={"topic": new.topic, **facts})


def _leader_lines(old: TopicView, new: TopicView) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the lines about leaders, and the partition and the nsqd if there is only one."""
    topic, changed = new.topic, changed_leaders(old, new)
    found = [(number, after) for number, (_, after) in changed.items() if after]
    gone = [(number, before) for number, (before, after) in changed.items() if before and not after]
    if new.is_plain:
        for text, nodes in (("is on", found), ("is no longer listed for", gone)):
            if nodes:
                yield f"topic {topic} {text} nsqd {few(', ', [node.address for _, node in nodes])}", {}
    elif len(changed) == 1:
        for number, node in found:
            before = changed[number][0]
            text = f"now led by {node.address}, previously by {before.address}" if before else f"led by {node.address}"
            yield f"{topic}-{number} is {text}", {"partition": number, "nsqd": node.address}
        for number, node in gone:
            line = f"{topic}-{number} has no leader, previously {node.address}"
            yield line, {"partition": number, "nsqd": node.address}
    else:
        if found:
            yield f"topic {topic}: {_leaders(found)}", {}
        if gone:
            yield f"topic {topic}: no leader of {numbered(number for number, _ in gone)} any more", {}


def _leaders(found: Iterable[tuple[int, Node]]) -> str:
    """Return the leaders of several partitions as one line: there may be hundreds."""
    partitions = grouped((node.address, partition) for partition, node in found)
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


def _setting_lines(old: TopicView, new: TopicView) -> Iterator[str]:
    if new.is_plain:
        return
    if old.exists and not new.exists:
        yield f"topic {new.topic} does not exist"
    elif old.meta is not None and new.meta is not None and old.meta != new.meta:
        first, second = dataclasses.asdict(old.meta), dataclasses.asdict(new.meta)
        differing = (f"{name} {value} -> {second[name]}" for name, value in first.items() if value != second[name])
        yield f"topic {new.topic} changed: {', '.join(differing)}"
