"""Random commands for both clusters.

A case is a list of commands on one topic, with channels of its own. Commands
refer to things by position (the oldest held message, the second channel), never
by id, so that each side finds its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

CONNECTIONS: Final = 2
CHANNELS: Final = 2
MIN_COMMANDS: Final = 4
MAX_COMMANDS: Final = 12
"""Number of commands after the opening."""


@dataclass(frozen=True)
class Kind:
    """How a topic is created, and which commands it allows.

    Attributes:
        name: For reports.
        sync_every: Acknowledged messages that may wait in the buffer (``syncdisk``); 0 flushes each.
        ordered: Only ordered subscriptions.
        extended: Messages may carry headers.
        is_plain: The cluster is one of upstream's servers.
    """

    name: str
    sync_every: int = 0
    ordered: bool = False
    extended: bool = False
    is_plain: bool = False


KINDS: Final = (
    Kind("plain"),
    Kind("buffered", sync_every=1000),
    Kind("ordered", ordered=True),
    Kind("ordered-buffered", sync_every=1000, ordered=True),
    Kind("extended", extended=True),
)
UPSTREAM: Final = Kind("upstream", is_plain=True)
"""The only kind of a plain cluster."""


@dataclass(frozen=True)
class Publish:
    """PUB and its variants, on a permanent connection."""

    word: str
    count: int = 1


@dataclass(frozen=True)
class Subscribe:
    """SUB and its variants on a new connection, which replaces an older one; then RDY."""

    connection: int
    word: str
    channel: int
    ready: int
    start: str | None = None


@dataclass(frozen=True)
class Ready:
    """RDY."""

    connection: int
    count: int


@dataclass(frozen=True)
class Answer:
    """FIN, REQ or TOUCH for one message of a channel.

    Attributes:
        word: The command.
        channel: Number of the channel.
        which: The ``oldest`` or ``newest`` held message, one ``finished`` before, or an ``unknown`` one.
        delay_ms: The delay of REQ.
    """

    word: str
    channel: int
    which: str
    delay_ms: int = 0


@dataclass(frozen=True)
class Leave:
    """CLS, or the end of the connection."""

    connection: int
    word: str


@dataclass(frozen=True)
class Operate:
    """An operator's HTTP call on a channel."""

    path: str
    channel: int
    query: str = ""
    body: str = ""


@dataclass(frozen=True)
class Find:
    """``/message/get``; the position counts from the start of the case."""

    mode: str
    position: int


@dataclass(frozen=True)
class Stats:
    """``/stats``."""


@dataclass(frozen=True)
class Lookup:
    """``/lookup``."""

    access: str


@dataclass(frozen=True)
class Settle:
    """Wait until all acknowledged messages can be read on both sides."""


@dataclass(frozen=True)
class Wait:
    """Let time pass, for timeouts and delays."""

    seconds: float


@dataclass(frozen=True)
class Move:
    """Move the leader, and wait until it leads."""


Command = (
    Publish | Subscribe | Ready | Answer | Leave | Operate | Find | Stats | Lookup | Settle | Wait | Move
)  # fmt: skip

_CONNECTION: Final = st.integers(0, CONNECTIONS - 1)
_CHANNEL: Final = st.sampled_from((0, 0, 0, CHANNELS - 1))
_PATHS: Final = ("create", "delete", "pause", "unpause", "skip", "unskip", "empty", "emptydelayed")
_PLAIN_PATHS: Final = ("create", "pause", "unpause", "empty")
_STARTS: Final = (
    *("special:-1", "special:-2", "msgcount:1", "msgcount:3", "msgcount:6", "msgcount:99"),
    *("virtual_queue:0", "virtual_queue:33", "virtual_queue:99999", "timestamp:9000000000"),
    *("timestamp:-1", "bogus:1", "msgcount:x"),
)


