"""What happens in a run of the demo, as values."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        seconds: Time since the job began; negative for preparations.
        text: One line.
        mark: Its short name in charts; empty if it is not marked there.
        at: When it happened, in Unix seconds.
    """

    seconds: float
    text: str
    mark: str = ""
    at: float = field(default=0.0, compare=False)
