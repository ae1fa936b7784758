"""The life of one nsqd connection, as tables: what may be sent or may arrive when, and what answers what.

Every rule about *when* a command may be sent or an answer may arrive is in
``TRANSITIONS``; no other module compares states. A missing entry is an error:
ours if we were about to send, the peer's if it already sent.

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
from typing import Final

from nsq_ha.errors import LocalProtocolError, RemoteProtocolError
from nsq_ha.protocol import commands
from nsq_ha.protocol.frames import CLOSE_WAIT, OK


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


class Input(enum.Enum):
    """What can happen to a connection. ``SEND``: we send; ``RECV``: the peer sent. The values are for errors."""

    SEND_IDENTIFY = "IDENTIFY"
    SEND_UPGRADE = "TLS or compressed data"
    SEND_AUTH = "AUTH"
    SEND_SUBSCRIBE = "SUB"
    SEND_PUBLISH = "a publish"
    SEND_READY = "RDY"
    SEND_ANSWER = "FIN, REQ or TOUCH"
    SEND_CLOSE = "CLS"
    SEND_NOP = "NOP"
    RECV_IDENTITY = "an answer to IDENTIFY"
    RECV_UPGRADED = "a confirmation of TLS or compression"
    RECV_AUTHORIZED = "an answer to AUTH"
    RECV_SUBSCRIBED = "an answer to SUB"
    RECV_PUBLISHED = "an answer to a publish"
    RECV_CLOSE_WAIT = "an answer to CLS"
    RECV_HEARTBEAT = "a heartbeat"
    RECV_MESSAGE = "a message"
    RECV_REFUSAL = "an error"
    """An error frame that answers IDENTIFY, an upgrade, AUTH, SUB or CLS: the server closes after it."""
    RECV_PUBLISH_ERROR = "an error for a publish"
    """An error frame that answers a publish: the connection may continue."""
    RECV_ANSWER_ERROR = "an error for FIN, REQ or TOUCH"
    """``E_FIN_FAILED``, ``E_REQ_FAILED`` or ``E_TOUCH_FAILED``; answers no request."""
    RECV_STRAY_ERROR = "an error that answers nothing"
    """Any other error frame while no request waits: FIN, REQ, TOUCH and RDY can cause one before a close."""


class Request(enum.Enum):
    """A command that has an answer, or an upgrade that an answer confirms."""

    IDENTIFY = enum.auto()
    UPGRADE = enum.auto()
    AUTH = enum.auto()
    SUBSCRIBE = enum.auto()
    PUBLISH = enum.auto()
    CLOSE = enum.auto()


_S = ConnectionState
_I = Input
_OPEN: Final = tuple(state for state in ConnectionState if state not in (_S.NEW, _S.CLOSED))
_CONSUMING: Final = (_S.SUBSCRIBED, _S.DRAINING)
_WORKING: Final = (_S.READY, _S.SUBSCRIBING, *_CONSUMING)

TRANSITIONS: Final[Mapping[tuple[ConnectionState, Input], ConnectionState]] = MappingProxyType(
    {
        (_S.NEW, _I.SEND_IDENTIFY): _S.IDENTIFYING,
        (_S.IDENTIFYING, _I.RECV_IDENTITY): _S.READY,
        (_S.READY, _I.SEND_UPGRADE): _S.UPGRADING,
        (_S.UPGRADING, _I.RECV_UPGRADED): _S.READY,
        (_S.READY, _I.SEND_AUTH): _S.AUTHENTICATING,
        (_S.AUTHENTICATING, _I.RECV_AUTHORIZED): _S.READY,
        (_S.READY, _I.SEND_SUBSCRIBE): _S.SUBSCRIBING,
        (_S.SUBSCRIBING, _I.RECV_SUBSCRIBED): _S.SUBSCRIBED,
        (_S.SUBSCRIBED, _I.SEND_CLOSE): _S.DRAINING,
        (_S.DRAINING, _I.RECV_CLOSE_WAIT): _S.DRAINING,
        (_S.SUBSCRIBED, _I.SEND_READY): _S.SUBSCRIBED,
        # The server ignores RDY after CLS, so sending it is harmless.
        (_S.DRAINING, _I.SEND_READY): _S.DRAINING,
        **{
            (state, event): state
            for state in _CONSUMING
            for event in (_I.SEND_ANSWER, _I.RECV_MESSAGE, _I.RECV_ANSWER_ERROR, _I.RECV_STRAY_ERROR)
        },
        **{
            (state, event): state
            for state in _WORKING
            for event in (_I.SEND_PUBLISH, _I.RECV_PUBLISHED, _I.RECV_PUBLISH_ERROR)
        },
        **{(state, event): state for state in _OPEN for event in (_I.SEND_NOP, _I.RECV_HEARTBEAT)},
        **{
            (state, _I.RECV_REFUSAL): _S.CLOSED
            for state in (_S.IDENTIFYING, _S.UPGRADING, _S.AUTHENTICATING, _S.SUBSCRIBING, _S.DRAINING)
        },
    }
)
"""Maps state and input to the next state; missing pairs are forbidden."""

PUBLISHING: Final = tuple(state for state in ConnectionState if TRANSITIONS.get((state, Input.SEND_PUBLISH)) is state)
"""States in which a publish is allowed and changes nothing; using the table would double the cost of a publish."""


def advance(state: ConnectionState, event: Input) -> ConnectionState:
    """Return the state after ``event``.

    Raises:
        LocalProtocolError: We tried to send what ``state`` forbids; nothing
            was written and the connection is still good.
        RemoteProtocolError: The peer sent what ``state`` forbids; the
            connection must be dropped.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        if event.name.startswith("RECV_"):
            raise RemoteProtocolError(f"nsqd sent {event.value} {state.value}") from None
        raise LocalProtocolError(f"{event.value} cannot be sent {state.value}") from None


