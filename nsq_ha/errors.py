"""All errors of nsq_ha, and the table of the server's error codes.

The tree::

    NsqError
    ├── ConfigError(ValueError)          wrong arguments; raised before any I/O
    ├── ClosedError                      the object was closed, or its background task failed
    ├── ProtocolError
    │   ├── LocalProtocolError           we broke a rule; nothing was sent
    │   └── RemoteProtocolError          the peer broke one; its connection is dropped
    ├── TransportError
    │   ├── ConnectError                 no connection could be made
    │   ├── ConnectionLostError          an open connection was lost
    │   └── ResponseTimeoutError(TimeoutError)   the peer is connected and does not answer
    ├── DiscoveryError
    │   ├── LookupUnavailableError       no nsqlookupd gave a usable answer
    │   ├── TopicNotFoundError           every nsqlookupd says there is no such topic
    │   ├── ChannelNotFoundError         the topic has no such channel
    │   ├── NoLeaderError                the partition has no usable leader
    │   └── ChangeIncompleteError        a change of the cluster is not complete in time, and may still happen
    ├── ServerError(code, detail)        an error frame, see ``SERVER_ERRORS``
    ├── PublishError                     a publish failed and is not retried any more
    ├── BodyError(ValueError)            the body of a message cannot be decoded
    ├── WorkerError                      a consumer of a worker failed; ``__cause__`` is its error
    ├── DeadLetterError                  a message is no dead letter that can be read or replayed
    ├── DataLossError                    a range of offsets is not in the log, or no longer
    └── SparkUnavailableError            Java or PySpark is missing; says what to install

Callers branch on class attributes (``retriable``, ``stale_leader``), never on
names or texts. An error code does not say whether the connection stays open, since
the same code is fatal for one command and not for another; only the end of the
stream does.

Source: server protocol 5-7; server failures 1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from nsq_ha.base.redaction import MOST_READ, beginning, redact


class NsqError(Exception):
    """Base class of all errors that this library raises on purpose.

    Texts may quote servers, and a server may send back the secret that it received.
    So secrets are replaced here, for all errors and their logs.
    """

    retriable: bool = False
    """True if the same call may succeed a little later."""

    stale_leader: bool = False
    """True if the partition's leader must be looked up before a retry."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact(each) if isinstance(each, str) else each for each in arguments))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy what the error is, since ``__init__`` takes other arguments than it keeps in ``args``."""
        cause = {"__cause__": self.__cause__} if isinstance(self.__cause__, NsqError) else {}
        return _unpickled, (type(self), self.args), {**vars(self), **cause}


def _unpickled(kind: type[NsqError], arguments: tuple[object, ...]) -> NsqError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


class ConfigError(NsqError, ValueError):
    """An argument or option is wrong. Raised before any I/O: correct the call."""


class ClosedError(NsqError):
    """The object was closed, or its background task failed (then ``__cause__`` is the reason).

    Create a new producer or consumer.
    """


class ProtocolError(NsqError):
    """The wire protocol was violated, by this library or by the peer."""


class LocalProtocolError(ProtocolError):
    """A call would have violated the protocol. Nothing was written, and the connection is unaffected."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol. The connection is closed, since nothing after it can be trusted."""

    retriable = True
    stale_leader = True


class TransportError(NsqError):
    """The network or the peer's process failed."""

    retriable = True
    stale_leader = True


class ConnectError(TransportError):
    """Connecting to an nsqd failed (refused, unreachable, TLS, time limit)."""


class ConnectionLostError(TransportError):
    """An open connection was lost. Unanswered commands may or may not have been executed."""


class ResponseTimeoutError(TransportError, TimeoutError):
    """A connected peer did not answer in time."""


class DiscoveryError(NsqError):
    """The nsqlookupds did not provide the required information."""

    retriable = True
    stale_leader = True


class LookupUnavailableError(DiscoveryError):
    """No nsqlookupd gave a usable answer.

    Attributes:
        causes: One pair ``(address, reason)`` for each nsqlookupd that was asked.
    """

    def __init__(self, message: str, causes: tuple[tuple[str, str], ...] = ()) -> None:
        listed = "; ".join(f"{address}: {reason}" for address, reason in causes)
        super().__init__(f"{message} ({listed})" if listed else message)
        self.causes: tuple[tuple[str, str], ...] = tuple((address, redact(reason)) for address, reason in causes)


class TopicNotFoundError(DiscoveryError):
    """No nsqlookupd knows the topic: create it (``nsq-ha topic create``), since publishing does not."""

    @classmethod
    def named(cls, topic: str, names: Iterable[str] = ()) -> TopicNotFoundError:
        """Return the error for ``topic``; its text says what to do, and which of the ``names`` may be meant."""
        near = difflib.get_close_matches(topic, names, n=1, cutoff=0.8)
        meant = f"did you mean {near[0]}? Otherwise " if near else ""
        return cls(f"there is no topic {topic!r}: {meant}create it (nsq-ha topic create {topic})")


