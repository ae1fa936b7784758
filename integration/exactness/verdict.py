"""Compare the rows of a stream with the messages that were acknowledged, and with the log, one by one."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Row = tuple[int, int, bytes]
"""Partition, offset and body."""

SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with the rows; nothing if all are zero.

    Attributes:
        lost: Acknowledged messages without a row.
        missing: Messages of the log without a row.
        foreign: Rows that are not a message of the log: another offset, partition or body.
        repeated: Rows beyond the first of a partition and offset.
        disordered: Rows after one of a higher offset in their partition.
        examples: Some of them, as text.
    """

    lost: int = 0
    missing: int = 0
    foreign: int = 0
    repeated: int = 0
    disordered: int = 0
    examples: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether each message is one row, in order."""
        return not any((self.lost, self.missing, self.foreign, self.repeated, self.disordered))


def judge(
    acknowledged: Iterable[tuple[int, bytes]],
    log: Sequence[Row],
    batches: Sequence[Sequence[Sequence[Row]]],
    *,
    cut: bool,
) -> Verdict:
    """Compare.

    Args:
        acknowledged: Partition and body of each message whose publish succeeded; bodies are unique.
        log: What the topic holds. A publish in doubt may be there twice, and must then be two rows.
        batches: The rows, by micro-batch and file, in their order.
        cut: Whether several tasks read one partition: the order of their files means nothing then.
    """
    rows = [row for files in batches for one in files for row in one]
    found, stored = collections.Counter(rows), collections.Counter(log)
    given = {(partition, body) for partition, _, body in rows}
    places = collections.Counter((partition, offset) for partition, offset, _ in rows)
    lost = [each for each in acknowledged if each not in given]
    missing, foreign = list((stored - found).elements()), list((found - stored).elements())
    repeated = [place for place, count in places.items() for _ in range(count - 1)]
    disordered = list(_disordered(batches, cut=cut))
    return described(
        {
            "lost": lost,
            "missing": missing,
            "foreign": foreign,
            "repeated": repeated,
            "disordered": disordered,
        }
    )


def described(kinds: Mapping[str, Sequence[object]]) -> Verdict:
    """Return the verdict about what is wrong, by kind."""
    counts = {name: len(each) for name, each in kinds.items()}
    return Verdict(
        **counts, examples=tuple(f"{name}: {_short(one)}" for name, each in kinds.items() for one in each[:SHOWN])
    )


def _disordered(batches: Sequence[Sequence[Sequence[Row]]], *, cut: bool) -> Iterable[Row]:
    """Yield the rows that follow one of a higher offset in a file, or in an earlier file or micro-batch."""
    ended: dict[int, int] = {}
    for files in batches:
        reached = dict(ended)
        for rows in files:
            last = dict(ended if cut else reached)
            for row in rows:
                partition, offset, _ = row
                if offset <= last.get(partition, -1):
                    yield row
                last[partition] = max(offset, last.get(partition, -1))
            for partition, offset in last.items():
                reached[partition] = max(reached.get(partition, -1), offset)
        ended = reached


def _short(one: object) -> str:
    return ", ".join(repr(part)[:24] for part in (one if isinstance(one, tuple) else (one,)))
