"""Execute the commands that both kinds of nsqd have, in the order of their checks.

``session`` adds those of the partitioned server, ``plain_node`` those of upstream's.

Source: server protocol 3-7; ``protocol_v2.go`` of youzan/nsq and of nsqio/nsq.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from nsq_ha.devcluster.auth import Credentials
from nsq_ha.devcluster.nsqd.connection import OK_FRAME, Manner, ServerConnection
from nsq_ha.devcluster.storage.any_channel import AnyChannel, AnyConsumer, Refusal
from nsq_ha.protocol import commands
from nsq_ha.protocol.compression import DeflateCodec, SnappyCodec
from nsq_ha.protocol.frames import CLOSE_WAIT, FrameType, encode_frame
from nsq_ha.protocol.server.command_lines import Announced, Malformed, forbidden_now

if TYPE_CHECKING:
    from nsq_ha.devcluster.nodes import ClusterNode
    from nsq_ha.devcluster.storage.queues import PlainNsqdTopic
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.server.identify import SessionSettings
    from nsq_ha.protocol.server.stream import StreamDecoder

_CLOSE_WAIT_FRAME: Final = encode_frame(FrameType.RESPONSE, CLOSE_WAIT)
_NO_MAGIC: Final = Malformed(b"", b"E_BAD_PROTOCOL")
_SUBS: Final = frozenset((b"SUB", b"SUB_ADVANCED", b"SUB_ORDERED"))
_WORDS_BEFORE_SUB: Final = frozenset((b"IDENTIFY", b"AUTH")) | _SUBS
_WORDS_OF_CONSUMERS: Final = frozenset((b"FIN", b"REQ", b"TOUCH"))


_Id = TypeVar("_Id")
_Message = TypeVar("_Message")
_Channel = TypeVar("_Channel", bound="AnyChannel[Any, Any]")


MessageAnswer = commands.Finish | commands.Requeue | commands.Touch


class SessionStage(enum.Enum):
    """The stages of a session."""

    OPEN = enum.auto()
    SUBSCRIBED = enum.auto()
    CLOSING = enum.auto()  # after CLS
    ENDED = enum.auto()


class AnySession(ServerConnection):
    """Executes the commands of one connection.

    Args:
        node: The nsqd.
        connections: The open connections of the node.
        client_id: Number of the connection on its node.
        decoder: Reads the commands.
        manner: How the node treats its connections.

    Attributes:
        credentials: What the client may do.
        stage: The stage of the session.
    """

    is_partitioned: bool

    def __init__(
        self, node: ClusterNode, connections: set[Self], client_id: int, decoder: StreamDecoder[Any], manner: Manner
    ) -> None:
        super().__init__(node, connections, client_id, decoder, manner)
        self.credentials: Credentials = Credentials(node.host.auth, node.host.now, capital=self.is_partitioned)
        self._security = node.host.security
        self._limits = node.host.limits
        self.stage: SessionStage = SessionStage.OPEN
        self._subscriber: AnySubscriber[Any, Any, Any] | None = None
        self._changed: list[Replica | PlainNsqdTopic] = []  # those that got messages in this turn
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Announced: self._announced,
            Malformed: self._malformed,
            commands.Identify: self._identify,
            commands.Auth: self._auth,
            commands.Ready: self._ready,
            commands.Finish: self._answer,
            commands.Requeue: self._answer,
            commands.Touch: self._answer,
            commands.Close: self._close,
            commands.Nop: lambda _: None,  # receiving the bytes is enough
        }

    # ------------------------------------------------------------ ServerConnection

    def _run(self) -> None:
        """Execute all complete commands, until one waits."""
        handlers, next_event = self._handlers, self._decoder.next_event
        while not self.blocked and self.stage is not SessionStage.ENDED:
            event = next_event()
            if event is None or self._lacks_tls(event):
                break
            handlers[type(event)](event)
        if self._changed:
            now = self._host.now()
            for changed in self._changed:
                changed.dispatch(now)
            self._changed.clear()

    def _lacks_tls(self, event: Any) -> bool:  # noqa: ANN401 - each event has a word
        """Close with the server's answer to a command that needs TLS first."""
        if not self._security.required or self.is_secured or event.word == b"IDENTIFY":
            return False
        if event == _NO_MAGIC:
            return False
        self.fail(b"E_INVALID cannot " + event.word + b" in current state (TLS required)")
        return True

    @property
    def is_consumer(self) -> bool:
        """Whether the client is subscribed."""
        return self._subscriber is not None

    def _fall_silent(self) -> None:
        """Take no more messages, but keep those in flight: writes fail from now on."""
        if self._subscriber is not None:
            self._subscriber.fall_silent()

    def _end(self) -> None:
        """Release what the client held, and execute no more commands."""
        self.stage = SessionStage.ENDED
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.leave()

    # ------------------------------------------------------------ what the kinds differ in

    def _has_changed(self, changed: Replica | PlainNsqdTopic) -> None:
        """Let the channels deliver at the end of this turn."""
        if changed not in self._changed:
            self._changed.append(changed)

    @abstractmethod
    def _read_identify(self, body: bytes) -> SessionSettings | Malformed:
        """Return the settings that an IDENTIFY asks for, or the refusal."""

    @abstractmethod
    def _agree(self, settings: SessionSettings, *, tls: bool, auth: bool) -> tuple[Identity, bytes]:
        """Return the answer to IDENTIFY, as a value and as JSON."""

    # ------------------------------------------------------------ events

    def _is_forbidden(self, word: bytes) -> bool:
        """Close with the server's answer if the stage of the session forbids the command."""
        stage = self.stage
        if word in _WORDS_BEFORE_SUB:
            forbidden = stage is not SessionStage.OPEN
        elif word in _WORDS_OF_CONSUMERS or word == b"RDY":
            forbidden = stage is SessionStage.OPEN
        elif word == b"CLS":
            forbidden = stage is not SessionStage.SUBSCRIBED
        else:
            forbidden = False
        if forbidden:
            self.fail(forbidden_now(word).data)
        elif word in _SUBS and self.settings.heartbeat_interval <= 0:
            self.fail(b"E_INVALID cannot SUB with heartbeats disabled")
            return True
        return forbidden

    def _announced(self, announced: Announced) -> None:
        self._is_forbidden(announced.word)

    def _malformed(self, malformed: Malformed) -> None:
        if not malformed.early:
            if malformed.word == b"RDY" and self.stage is SessionStage.CLOSING:
                return
            if self._is_forbidden(malformed.word):
                return
        if malformed.fatal:
            self.fail(malformed.data)
        else:
            self.refuse(malformed.data)

    def _identify(self, command: commands.Identify) -> None:
        settings = self._read_identify(command.body)
        if isinstance(settings, Malformed):
            self.fail(settings.data)
            return
        self.settle(settings)
        if not settings.feature_negotiation:
            self.send(OK_FRAME)
            return
        if settings.snappy and settings.deflate:
            self.fail(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
            return
        tls, auth = self._security.tls is not None, self._host.auth is not None
        identity, answer = self._agree(settings, tls=tls, auth=auth)
        self.send(encode_frame(FrameType.RESPONSE, answer))
        deflate = DeflateCodec(identity.deflate_level) if identity.deflate else None
        codec = SnappyCodec() if identity.snappy else deflate
        if identity.tls_v1 or codec is not None:
            self.switch(tls=identity.tls_v1, codec=codec)

    def _auth(self, command: commands.Auth) -> None:
        refusal = self.credentials.authenticate(command.secret)
        if refusal is None:
            self.send(encode_frame(FrameType.RESPONSE, self.credentials.answer()))
        else:
            self.fail(refusal)

    def _is_unauthorized(self, word: str, topic: str, channel: str = "") -> bool:
        """Close with the server's answer if AUTH is missing, or does not allow the command."""
        refusal = self.credentials.refusal(word, topic, channel)
        if refusal is not None:
            self.fail(refusal)
        return refusal is not None

    def _subscribed(self, subscriber: AnySubscriber[Any, Any, Any]) -> None:
        if self.stage is SessionStage.ENDED:  # the connection was reset while SUB waited for the replicas
            subscriber.leave()
            return
        self._subscriber = subscriber
        self.stage = SessionStage.SUBSCRIBED
        self.send(OK_FRAME)

    def _ready(self, command: commands.Ready) -> None:
        if self.stage is SessionStage.CLOSING or self._is_forbidden(command.word) or self._subscriber is None:
            return
        self._subscriber.set_ready(command.count)

    def _answer(self, command: MessageAnswer) -> None:
        if self._subscriber is None:
            self._is_forbidden(command.word)
        else:
            self._subscriber.answer(command)

    def _close(self, command: commands.Close) -> None:
        if self._is_forbidden(command.word) or self._subscriber is None:
            return
        self.stage = SessionStage.CLOSING
        self._decoder.after_close = True
        self._subscriber.set_ready(0)
        self.send(_CLOSE_WAIT_FRAME)


class AnySubscriber(AnyConsumer[_Message], Generic[_Id, _Message, _Channel]):
    """A consumer of one channel.

    Attributes:
        session: The client's session.
        received: Messages delivered here.
        finished: FINs that succeeded.
        requeued: REQs that succeeded.
    """

    ready: int

    def __init__(self, session: AnySession, channel: _Channel) -> None:
        settings, self._host = session.settings, session.node.host
        super().__init__(session.client_id, settings.msg_timeout / 1000, self._host.limits.max_msg_timeout / 1000)
        self.session = session
        self.received: int = 0
        self.finished: int = 0
        self.requeued: int = 0
        self._channel = channel
        self._silent = False
        self._sample = settings.sample_rate

    def wants(self, message: _Message) -> bool:
        """Return whether to deliver a message; sampling leaves the others out."""
        return not self._sample or self._host.chance.randrange(100) <= self._sample

    def flush(self) -> None:
        """Write the gathered messages."""
        self.session.flush()

    def drop(self) -> None:
        """Close the connection without an error frame."""
        self.session.close()

    @abstractmethod
    def leave(self) -> None:
        """Leave the channel."""

    def set_ready(self, count: int) -> None:
        """RDY."""
        if self._silent:
            return
        self.ready = count
        if count > self.holds:
            self._channel.dispatch(self._host.now())

    def fall_silent(self) -> None:
        """Accept no more messages."""
        self._silent = True
        self.ready = 0

    def answer(self, command: MessageAnswer) -> None:
        """FIN, REQ or TOUCH; nsqd shortens a delay that is too long."""
        found, now = self._id(command.message_id), self._host.now()
        try:
            if isinstance(command, commands.Finish):
                self._channel.finish(found, self, now)
                self.finished += 1
            elif isinstance(command, commands.Requeue):
                delay = min(command.delay_ms, self._host.limits.max_delay) / 1000
                self._channel.requeue(found, self, delay, now)
                self.requeued += 1
            else:
                self._channel.touch(found, self, now)
        except Refusal as refusal:
            self.session.refuse(self._refused(command.word.decode(), command.message_id, str(refusal)))

    @abstractmethod
    def _id(self, message_id: bytes) -> _Id:
        """Return the id by which the channel knows a message."""

    @abstractmethod
    def _refused(self, word: str, message_id: bytes, why: str) -> bytes:
        """Return the text of a refusal."""
