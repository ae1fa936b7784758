"""A case of the kit: what a hostile nsqd or nsqlookupd does, as data."""

import asyncio
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from nsq_ha.protocol import Command, Layout, Ready
from nsq_ha.protocol.commands import Identify
from tests.support.nsqd import Peer, Publish, Script, Subscribe

Data = bytes | Callable[[Layout], bytes]
"""What a hostile nsqd writes; a function if it depends on the layout of messages."""

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""How a hostile nsqlookupd answers a request."""

GOOD: Final = b"a good one"
"""The body of a good message that follows a bad one."""

BOTH: Final = frozenset({"consumer", "producer"})
CONSUMER: Final = frozenset({"consumer"})
PRODUCER: Final = frozenset({"producer"})


class Moment(enum.Enum):
    """When a hostile nsqd does it."""

    HELLO = enum.auto()
    """In place of the answer to IDENTIFY."""
    ANSWER = enum.auto()
    """In place of the answer to SUB, or to a publish."""
    WORK = enum.auto()
    """When RDY has come, or before the answer to a publish."""


class Then(enum.Enum):
    """What follows."""

    STAY = enum.auto()
    CLOSE = enum.auto()
    RESET = enum.auto()
    HUSH = enum.auto()
    """Nothing more is written, not even heartbeats."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile input.

    Attributes:
        group: The class of bad input, a heading of the table.
        name: Its name in the group.
        data: What a hostile nsqd writes.
        moment: When.
        then: What follows.
        chunk: Bytes of each write; 0 for all at once.
        clients: Whom it concerns.
        extended: The topic has headers.
        answer: What a hostile nsqlookupd answers, with its status. None for an nsqd's case.
        behave: How it behaves instead of answering.
        ends: The refusal is for good, so a consumer ends with its error. None if it may, by the kind of cluster.
        has_good: A good message follows, see :data:`GOOD`, which must be handed out.
        reconnects: Most connections a second to the hostile nsqd, after the first of each partition.
    """

    group: str
    name: str
    data: Data = b""
    moment: Moment = Moment.WORK
    then: Then = Then.STAY
    chunk: int = 0
    clients: frozenset[str] = BOTH
    extended: bool = False
    answer: tuple[bytes, int] | None = None
    behave: Behave | None = None
    ends: bool | None = False
    has_good: bool = False
    reconnects: float = 2.0

    @property
    def is_lookup(self) -> bool:
        """Whether an nsqlookupd is hostile, and no nsqd."""
        return self.answer is not None or self.behave is not None

    def script(self, layout: Layout, met: set[Peer] | None = None) -> Script:
        """Return what a hostile nsqd does; ``met`` gets the connections on which it was done."""
        data = self.data if isinstance(self.data, bytes) else self.data(layout)
        done: set[Peer] = set() if met is None else met

        def script(peer: Peer, command: Command) -> bool:
            if not _is_moment(self.moment, command) or (peer in done and self.moment is Moment.WORK):
                return peer in done and self.then is Then.HUSH
            done.add(peer)
            if self.then is Then.HUSH:
                peer.stop_heartbeats()
            pieces = (
                [data] if not self.chunk else [data[at : at + self.chunk] for at in range(0, len(data), self.chunk)]
            )
            _write(peer, iter(pieces), self.then)
            return self.moment is not Moment.WORK or self.then is not Then.STAY

        return script


def _is_moment(moment: Moment, command: Command) -> bool:
    if moment is Moment.HELLO:
        return isinstance(command, Identify)
    if moment is Moment.ANSWER:
        return isinstance(command, Subscribe + Publish)
    return isinstance(command, Publish) or (isinstance(command, Ready) and command.count > 0)


def _write(peer: Peer, pieces: Iterable[bytes], then: Then) -> None:
    """Write one piece each turn of the loop, then do what follows."""
    rest = iter(pieces)
    piece = next(rest, None)
    if piece is not None and not peer.has_gone:
        peer.write(piece)
        asyncio.get_running_loop().call_soon(_write, peer, rest, then)
    elif then is Then.CLOSE:
        peer.close()
    elif then is Then.RESET:
        peer.abort()
