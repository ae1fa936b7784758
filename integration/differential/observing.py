"""What a side did after one command, in terms that both sides share.

Ids, times, ports and absolute positions are left out, or count from the start of
the case.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Event:
    """Something that arrived on a connection.

    Attributes:
        connection: Its number.
        what: ``message``, ``error``, ``response`` or ``closed``.
        text: Body or text.
        attempts: Of a message.
        at: Seconds after the case began.
    """

    connection: int
    what: str
    text: str = ""
    attempts: int = 0
    at: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        attempts = f" (attempts {self.attempts})" if self.what == "message" else ""
        return f"connection {self.connection}: {self.what} {self.text}{attempts}".rstrip()


@dataclass(frozen=True)
class Observation:
    """One side's answer to one command.

    Attributes:
        answer: What was answered.
        events: What arrived on the connections until it was quiet.
        shared: Whether several connections read one channel, which makes deliveries random.
        at: When it was quiet, in seconds after the case began.
    """

    answer: str
    events: tuple[Event, ...] = ()
    shared: bool = False
    at: float = 0.0
