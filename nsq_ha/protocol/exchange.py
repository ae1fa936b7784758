"""Tables for a client connection: which commands have an answer, which answers fit, and the result of one read.

Owns tables, containers and the meaning of a single frame; ``protocol.client`` owns their order.

Source: server protocol 1, 3, 5, 7.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from nsq_ha.errors import OverloadedError, RemoteProtocolError, ServerError, server_error
from nsq_ha.message import Message
from nsq_ha.protocol import commands
from nsq_ha.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK
from nsq_ha.protocol.messages import DamagedMessage
from nsq_ha.protocol.refusals import with_advice
from nsq_ha.protocol.state import Input
from nsq_ha.redaction import excerpt

NEVER_ANSWERS: Final = frozenset(("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"))
"""Codes of errors that answer no request."""

PUBLISH_REFUSALS: Final = frozenset(
    (
        "E_AUTH_ERROR",
        "E_AUTH_FAILED",
        "E_AUTH_FIRST",
        "E_BAD_BODY",
        "E_BAD_MESSAGE",
        "E_BAD_PARTITION",
        "E_BAD_TOPIC",
        "E_EXT_NOT_SUPPORT",
        "E_FAILED_ON_NOT_LEADER",
        "E_FAILED_ON_NOT_WRITABLE",
        "E_INVALID",
        "E_INVALID_JSON_HEADER",
        "E_MPUB_FAILED",
        "E_PUB_FAILED",
        "E_PUB_TOO_MUCH_WAITING",
        "E_TOPIC_NOT_EXIST",
        "E_UNAUTHORIZED",
        "INVALID_TRACE_ID",
    )
)
"""Error codes that refuse a publish, of partitioned and upstream nsqds."""

_TRACED_BYTES: Final = 30
_MAX_ERROR_BYTES: Final = 4096  # Maximum length of an error text; ids and names take far less.


class Request(enum.Enum):
    """A command that has an answer, or an upgrade that an answer confirms."""

    IDENTIFY = enum.auto()
    UPGRADE = enum.auto()
    AUTH = enum.auto()
    SUBSCRIBE = enum.auto()
    PUBLISH = enum.auto()
    CLOSE = enum.auto()


class Received(msgspec.Struct, eq=False):
    """The result of one :meth:`ClientProtocol.receive`, each kind in order.

    Attributes:
        messages: The messages.
        answers: One entry for each answered request, oldest first: the data of
            its response, or the error.
        heartbeats: Number of heartbeats; answer them with one ``NOP``.
        refusals: Errors that answer no request: failed FIN, REQ and TOUCH (the
            message is redelivered), and on a subscribed connection an error
            before the server closes it.
        damaged: Messages that cannot be decoded; they are in flight and must be
            answered like others.
    """

    messages: list[Message] = []
    answers: list[bytes | ServerError] = []
    heartbeats: int = 0
    refusals: list[ServerError] = []
    damaged: list[DamagedMessage] = []


SENDS: Final[dict[type[commands.Command], tuple[Input, Request | None]]] = {
    commands.Identify: (Input.SEND_IDENTIFY, Request.IDENTIFY),
    commands.Auth: (Input.SEND_AUTH, Request.AUTH),
    commands.Sub: (Input.SEND_SUBSCRIBE, Request.SUBSCRIBE),
    commands.SubOrdered: (Input.SEND_SUBSCRIBE, Request.SUBSCRIBE),
    commands.SubAdvanced: (Input.SEND_SUBSCRIBE, Request.SUBSCRIBE),
    commands.Close: (Input.SEND_CLOSE, Request.CLOSE),
    commands.Ready: (Input.SEND_READY, None),
    commands.Finish: (Input.SEND_ANSWER, None),
    commands.Requeue: (Input.SEND_ANSWER, None),
    commands.Touch: (Input.SEND_ANSWER, None),
    commands.Nop: (Input.SEND_NOP, None),
    commands.Pub: (Input.SEND_PUBLISH, Request.PUBLISH),
    commands.PubTrace: (Input.SEND_PUBLISH, Request.PUBLISH),
    commands.PubExt: (Input.SEND_PUBLISH, Request.PUBLISH),
    commands.Mpub: (Input.SEND_PUBLISH, Request.PUBLISH),
    commands.MpubTrace: (Input.SEND_PUBLISH, Request.PUBLISH),
    commands.MpubExt: (Input.SEND_PUBLISH, Request.PUBLISH),
}

ANSWERED: Final[dict[Request, Input]] = {
    Request.IDENTIFY: Input.RECV_IDENTITY,
    Request.UPGRADE: Input.RECV_UPGRADED,
    Request.AUTH: Input.RECV_AUTHORIZED,
    Request.SUBSCRIBE: Input.RECV_SUBSCRIBED,
    Request.PUBLISH: Input.RECV_PUBLISHED,
    Request.CLOSE: Input.RECV_CLOSE_WAIT,
}


class Run:
    """Requests of one kind in a row, as a count, since there may be thousands of publishes."""

    __slots__ = ("count", "kind")

    def __init__(self, kind: Request, count: int) -> None:
        self.kind: Request = kind
        self.count: int = count


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


def refuses_publish(error: ServerError) -> bool:
    """Return whether ``error`` means that a publish was not stored.

    An unknown code, or one of another command, says nothing about the publish;
    later answers on this connection cannot be trusted either.
    """
    return error.code in PUBLISH_REFUSALS or isinstance(error, OverloadedError)


def read_error(data: bytes) -> ServerError:
    """Return the error in an error frame.

    Raises:
        RemoteProtocolError: It has no error.
    """
    if not data:
        raise RemoteProtocolError("nsqd sent an empty error frame")
    if data.startswith(OK) or data in (HEARTBEAT, CLOSE_WAIT):
        raise RemoteProtocolError(
            f"an error frame contains {excerpt(data)}, which is not an error: the stream is damaged"
        )
    return with_advice(server_error(data[:_MAX_ERROR_BYTES]))
