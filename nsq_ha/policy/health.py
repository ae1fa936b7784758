"""Decide whether a client is healthy.

==========================================  ==========================================
fact                                        the client is
==========================================  ==========================================
not entered, closing, closed or failed      unhealthy
a refusal that retries cannot fix           unhealthy
trouble for at least ``patience`` seconds   unhealthy
trouble that is younger                     healthy, and the reason names it
a pause or a back-off                       healthy, and the reason names it
nothing                                     healthy: ``ok``
==========================================  ==========================================

A client that consists of others, such as a worker of several consumers, is healthy if each of them is.

A change of a leader is normal and takes seconds, so trouble counts only after some time: by default the time after
which the log warns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nsq_ha.errors import few
from nsq_ha.stats import Health

MOST_NAMED: Final = 3
"""Troubles that a reason names; the others are counted, since a cluster may have hundreds of partitions."""

OK: Final = "ok"

_PREDICATES: Final = ("has ", "is ")


class Trouble(NamedTuple):
    """Something that does not work.

    Attributes:
        name: The partition, as ``orders-3``, or the topic.
        reason: What is wrong: a text, or what follows the name, as ``has no leader``.
        seconds: How long it has been.
    """

    name: str
    reason: str
    seconds: float

    @property
    def text(self) -> str:
        """The reason with its place."""
        if self.name in self.reason:
            return self.reason
        return f"{self.name}{' ' if self.reason.startswith(_PREDICATES) else ': '}{self.reason}"

    def __str__(self) -> str:
        """Return the reason with its place and duration."""
        return f"{self.text} (for {self.seconds:.0f} s)"


def health_of(troubles: Sequence[Trouble], notes: Sequence[str], patience: float) -> Health:
    """Return the health of a client that is open.

    Args:
        troubles: Parts that do not work now.
        notes: What else an operator may want to know.
        patience: Seconds after which trouble makes the client unhealthy.
    """
    old = [trouble for trouble in troubles if trouble.seconds >= patience]
    if old:
        return Health(is_healthy=False, reason=_listed(old))
    young = [_listed(troubles)] if troubles else []
    return Health(is_healthy=True, reason="; ".join([*young, *notes]) or OK)


def health_of_parts(parts: Sequence[tuple[str, Health]]) -> Health:
    """Return the health of a client that consists of others.

    Args:
        parts: The name and the health of each of them.
    """
    ill = [f"{name}: {health.reason}" for name, health in parts if not health]
    noted = [f"{name}: {health.reason}" for name, health in parts if health.reason != OK]
    return Health(is_healthy=not ill, reason=few("; ", ill or noted, MOST_NAMED) or OK)


def _listed(troubles: Sequence[Trouble]) -> str:
    """Return the troubles as text, the longest ones first."""
    ordered = sorted(troubles, key=lambda trouble: -trouble.seconds)
    return few("; ", [str(trouble) for trouble in ordered], MOST_NAMED)
