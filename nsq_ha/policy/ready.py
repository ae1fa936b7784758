"""How ``max_in_flight`` is shared over partitions as RDY.

RDY of the HA server is a standing ceiling of messages in flight on one
connection, not used up by deliveries, so it is sent only when it changes.

The invariant: what is granted, and what is still unanswered of earlier grants,
never exceed ``max_in_flight`` together, and nothing granted exceeds its
connection's ``max_rdy_count``. When there are more partitions than
``max_in_flight``, the turns go round (``policy.activity``): none starves.

Source: protocol reference 7 (RDY); clients reference 5 (lost remainders, RDY
stuck at 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def share(
    max_in_flight: int, ceilings: Mapping[int, int], turn: int = 0, needs: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Share ``max_in_flight`` exactly over the connections.

    Args:
        max_in_flight: What may be in flight in total; 0 pauses all.
        ceilings: For each partition that is subscribed, the most that it may
            get (``max_rdy_count`` of its connection; 1 on an ordered topic).
        turn: Rotates who gets the remainder, and who is served at all when
            there are more partitions than ``max_in_flight``.
        needs: How many each can use, 1 or more; these are shared evenly
            first, then the rest. None to share all evenly.

    Returns:
        RDY by partition. The sum is the smaller of ``max_in_flight`` and the
        sum of the ceilings.
    """
    order = _rotated(sorted(ceilings), turn)
    granted = dict.fromkeys(order, 0)
    left = max_in_flight
    if needs is not None:
        left = _fill(left, granted, {p: min(most, needs.get(p, 1)) for p, most in ceilings.items()})
    _fill(left, granted, ceilings)
    return granted


def _fill(left: int, granted: dict[int, int], ceilings: Mapping[int, int]) -> int:
    """Share ``left`` evenly, each up to its ceiling; return the rest."""
    open_ones = [partition for partition in granted if granted[partition] < ceilings[partition]]
    while left > 0 and open_ones:
        each, extra = divmod(left, len(open_ones))
        still_open = []
        for position, partition in enumerate(open_ones):
            part = min(each + (1 if position < extra else 0), ceilings[partition] - granted[partition])
            granted[partition] += part
            left -= part
            if granted[partition] < ceilings[partition]:
                still_open.append(partition)
        open_ones = still_open
    return left


class BodySize:
    """What a body is taken to weigh, by those that came: the largest at once, smaller ones little by little.

    Attributes:
        bytes: The estimate; the server's largest message until the first came.
    """

    __slots__ = ("_is_known", "bytes")

    def __init__(self, largest: int) -> None:
        """Start by expecting the largest."""
        self.bytes = largest
        self._is_known = False

    def seen(self, body_bytes: int) -> None:
        """Take note of one; a sample of those that come is enough."""
        if body_bytes >= self.bytes or not self._is_known:
            self.bytes = max(body_bytes, 1)
            self._is_known = True
        else:
            self.bytes -= (self.bytes - body_bytes + 7) // 8


def fitting(max_in_flight: int, max_bytes: int, body_bytes: int) -> int:
    """Return how many messages may be in flight, that bodies of ``body_bytes`` stay within ``max_bytes``.

    One may always be, or a message larger than all that is allowed would never
    be delivered; none when ``max_in_flight`` is 0.
    """
    return min(max_in_flight, max(1, max_bytes // body_bytes))


def paced(fitting_count: int, paced_count: int | None) -> int:
    """Return how many messages may be in flight if the handlers' speed allows ``paced_count`` (None for any number).

    At least one, unless the limit is 0.
    """
    return fitting_count if paced_count is None else min(fitting_count, max(paced_count, 1))


def changes(sent: Mapping[int, int], wanted: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Split a new distribution into what is lowered now and what is raised after.

    Lowering goes first: were a raise sent before, the sum could exceed
    ``max_in_flight`` for a moment.

    Args:
        sent: RDY last sent, by partition; a new one counts as 0.
        wanted: RDY that :func:`share` gave.

    Returns:
        Two dicts, ``(lower, raise_)``, of partitions whose RDY differs.
    """
    lower = {partition: count for partition, count in wanted.items() if count < sent.get(partition, 0)}
    raise_ = {partition: count for partition, count in wanted.items() if count > sent.get(partition, 0)}
    return lower, raise_


class Plan(NamedTuple):
    """What RDY is sent now.

    Attributes:
        lower: RDY by partition, to be sent first.
        raised: RDY by partition, to be sent after that.
        is_raise_due: A raise waits for room: plan again when a message was answered.
    """

    lower: dict[int, int]
    raised: dict[int, int]
    is_raise_due: bool


def plan(limit: int, sent: Mapping[int, int], in_flight: Mapping[int, int], wanted: Mapping[int, int]) -> Plan:
    """Return what may be sent now of a new distribution.

    What was delivered under an earlier grant and is not answered takes room as
    the grant did: a raise has to wait for it, or more than ``limit`` would be
    unanswered.

    Args:
        limit: Messages that may be unanswered in total.
        sent: RDY last sent, by partition; all of those in ``wanted``.
        in_flight: Messages that are not answered, by partition; all of them.
        wanted: RDY that :func:`share` gave.
    """
    lower, raise_ = changes(sent, wanted)
    taken = {partition: max(lower.get(partition, sent[partition]), in_flight[partition]) for partition in wanted}
    room = limit - sum(taken.values())
    is_raise_due = room < 0
    for partition, count in taken.items():
        # The limit fell: what is unanswered elsewhere takes the room of what was granted here and is not used yet.
        spare = min(count - in_flight[partition], -room)
        if spare > 0:
            lower[partition] = taken[partition] = count - spare
            room += spare
    raised = {}
    for partition, count in raise_.items():
        granted = min(count, taken[partition] + room)
        if granted > sent[partition]:
            room -= max(granted - taken[partition], 0)
            raised[partition] = granted
        is_raise_due |= granted < count
    return Plan(lower, raised, is_raise_due)


def _rotated(partitions: Sequence[int], turn: int) -> list[int]:
    if not partitions:
        return []
    start = turn % len(partitions)
    return [*partitions[start:], *partitions[:start]]