def _publish(kind: Kind) -> SearchStrategy[Command]:
    if kind.is_plain:
        return st.builds(Publish, st.sampled_from(("PUB", "PUB", "MPUB", "DPUB")), st.integers(1, 4))
    words = ["PUB", "PUB", "PUB", "PUB_TRACE", "MPUB", "MPUB_TRACE"]
    words += ["PUB_EXT", "MPUB_EXT"] if kind.extended else ["PUB_EXT"]
    return st.builds(Publish, st.sampled_from(words), st.integers(1, 4))


def _subscribe(kind: Kind) -> SearchStrategy[Command]:
    ready = st.sampled_from((1, 1, 2, 10))
    if kind.is_plain:
        return st.builds(Subscribe, _CONNECTION, st.just("SUB"), _CHANNEL, ready)
    if kind.ordered:
        return st.builds(Subscribe, _CONNECTION, st.sampled_from(("SUB_ORDERED",) * 8 + ("SUB",)), _CHANNEL, ready)
    word = st.sampled_from(("SUB", "SUB", "SUB", "SUB_ADVANCED", "SUB_ORDERED"))
    somewhere = st.builds(Subscribe, _CONNECTION, st.just("SUB_ADVANCED"), _CHANNEL, ready, st.sampled_from(_STARTS))
    return st.one_of(st.builds(Subscribe, _CONNECTION, word, _CHANNEL, ready), somewhere)


def _opening(kind: Kind) -> SearchStrategy[list[Command]]:
    """Return commands that set up a channel with messages, or a reader."""
    words = ("MPUB",) if kind.is_plain else ("MPUB", "MPUB_TRACE")
    several = st.builds(Publish, st.sampled_from(words), st.integers(2, 5))
    made = st.just(Operate("/channel/create", 0))
    word = "SUB_ORDERED" if kind.ordered else "SUB"
    reader = st.builds(Subscribe, st.just(0), st.just(word), st.just(0), st.sampled_from((1, 3)))
    return st.one_of(
        st.tuples(made, several).map(list),
        st.tuples(reader, several).map(list),
        st.tuples(several, reader).map(list),
        st.tuples(made, several, st.just(Settle()), reader).map(list),
    )


def command(kind: Kind) -> SearchStrategy[Command]:
    """Return one random command for a topic of ``kind``."""
    publish, subscribe = _publish(kind), _subscribe(kind)
    answer = st.builds(
        Answer,
        st.sampled_from(("FIN", "FIN", "FIN", "REQ", "TOUCH")),
        _CHANNEL,
        st.sampled_from(("oldest", "oldest", "newest", "finished", "unknown")),
        st.sampled_from((0, 0, 400)),
    )
    paths = _PLAIN_PATHS if kind.is_plain else _PATHS
    operate = st.builds(Operate, st.sampled_from([f"/channel/{path}" for path in paths]), _CHANNEL)
    common = (
        st.builds(Ready, _CONNECTION, st.sampled_from((0, 1, 3))),
        st.builds(Leave, _CONNECTION, st.sampled_from(("CLS", "close"))),
        st.builds(Wait, st.sampled_from((0.5, 1.6))),
        st.builds(Lookup, st.sampled_from(("r", "w"))),
    )
    if kind.is_plain:
        return st.one_of(publish, publish, subscribe, answer, answer, answer, operate, st.builds(Stats), *common)
    offset = st.builds(Operate, st.just("/channel/setoffset"), _CHANNEL, st.just(""), st.sampled_from(_STARTS))
    order = st.builds(Operate, st.just("/channel/setorder"), _CHANNEL, st.sampled_from(("true", "false", "x")))
    find = st.builds(Find, st.sampled_from(("count", "count", "virtual_offset", "id")), st.integers(-1, 9))
    return st.one_of(
        *(publish, publish, subscribe, answer, answer, answer, operate, offset, order, find),
        *(st.builds(Stats), st.builds(Stats), st.builds(Settle)),
        *common,
        st.builds(Move),
    )


def case(kind: Kind) -> SearchStrategy[list[Command]]:
    """Return a random list of commands."""
    rest = st.lists(command(kind), min_size=MIN_COMMANDS, max_size=MAX_COMMANDS)
    return st.builds(lambda opening, rest: [*opening, *rest], _opening(kind), rest)