class NoLeaderError(DiscoveryError):
    """The partition has no leader now (failover, writes disabled, not enough replicas)."""


class ChannelNotFoundError(DiscoveryError):
    """The topic has no such channel, or not in every partition: correct the name, or create the channel."""


class ChangeIncompleteError(DiscoveryError):
    """A change of an :class:`~nsq_ha.admin.AdminClient` is not complete within its time, and may still happen.

    Every change may be repeated; that completes it.

    Attributes:
        causes: One pair ``(place, reason)`` for each partition or server that does not show the change. A place is
            ``partition 1``, ``nsqd HOST:PORT`` or ``nsqlookupd URL``. The text has the first 16.
        done: The places that show it.
    """

    def __init__(self, message: str, causes: tuple[tuple[str, str], ...] = (), done: tuple[str, ...] = ()) -> None:
        text = few("; ", [f"{place}: {reason}" for place, reason in causes])
        known = f"; done: {few(', ', done)}" if done else ""
        super().__init__(f"{message}: {text}{known}. {MAY_STILL_HAPPEN}")
        self.causes: tuple[tuple[str, str], ...] = tuple((place, redact(reason)) for place, reason in causes)
        self.done: tuple[str, ...] = done


def few(separator: str, texts: Sequence[str], most: int = 16) -> str:
    """Return the first texts, and how many more there are: a topic may have 1,024 partitions."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return separator.join((*texts[:most], *more))


MAY_STILL_HAPPEN: Final = "The change may still happen; repeat the call to complete it"
"""What follows from a change that was not confirmed in time."""


class ServerError(NsqError):
    """An error frame of nsqd.

    Attributes:
        code: First word of the frame, such as ``E_BAD_TOPIC``; compared exactly.
        detail: The rest; may be empty. Invalid UTF-8 and secrets are replaced.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        self.code: str = code if code in SERVER_ERRORS else redact(code)
        self.detail: str = redact(detail)
        super().__init__(_printable(self._text()))

    def _text(self) -> str:
        """Return the text to show."""
        text, hint = f"{self.code} {self.detail}".strip(), _HINTS.get(self.code)
        return text if hint is None else f"{text}: {hint}"


def _printable(text: str) -> str:
    """Return ``text`` with control characters escaped, so that no terminal or log viewer executes them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class NotLeaderError(ServerError):
    """The partition's leader moved: look it up again, then retry.

    nsqd sends this as a fatal error (SUB, FIN) and as a non-fatal one (PUB).
    """

    retriable = True
    stale_leader = True


class NotWritableError(ServerError):
    """The leader cannot write now (handing over, replica joining, no majority): retry after a pause."""

    retriable = True
    stale_leader = True


class TopicNotExistError(ServerError):
    """This node has no replica of the partition: look the topic up again."""

    retriable = True
    stale_leader = True

    def _text(self) -> str:
        return (
            super()._text()
            if self.detail
            else f"{self.code}: this nsqd has no such topic, or no replica of the partition"
        )


class PublishFailedError(ServerError):
    """The node could not store the message (shutting down, local queue)."""

    retriable = True
    stale_leader = True


class OverloadedError(ServerError):
    """Too many messages, connections or consumers, or a channel that is being deleted: retry after a pause."""

    retriable = True


class MessageRefusedError(ServerError):
    """The message, its headers or its trace id are wrong, or beyond a limit of nsqd: a retry would fail, too."""


class BadNameError(ServerError):
    """The topic, channel or partition is malformed: correct it."""


class InvalidCommandError(ServerError):
    """The command was wrong, or not allowed in this state: a bug in this library, or an old server."""


class TlsRequiredError(ServerError):
    """nsqd requires TLS (it runs with ``-tls-required``): set ``tls=TlsConfig(...)``."""


class SubscribeRefusedError(ServerError):
    """The subscription does not fit the kind of the topic; the text says what to change."""


class ChannelNotRegisteredError(SubscribeRefusedError):
    """The topic does not create channels automatically: register the channel at the nsqlookupd first."""


class AuthError(ServerError):
    """Authentication failed or permission is missing: check the secret, the permissions and nsqd's auth server.

    The first refusal is final. A client whose secret the cluster has accepted before keeps trying: nsqd refuses a
    correct secret with the same words while its auth server does not answer.
    """


class NotInFlightError(ServerError):
    """FIN, REQ or TOUCH of a message that this connection no longer holds: it was or will be redelivered."""

    @property
    def unfinished(self) -> bytes | None:
        """The 16 raw bytes of the message whose FIN was refused. None if it was another answer.

        Source: nsqio/nsq ``nsqd/protocol_v2.go`` (FIN) prints the id as it is, youzan/nsq lists its bytes.
        """
        found = re.fullmatch(_REFUSED_ANSWER, self.detail)
        if found is not None and found[1] == "FIN":
            return bytes(int(number) & 255 for number in found[2].split())
        plain = re.match(r"FIN ([0-9a-f]{16}) failed ", self.detail)
        return None if plain is None else plain[1].encode()

    def _text(self) -> str:
        """Return the text with the message's id as a number; the partitioned nsqd lists its bytes."""
        found = re.fullmatch(_REFUSED_ANSWER, self.detail)
        if found is None:
            return super()._text()
        answer, listed, reason = found.groups()
        internal_id = int.from_bytes([int(number) & 255 for number in listed.split()[:8]], "big")
        why = next((words for start, words in _REFUSED_BECAUSE.items() if reason.startswith(start)), reason)
        return f"nsqd refused {answer} of message id={internal_id:#x}, since {why} ({self.code})"


