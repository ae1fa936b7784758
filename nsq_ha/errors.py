"""Every error of nsq_ha, and the table of the server's error codes.

The tree::

    NsqError
    ├── ConfigError(ValueError)          wrong arguments; raised before any I/O
    ├── ClosedError                      the object was closed, or its supervisor died
    ├── ProtocolError
    │   ├── LocalProtocolError           we broke a rule; nothing was sent
    │   └── RemoteProtocolError          the peer broke one; its connection is dropped
    ├── TransportError
    │   ├── ConnectError                 no connection could be made
    │   ├── ConnectionLostError          it was there and went
    │   └── ResponseTimeoutError(TimeoutError)   it is there and does not answer
    ├── DiscoveryError
    │   ├── LookupUnavailableError       no nsqlookupd gave a usable answer
    │   ├── TopicNotFoundError           every nsqlookupd says there is no such topic
    │   └── NoLeaderError                the partition has no leader that may be used
    ├── ServerError(code, detail)        an error frame, see ``SERVER_ERRORS``
    ├── PublishError                     what a publish raises once retries are spent
    ├── DataLossError                    a range of offsets is not, or not any more, in the log
    └── SparkUnavailableError            Java or PySpark is missing; says what to install

Callers branch on class attributes (``retriable``, ``stale_leader``), never on
names or texts. Whether a connection survives an error frame is told by the end
of its stream alone: the same code is fatal for one command and not for another.

Source: protocol reference 5, 6, 7, 10; failures reference 1.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nsq_ha.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping


class NsqError(Exception):
    """The root: ``except NsqError`` catches all that this library raises on purpose.

    Its texts quote servers, and a server may send back the secret that it was
    given: secrets are replaced here, for all errors and for all logs of them.
    """

    retriable: bool = False
    """True when the same call may succeed a little later, unchanged."""

    stale_leader: bool = False
    """True when the partition's leader must be looked up again before a retry."""

    def __init__(self, *arguments: object) -> None:
        """Keep the arguments; texts lose their secrets."""
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in arguments))


class ConfigError(NsqError, ValueError):
    """An argument or option is wrong. Raised before any I/O: correct the call."""


class ClosedError(NsqError):
    """The object was closed, or its supervisor died (then ``__cause__`` tells why).

    Make a new producer or consumer.
    """


class ProtocolError(NsqError):
    """A rule of the wire protocol was broken, by us or by the peer."""


class LocalProtocolError(ProtocolError):
    """We were about to break a rule. Nothing was written; the connection is still good."""


class RemoteProtocolError(ProtocolError):
    """The peer broke a rule. Its connection is dropped, since nothing after it can be trusted."""

    retriable = True
    stale_leader = True


class TransportError(NsqError):
    """The network or the peer's process failed us."""

    retriable = True
    stale_leader = True


class ConnectError(TransportError):
    """No connection to an nsqd could be made (refused, unreachable, TLS, time limit)."""


class ConnectionLostError(TransportError):
    """An open connection went: what it had been sent and had not answered is in doubt."""


class ResponseTimeoutError(TransportError, TimeoutError):
    """A peer that is connected did not answer in time."""


class DiscoveryError(NsqError):
    """The nsqlookupds did not give what is needed."""

    retriable = True
    stale_leader = True


