"""What one connection's commands mean, in the order and with the answers of nsqd.

Owns the state of the connection (before SUB, subscribed, closing). Publishing
and subscribing have files of their own.

Source: protocol reference 3 - 7; youzan/nsq ``nsqdserver/protocol_v2.go``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.devcluster.nsqd.delivery import OK_FRAME, error_frame
from nsq_ha.devcluster.nsqd.pub import Publisher
from nsq_ha.devcluster.nsqd.sub import Subscription
from nsq_ha.devcluster.nsqd.terms import Terms
from nsq_ha.protocol import commands
from nsq_ha.protocol.compression import DeflateCodec, SnappyCodec
from nsq_ha.protocol.frames import CLOSE_WAIT, FrameType, encode_frame
from nsq_ha.protocol.identify import encode_identity
from nsq_ha.protocol.introduction import Introduction, read_introduction
from nsq_ha.protocol.lines import Announced, Malformed, forbidden_now
from nsq_ha.protocol.requests import CommandDecoder, Event, Publishing

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol.compression import Codec

_CLOSE_WAIT_FRAME: Final = encode_frame(FrameType.RESPONSE, CLOSE_WAIT)
_NO_MAGIC: Final = Malformed(b"", b"E_BAD_PROTOCOL")
_IN_CLUSTER: Final = b"E_CREATE_TOPIC_FAILED CREATE_TOPIC is not allowed here while cluster feature enabled."


class Stage(enum.Enum):
    """Where a connection stands."""

    OPEN = enum.auto()
    SUBSCRIBED = enum.auto()
    CLOSING = enum.auto()  # after CLS
    ENDED = enum.auto()


_WORDS_BEFORE_SUB: Final = frozenset((b"IDENTIFY", b"AUTH", b"SUB", b"SUB_ADVANCED", b"SUB_ORDERED"))
_WORDS_OF_CONSUMERS: Final = frozenset((b"FIN", b"REQ", b"TOUCH"))


class Session:
    """The commands of one connection.

    Attributes:
        connection: Through which answers go.
        client_id: Number of the connection on its node.
        terms: What IDENTIFY settled.
        stage: Where the connection stands.
        subscription: Its subscription. None before SUB.
        changed: Replicas that stored something in this turn; their channels deliver at its end.
    """

    def __init__(self, connection: Connection) -> None:
        """Begin before the magic."""
        self.connection = connection
        self.node = connection.node
        self.client_id = connection.node.next_client_id()
        self.terms = Terms.of(Introduction())
        self.stage = Stage.OPEN
        self.subscription: Subscription | None = None
        self.changed: list[Replica] = []
        self._decoder = CommandDecoder()
        self._publisher = Publisher(self)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Announced: self._announced,
            Malformed: self._malformed,
            Publishing: self._publishing,
            commands.Identify: self._identify,
            commands.Auth: self._auth,
            commands.Sub: self._subscribe,
            commands.SubAdvanced: self._subscribe,
            commands.SubOrdered: self._subscribe,
            commands.Ready: self._ready,
            commands.Finish: self._finish,
            commands.Requeue: self._requeue,
            commands.Touch: self._touch,
            commands.Close: self._close,
            commands.Nop: self._nop,
            commands.InternalCreateTopic: self._create_topic,
            commands.Pub: self._publisher.pub,
            commands.PubTrace: self._publisher.pub_trace,
            commands.PubExt: self._publisher.pub_ext,
            commands.Mpub: self._publisher.mpub,
            commands.MpubTrace: self._publisher.mpub_trace,
            commands.MpubExt: self._publisher.mpub_ext,
        }

    @property
    def is_closing(self) -> bool:
        """Whether the client said CLS."""
        return self.stage is Stage.CLOSING

    def feed(self, data: bytes) -> None:
        """Take bytes; :meth:`run` looks at them."""
        self._decoder.feed(data)

    def forget_unread(self) -> None:
        """Drop unread commands, as nsqd does, whose reader belongs to the old layer."""
        self._decoder.take_buffered()

    def run(self) -> None:
        """Do all commands that are whole, until one has to wait."""
        connection, handlers, next_event = self.connection, self._handlers, self._decoder.next_event
        while not connection.blocked and self.stage is not Stage.ENDED:
            event: Event | None = next_event()
            if event is None or self._lacks_tls(event):
                break
            handlers[type(event)](event)
        self.deliver_changed()

    def _lacks_tls(self, event: Event) -> bool:
        """Close with the server's answer to a command that requires TLS."""
        if not self.node.security.required or self.connection.is_secured or event.word == b"IDENTIFY":
            return False
        if event == _NO_MAGIC:
            return False
        self.fail(b"E_INVALID cannot " + event.word + b" in current state (TLS required)")
        return True

    def fall_silent(self) -> None:
        """Send the client no more messages, and keep those that it holds; nothing reaches it any longer."""
        if self.subscription is not None:
            self.subscription.fall_silent()

    def deliver_changed(self) -> None:
        """Let the channels of partitions that grew deliver."""
        if self.changed:
            now = self.node.now()
            for replica in self.changed:
                replica.deliver(now)
            self.changed.clear()

    def end(self) -> None:
        """Give back what the client held; no more commands."""
        self.stage = Stage.ENDED
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.leave()

    # ------------------------------------------------------------ answers

    def send(self, frame: bytes) -> None:
        """Answer."""
        self.connection.send(frame)

    def refuse(self, data: bytes) -> None:
        """Answer with an error after which the connection goes on."""
        self.connection.send(error_frame(data))

    def fail(self, data: bytes) -> None:
        """Answer with an error (none when empty) and close."""
        if data:
            self.connection.send(error_frame(data))
        self.stage = Stage.ENDED
        self.connection.close()

    # ------------------------------------------------------------ events

    def _is_forbidden(self, word: bytes) -> bool:
        """Close with the server's answer when the connection's stage forbids the command."""
        stage = self.stage
        if word in _WORDS_BEFORE_SUB:
            forbidden = stage is not Stage.OPEN
        elif word in _WORDS_OF_CONSUMERS or word == b"RDY":
            forbidden = stage is Stage.OPEN
        elif word == b"CLS":
            forbidden = stage is not Stage.SUBSCRIBED
        else:
            forbidden = False
        if forbidden:
            self.fail(forbidden_now(word).data)
        return forbidden

    def _announced(self, announced: Announced) -> None:
        self._is_forbidden(announced.word)

    def _malformed(self, malformed: Malformed) -> None:
        if not malformed.early:
            if malformed.word == b"RDY" and self.stage is Stage.CLOSING:
                return
            if self._is_forbidden(malformed.word):
                return
        if malformed.fatal:
            self.fail(malformed.data)
        else:
            self.refuse(malformed.data)

    def _publishing(self, publishing: Publishing) -> None:
        extended = self._publisher.target(publishing)
        if extended is not None:
            self._decoder.accept(extended=extended)

    def _identify(self, command: commands.Identify) -> None:
        client = read_introduction(command.body, self.terms.client)
        if isinstance(client, Malformed):
            self.fail(client.data)
            return
        before, self.terms = self.terms, Terms.of(client)
        if self.terms.heartbeat != before.heartbeat:
            self.connection.heartbeat_from_now()
        if not client.feature_negotiation:
            self.send(OK_FRAME)
            return
        if client.snappy and client.deflate:
            self.fail(b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
            return
        identity = self.terms.identity(tls=self.node.security.tls is not None)
        self.send(encode_frame(FrameType.RESPONSE, encode_identity(identity)))
        codec: Codec | None = None
        if identity.snappy:
            codec = SnappyCodec()
        elif identity.deflate:
            codec = DeflateCodec(identity.deflate_level)
        if identity.tls_v1 or codec is not None:
            self.connection.switch(tls=identity.tls_v1, codec=codec)

    def _auth(self, _command: commands.Auth) -> None:
        self.fail(b"E_AUTH_DISABLED AUTH Disabled")

    def _subscribe(self, command: commands.Sub) -> None:
        if not self._is_forbidden(command.word):
            Subscription.begin(self, command)

    def subscribed(self, subscription: Subscription) -> None:
        """A subscription was made."""
        self.subscription = subscription
        self.stage = Stage.SUBSCRIBED
        self.send(OK_FRAME)

    def _ready(self, command: commands.Ready) -> None:
        if self.stage is Stage.CLOSING or self._is_forbidden(command.word) or self.subscription is None:
            return
        self.subscription.set_ready(command.count)

    def _finish(self, command: commands.Finish) -> None:
        if self.subscription is None:
            self._is_forbidden(command.word)
        else:
            self.subscription.finish(command.message_id)

    def _requeue(self, command: commands.Requeue) -> None:
        if self.subscription is None:
            self._is_forbidden(command.word)
        else:
            self.subscription.requeue(command.message_id, command.delay_ms / 1000)

    def _touch(self, command: commands.Touch) -> None:
        if self.subscription is None:
            self._is_forbidden(command.word)
        else:
            self.subscription.touch(command.message_id)

    def _close(self, command: commands.Close) -> None:
        if self._is_forbidden(command.word) or self.subscription is None:
            return
        self.stage = Stage.CLOSING
        self.subscription.set_ready(0)
        self.send(_CLOSE_WAIT_FRAME)

    def _nop(self, command: commands.Nop) -> None:
        """Nothing: that it came is what counts."""

    def _create_topic(self, _command: commands.InternalCreateTopic) -> None:
        self.refuse(_IN_CLUSTER)