_REFUSED_ANSWER: Final = r"(?s)(FIN|REQ|TOUCH) \[(\d{1,3}(?: \d{1,3}){15})\] failed (?:ErrType:\d+ ErrCode:\d+ : )?(.*)"
_REFUSED_BECAUSE: Final = MappingProxyType(
    {
        "Message ID not in flight": "it is no longer in flight: it timed out, or was answered before",
        "client does not own message": "it has been delivered to another connection, or is requeued",
        "Message is deferred": "it is already requeued with a delay",
        "Message too much requeue": "it was requeued too often in a short time",
        "Too much deferred messages": "too many messages of the channel are requeued with a delay",
    }
)
"""Maps the beginning of the server's reason to its meaning."""

_HINTS: Final = MappingProxyType(
    {
        "E_AUTH_FAILED": "the secret is wrong, or nsqd's auth server does not answer",
        "E_SUB_ORDER_IS_MUST": "the topic is ordered, read it with lookupd= and ordered='auto' or ordered=True",
        "E_SUB_EXTEND_NEED": "the topic is extended, read it with lookupd=, since nsqd= cannot",
        "E_SUB_EXTEND_FORBIDDON": "the topic is no longer extended, it must be looked up again",
        "E_SUB_CHANNEL_NOT_REGISTERED": "create the channel at an nsqlookupd (POST /channel/create) and wait some"
        " seconds, or create the topic without -register-channels",
    }
)
"""What to change, by code."""


SERVER_ERRORS: Final[Mapping[str, type[ServerError]]] = MappingProxyType(
    {
        code: kind
        for kind, codes in {
            NotLeaderError: ("E_FAILED_ON_NOT_LEADER",),
            NotWritableError: ("E_FAILED_ON_NOT_WRITABLE",),
            TopicNotExistError: ("E_TOPIC_NOT_EXIST",),
            PublishFailedError: ("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"),
            OverloadedError: ("E_PUB_TOO_MUCH_WAITING", "E_SUB_FAILED"),
            MessageRefusedError: (
                "E_BAD_MESSAGE",
                "E_BAD_BODY",
                "E_EXT_NOT_SUPPORT",
                "E_INVALID_JSON_HEADER",
                "INVALID_TRACE_ID",
                "E_BAD_TAG",
            ),
            BadNameError: ("E_BAD_TOPIC", "E_BAD_CHANNEL", "E_BAD_PARTITION"),
            InvalidCommandError: (
                "E_INVALID",
                "E_BAD_PROTOCOL",
                "E_IDENTIFY_FAILED",
                "E_CREATE_TOPIC_FAILED",
                "E_BAD_EXT",
            ),
            SubscribeRefusedError: ("E_SUB_ORDER_IS_MUST", "E_SUB_EXTEND_NEED", "E_SUB_EXTEND_FORBIDDON"),
            ChannelNotRegisteredError: ("E_SUB_CHANNEL_NOT_REGISTERED",),
            AuthError: ("E_AUTH_DISABLED", "E_AUTH_FAILED", "E_AUTH_FIRST", "E_AUTH_ERROR", "E_UNAUTHORIZED"),
            NotInFlightError: ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"),
        }.items()
        for code in codes
    }
)
"""Maps the code of an error frame to its class; other codes are a plain :class:`ServerError`."""

_MOST_TEXT: Final = 4096
"""Maximum characters of the text of an error frame; ids and names take far less."""
_TOO_MANY_CONNECTIONS: Final = "too much client connections"
_NO_PARTITION: Final = "multi partition: -1"
"""End of the error text if a command names no partition of a topic with several."""
_FAILED_WRITES: Final = frozenset(("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"))
_TOO_LARGE: Final = "invalid message write size"
"""In the text of a failed write that fails each time: the size of the message exceeds what a queue may hold."""
_TLS_REQUIRED: Final = "(TLS required)"
"""End of the text of the ``E_INVALID`` that answers every command outside TLS."""