class LookupUnavailableError(DiscoveryError):
    """No nsqlookupd gave a usable answer.

    Attributes:
        causes: One ``(address, reason)`` for each nsqlookupd that was asked.
    """

    def __init__(self, message: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        """Keep the message and what each nsqlookupd did."""
        told = "; ".join(f"{address}: {reason}" for address, reason in causes)
        super().__init__(f"{message} ({told})" if told else message)
        self.causes = tuple((address, redact(reason)) for address, reason in causes)


class TopicNotFoundError(DiscoveryError):
    """No nsqlookupd knows the topic: create it (``nsq-ha topic create``); publishing never does."""


class NoLeaderError(DiscoveryError):
    """The partition has no leader at the moment (fail-over, writes disabled, not enough replicas)."""


class ServerError(NsqError):
    """An error frame of nsqd.

    Attributes:
        code: First word of the frame, such as ``E_BAD_TOPIC``; compared exactly.
        detail: The rest, decoded with replacement of what is not UTF-8; may be empty. Secrets are replaced in it.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        """Keep code and detail; control characters are escaped in the text that is shown."""
        self.code = code if code in SERVER_ERRORS else redact(code)
        self.detail = redact(detail)
        super().__init__(_printable(self._text()))

    def _text(self) -> str:
        """Return the text to show."""
        return f"{self.code} {self.detail}".strip()


def _printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that no terminal or log viewer obeys them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class NotLeaderError(ServerError):
    """The partition's leader moved: look it up again, then retry.

    nsqd sends it both fatal (SUB, FIN) and not (PUB).
    """

    retriable = True
    stale_leader = True


class NotWritableError(ServerError):
    """The leader may not write now (handing over, replica joining, no majority): retry after a pause."""

    retriable = True
    stale_leader = True


class TopicNotExistError(ServerError):
    """This node holds no replica of that partition: look up again before giving up."""

    retriable = True
    stale_leader = True

    def _text(self) -> str:
        return f"{super()._text()}: this nsqd has no such topic, or no replica of the partition"


class PublishFailedError(ServerError):
    """The node could not store the message (shutting down, local queue): not stored as far as it knows."""

    retriable = True
    stale_leader = True


class OverloadedError(ServerError):
    """Too much waits on that partition, or the node has too many connections: back off, then retry."""

    retriable = True


class MessageRefusedError(ServerError):
    """The message, its headers or its trace id are at fault: a retry would fail the same way."""


class BadNameError(ServerError):
    """Topic, channel or partition of the command is malformed: correct it."""


class InvalidCommandError(ServerError):
    """The command was wrong or came in the wrong state: a bug of ours, or an old server."""


class TlsRequiredError(ServerError):
    """nsqd accepts nothing outside TLS (it runs with ``-tls-required``): set ``tls=TlsConfig(...)``."""


class SubscribeRefusedError(ServerError):
    """The subscription is of the wrong kind for the topic; the text says what to change."""

    def _text(self) -> str:
        hint = _SUBSCRIBE_HINTS.get(self.code)
        return super()._text() if hint is None else f"{super()._text()}: {hint}"


class ChannelNotRegisteredError(SubscribeRefusedError):
    """The topic does not create channels by itself: register the channel at the nsqlookupd first."""


class AuthError(ServerError):
    """Authentication or permission: give the right secret; a retry fails the same way."""


class NotInFlightError(ServerError):
    """FIN, REQ or TOUCH of a message that is no longer this connection's: it was or will be delivered again."""

    def _text(self) -> str:
        """Return the text with the message's id as a number; the partitioned nsqd lists its bytes."""
        found = _REFUSED_ANSWER.fullmatch(self.detail)
        if found is None:
            return super()._text()
        answer, listed, reason = found.groups()
        internal_id = int.from_bytes([int(number) & 255 for number in listed.split()[:8]], "big")
        why = next((words for start, words in _REFUSED_BECAUSE.items() if reason.startswith(start)), reason)
        return f"nsqd refused {answer} of message id={internal_id:#x}, since {why} ({self.code})"


_REFUSED_ANSWER: Final = re.compile(
    r"(FIN|REQ|TOUCH) \[(\d{1,3}(?: \d{1,3}){15})\] failed (?:ErrType:\d+ ErrCode:\d+ : )?(.*)", re.DOTALL
)
_REFUSED_BECAUSE: Final = MappingProxyType(
    {
        "Message ID not in flight": "it is no longer in flight: it timed out, or was answered before",
        "client does not own message": "it has been delivered to another connection, or is requeued",
        "Message is deferred": "it is already requeued with a delay",
        "Message too much requeue": "it was requeued too often in a short time",
        "Too much deferred messages": "too many messages of the channel are requeued with a delay",
    }
)
"""Beginning of the server's reason to what it means."""

_SUBSCRIBE_HINTS: Final = MappingProxyType(
    {
        "E_SUB_ORDER_IS_MUST": "the topic is ordered, read it with lookupd= and ordered='auto' or ordered=True",
        "E_SUB_EXTEND_NEED": "the topic is extended, read it with lookupd=, which says so",
        "E_SUB_EXTEND_FORBIDDON": "the topic is no longer extended, it must be looked up again",
        "E_SUB_CHANNEL_NOT_REGISTERED": "create the channel at an nsqlookupd (POST /channel/create) and wait some"
        " seconds, or create the topic without -register-channels",
    }
)
"""What to change, by code."""


SERVER_ERRORS: Final[Mapping[str, type[ServerError]]] = MappingProxyType(
    {
        "E_FAILED_ON_NOT_LEADER": NotLeaderError,
        "E_FAILED_ON_NOT_WRITABLE": NotWritableError,
        "E_TOPIC_NOT_EXIST": TopicNotExistError,
        "E_PUB_FAILED": PublishFailedError,
        "E_MPUB_FAILED": PublishFailedError,
        "E_PUB_TOO_MUCH_WAITING": OverloadedError,
        "E_BAD_MESSAGE": MessageRefusedError,
        "E_BAD_BODY": MessageRefusedError,
        "E_EXT_NOT_SUPPORT": MessageRefusedError,
        "E_INVALID_JSON_HEADER": MessageRefusedError,
        "INVALID_TRACE_ID": MessageRefusedError,
        "E_BAD_TAG": MessageRefusedError,
        "E_BAD_TOPIC": BadNameError,
        "E_BAD_CHANNEL": BadNameError,
        "E_BAD_PARTITION": BadNameError,
        "E_INVALID": InvalidCommandError,
        "E_BAD_PROTOCOL": InvalidCommandError,
        "E_IDENTIFY_FAILED": InvalidCommandError,
        "E_CREATE_TOPIC_FAILED": InvalidCommandError,
        "E_BAD_EXT": InvalidCommandError,
        "E_SUB_ORDER_IS_MUST": SubscribeRefusedError,
        "E_SUB_EXTEND_NEED": SubscribeRefusedError,
        "E_SUB_EXTEND_FORBIDDON": SubscribeRefusedError,
        "E_SUB_CHANNEL_NOT_REGISTERED": ChannelNotRegisteredError,
        "E_AUTH_DISABLED": AuthError,
        "E_AUTH_FAILED": AuthError,
        "E_AUTH_FIRST": AuthError,
        "E_AUTH_ERROR": AuthError,
        "E_UNAUTHORIZED": AuthError,
        "E_FIN_FAILED": NotInFlightError,
        "E_REQ_FAILED": NotInFlightError,
        "E_TOUCH_FAILED": NotInFlightError,
    }
)
"""Code of an error frame to its class; a code not listed is a plain :class:`ServerError`."""

_TOO_MANY_CONNECTIONS: Final = "too much client connections"
_NO_PARTITION: Final = "multi partition: -1"
"""End of the text that a command without a partition gets on a topic with several."""
_TLS_REQUIRED: Final = "(TLS required)"
"""End of the text of an ``E_INVALID`` that every command gets outside TLS."""


def server_error(data: bytes) -> ServerError:
    """Make the error for the data of one error frame.

    The code ends at the first blank, which is there even when no text follows.
    Texts may hold raw bytes (a bad REQ echoes 16 id bytes), so they are decoded
    with replacement. One frame of the server has no code at all and is known by
    its text; so is one that shares its code with others.

    Source: protocol reference 1.
    """
    text = data.decode("utf-8", "replace")
    if text.startswith(_TOO_MANY_CONNECTIONS):
        return OverloadedError("", text)
    code, _, detail = text.partition(" ")
    if code not in SERVER_ERRORS:
        code, _, detail = redact(text).partition(" ")  # before it is split: a secret may hold a blank
    if code == "E_INVALID" and detail.endswith(_TLS_REQUIRED):
        return TlsRequiredError(code, f"{detail}: nsqd runs with -tls-required, give tls=TlsConfig(...)")
    if code == "E_BAD_PARTITION" and detail.endswith(_NO_PARTITION):
        detail += ": the server is partitioned, give lookupd= with the address of an nsqlookupd instead of nsqd="
    return SERVER_ERRORS.get(code, ServerError)(code, detail)


class PublishError(NsqError):
    """A publish did not succeed within its limits; ``__cause__`` is the last attempt's error.

    Attributes:
        topic: The topic.
        partition: The partition it was meant for; None when none was chosen yet.
        attempts: How often it was written to a connection; 0 when never.
        maybe_stored: False: the server surely does not hold the message, send
            it again freely. True: at least one attempt got no answer, so it may
            be stored; sending again may store it twice. One attempt in doubt
            makes the whole call in doubt.
    """

    def __init__(self, message: str, *, topic: str, partition: int | None, attempts: int, maybe_stored: bool) -> None:
        """Keep the facts; the message ends with what is known about the storage."""
        where = topic if partition is None else f"{topic}-{partition}"
        known = "it may be stored" if maybe_stored else "it is not stored"
        super().__init__(f"publish to {where} failed after {attempts} attempt(s), {known}: {message}")
        self.topic = topic
        self.partition = partition
        self.attempts = attempts
        self.maybe_stored = maybe_stored


class DataLossError(NsqError):
    """Messages between two planned offsets cannot be had: cleaned, never committed, or of another log.

    Reading on would leave them out in silence. Choose offsets that exist, or
    accept the gap by name (the Spark option ``failOnDataLoss=false``).
    """


class SparkUnavailableError(NsqError):
    """Spark cannot run here. The message is one line and names what to install or set."""
