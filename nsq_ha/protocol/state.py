"""The life of one nsqd connection: what may be sent when, and what answers what.

Every rule about *when* a command may be sent is in ``SENDS``; no other module compares states. What may arrive follows
from the requests that wait for an answer. What does not fit is an error: ours if we were about to send, the peer's if
it already sent.

Only handshakes, subscriptions and control commands use the table; messages and
publishes on a running connection do not.

Source: server protocol 1, 3-7; youzan/nsq ``nsqd/client_v2.go`` states and
``nsqdserver/protocol_v2.go`` checks of them. This is stricter than the server in
one point: the server accepts connections without IDENTIFY, but this client sends
it first, since the layout of messages depends on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from nsq_ha.errors import LocalProtocolError, RemoteProtocolError
from nsq_ha.protocol import commands
from nsq_ha.protocol.frames import CLOSE_WAIT, OK
from nsq_ha.protocol.messages import TRACED_BYTES


class ConnectionState(enum.Enum):
    """Where a connection stands; the values are for errors. Only ``CLOSED`` is final."""

    NEW = "before IDENTIFY"
    """Nothing was sent yet, not even the magic."""
    IDENTIFYING = "before IDENTIFY was answered"
    """IDENTIFY was sent, its answer is outstanding."""
    READY = "on a connection that is not subscribed"
    """AUTH, publishing and subscribing are allowed."""
    UPGRADING = "before TLS or compression was confirmed"
    """TLS or compression was switched on; its ``OK`` is outstanding."""
    AUTHENTICATING = "before AUTH was answered"
    """AUTH was sent, its answer is outstanding."""
    SUBSCRIBING = "before SUB was answered"
    """SUB was sent, its answer is outstanding."""
    SUBSCRIBED = "on a subscribed connection"
    """Messages may arrive."""
    DRAINING = "after CLS"
    """CLS was sent; FIN, REQ and TOUCH are still allowed, and messages on their way still arrive."""
    CLOSED = "after the end of the connection"
    """The server refused a command and closes, or it broke a rule."""


class Request(enum.Enum):
    """A command that has an answer, or an upgrade that an answer confirms."""

    IDENTIFY = enum.auto()
    UPGRADE = enum.auto()
    AUTH = enum.auto()
    SUBSCRIBE = enum.auto()
    PUBLISH = enum.auto()
    CLOSE = enum.auto()


class Sending(NamedTuple):
    """What sending is for the state.

    Attributes:
        allowed: The states in which it is allowed.
        request: What its answer belongs to. None if it has no answer.
        after: The state after it. None changes nothing.
    """

    allowed: tuple[ConnectionState, ...]
    request: Request | None = None
    after: ConnectionState | None = None


_S = ConnectionState
CONSUMING: Final = (_S.SUBSCRIBED, _S.DRAINING)
"""States in which messages may arrive, and errors that answer no request."""
OPEN: Final = tuple(state for state in ConnectionState if state not in (_S.NEW, _S.CLOSED))
"""States in which heartbeats may arrive."""

PUBLISHES: Final = Sending((_S.READY, _S.SUBSCRIBING, *CONSUMING), Request.PUBLISH)
SUBSCRIBES: Final = Sending((_S.READY,), Request.SUBSCRIBE, _S.SUBSCRIBING)
UPGRADES: Final = Sending((_S.READY,), Request.UPGRADE, _S.UPGRADING)

SENDS: Final[Mapping[type[commands.Command], Sending]] = MappingProxyType(
    {
        commands.Identify: Sending((_S.NEW,), Request.IDENTIFY, _S.IDENTIFYING),
        commands.Auth: Sending((_S.READY,), Request.AUTH, _S.AUTHENTICATING),
        **dict.fromkeys((commands.Sub, commands.SubOrdered, commands.SubAdvanced), SUBSCRIBES),
        commands.Close: Sending((_S.SUBSCRIBED,), Request.CLOSE, _S.DRAINING),
        # The server ignores RDY after CLS, so sending it is harmless.
        **dict.fromkeys((commands.Ready, commands.Finish, commands.Requeue, commands.Touch), Sending(CONSUMING)),
        commands.Nop: Sending(OPEN),
        **dict.fromkeys(commands.PUBLISHES, PUBLISHES),
    }
)
"""What sending each command is for the state."""

ANSWERED: Final[Mapping[Request, ConnectionState]] = MappingProxyType(
    {
        Request.IDENTIFY: _S.READY,
        Request.UPGRADE: _S.READY,
        Request.AUTH: _S.READY,
        Request.SUBSCRIBE: _S.SUBSCRIBED,
    }
)
"""The state after an answer to a request; other answers change nothing."""


def after_sending(state: ConnectionState, sending: Sending, what: str) -> ConnectionState:
    """Return the state after ``sending``, which errors call ``what``.

    Raises:
        LocalProtocolError: ``state`` forbids it; nothing was written and the connection is still good.
    """
    if state not in sending.allowed:
        raise LocalProtocolError(f"{what} cannot be sent {state.value}")
    return sending.after or state


def check_arrival(state: ConnectionState, allowed: tuple[ConnectionState, ...], what: str) -> None:
    """Check that ``what`` may arrive in ``state``.

    Raises:
        RemoteProtocolError: It may not; the connection must be dropped.
    """
    if state not in allowed:
        raise RemoteProtocolError(f"nsqd sent {what} {state.value}")


def is_answer(request: Request, data: bytes) -> bool:
    """Return whether ``data`` can answer ``request``; JSON is decoded by the caller."""
    if request is Request.PUBLISH:
        return data == OK or (len(data) == TRACED_BYTES and data.startswith(OK))
    if request is Request.CLOSE:
        return data == CLOSE_WAIT
    if request is Request.IDENTIFY:
        return data == OK or data.startswith(b"{")
    if request is Request.AUTH:
        return data.startswith(b"{")
    return data == OK