def server_error(data: bytes) -> ServerError:
    """Return the error for the data of an error frame.

    The code ends at the first blank, which is present even without a text. Texts may
    contain raw bytes (a bad REQ echoes 16 bytes of an id), so they are decoded with
    replacement. One frame has no code, and some share their code with others; all are
    recognised by their texts.

    Source: server protocol 1.
    """
    text = data[: 8 * MOST_READ].decode("utf-8", "replace")
    if text.startswith(_TOO_MANY_CONNECTIONS):
        return OverloadedError("", beginning(text, _MOST_TEXT))
    code, _, detail = text.partition(" ")
    if code in SERVER_ERRORS:
        detail = beginning(detail, _MOST_TEXT)
    else:  # a secret may contain a blank
        code, _, detail = beginning(text, _MOST_TEXT).partition(" ")
    if code == "E_INVALID" and detail.endswith(_TLS_REQUIRED):
        return TlsRequiredError(code, f"{detail}: nsqd runs with -tls-required, give tls=TlsConfig(...)")
    if code in _FAILED_WRITES and _TOO_LARGE in detail:
        return MessageRefusedError(code, f"{detail}: the message is larger than nsqd's --max-msg-size")
    if code == "E_BAD_PARTITION" and detail.endswith(_NO_PARTITION):
        detail += ": the server is partitioned, give lookupd= with the address of an nsqlookupd instead of nsqd="
    return SERVER_ERRORS.get(code, ServerError)(code, detail)


class PublishError(NsqError):
    """A publish did not succeed within its limits; ``__cause__`` is the last attempt's error.

    Attributes:
        topic: The topic.
        partition: The chosen partition. None if none was chosen yet.
        nsqd: Address of the nsqd that it was last written to. None if it was not written.
        attempts: How often it was written to a connection.
        maybe_stored: If False, the server does not have the message, and you may
            publish it again. If True, at least one attempt got no answer, so the
            message may be stored, and publishing it again may store it twice.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int | None,
        attempts: int,
        maybe_stored: bool,
        nsqd: str | None = None,
        name: str | None = None,
    ) -> None:
        where = name or (topic if partition is None else f"{topic}-{partition}")
        if nsqd is not None and nsqd not in message:
            where += f" at {nsqd}"
        known = "may be stored" if maybe_stored else "not stored"
        tried = f"failed ({known}, attempts: {attempts})" if attempts or maybe_stored else "not sent"
        super().__init__(f"publish to {where} {tried}: {message}")
        self.topic = topic
        self.partition = partition
        self.nsqd = nsqd
        self.attempts = attempts
        self.maybe_stored = maybe_stored

    @property
    def retriable(self) -> bool:  # type: ignore[override]
        """True if the message is not stored and its cause is temporary, so that publishing it again may succeed."""
        cause = self.__cause__
        return not self.maybe_stored and isinstance(cause, NsqError) and cause.retriable


_LONGEST_REASON: Final = 500
"""Characters of what a decoder says of a body: it may quote a name of any length from there."""


class BodyError(NsqError, ValueError):
    """The body of a received message cannot be decoded: it is not the JSON that was asked for, or not decompressible.

    The message itself is valid: finish or requeue it.

    Attributes:
        topic: The topic.
        partition: The partition.
        message_id: The server's id of the message, as ``message.internal_id``.
        reason: What is wrong with the body. It may quote the body, so it is escaped and cut.
        field: Path of the wrong field, such as ``$.items[0].price``. None if the whole body is wrong.
    """

    def __init__(
        self,
        what: str,
        reason: str,
        *,
        topic: str,
        partition: int,
        message_id: int,
        field: str | None = None,
        name: str | None = None,
    ) -> None:
        reason = _printable(reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}...")
        super().__init__(f"body of message {message_id:#x} of {name or f'{topic}-{partition}'} {what}: {reason}")
        self.topic = topic
        self.partition = partition
        self.message_id = message_id
        self.reason = reason
        self.field = field


class WorkerError(NsqError):
    """A consumer of a :class:`~nsq_ha.Worker` failed; ``__cause__`` is its error. The others were closed gently.

    Attributes:
        topic: The consumer's topic.
        channel: Its channel.
    """

    def __init__(self, message: str, topic: str, channel: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.channel = channel


class DeadLetterError(NsqError):
    """A message is no dead letter, one of a later version, or damaged; or it cannot be published again.

    The message itself is valid: finish or requeue it.
    """


class DataLossError(NsqError):
    """Messages between two planned offsets cannot be read: they were cleaned up, not committed, or are in another log.

    Choose offsets that exist, or accept the gap (the Spark option
    ``failOnDataLoss=false``).
    """


class SparkUnavailableError(NsqError):
    """Spark cannot run here. The text says in one line what to install or set."""