SENDS: Final[dict[type[commands.Command], tuple[Input, Request | None]]] = {
    commands.Identify: (Input.SEND_IDENTIFY, Request.IDENTIFY),
    commands.Auth: (Input.SEND_AUTH, Request.AUTH),
    **dict.fromkeys(
        (commands.Sub, commands.SubOrdered, commands.SubAdvanced), (Input.SEND_SUBSCRIBE, Request.SUBSCRIBE)
    ),
    commands.Close: (Input.SEND_CLOSE, Request.CLOSE),
    commands.Ready: (Input.SEND_READY, None),
    **dict.fromkeys((commands.Finish, commands.Requeue, commands.Touch), (Input.SEND_ANSWER, None)),
    commands.Nop: (Input.SEND_NOP, None),
    **dict.fromkeys(commands.PUBLISHES, (Input.SEND_PUBLISH, Request.PUBLISH)),
}
"""What sending a command is for the state, and the request that its answer belongs to. None if it has no answer."""

ANSWERED: Final[dict[Request, Input]] = {
    Request.IDENTIFY: Input.RECV_IDENTITY,
    Request.UPGRADE: Input.RECV_UPGRADED,
    Request.AUTH: Input.RECV_AUTHORIZED,
    Request.SUBSCRIBE: Input.RECV_SUBSCRIBED,
    Request.PUBLISH: Input.RECV_PUBLISHED,
    Request.CLOSE: Input.RECV_CLOSE_WAIT,
}
"""What an answer to a request is for the state."""

_TRACED_BYTES: Final = 30


def is_answer(request: Request, data: bytes) -> bool:
    """Return whether ``data`` can answer ``request``; JSON is decoded by the caller."""
    if request is Request.PUBLISH:
        return data == OK or (len(data) == _TRACED_BYTES and data.startswith(OK))
    if request is Request.CLOSE:
        return data == CLOSE_WAIT
    if request is Request.IDENTIFY:
        return data == OK or data.startswith(b"{")
    if request is Request.AUTH:
        return data.startswith(b"{")
    return data == OK
