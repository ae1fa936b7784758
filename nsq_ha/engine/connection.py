"""One connection to one nsqd: heartbeats, requests in order, close.

Decides when bytes are sent; ``protocol.client`` knows what they mean, and
``protocol.handshake`` how a connection begins. The callbacks run in the event
loop and must not block.

The invariant: any surprise (an unexpected frame, silence for two heartbeat
intervals, an answer without a request) ends the connection, since answers have
no number and nothing after a surprise can be trusted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import msgspec

from nsq_ha._version import __version__
from nsq_ha.base.time_limits import time_limit
from nsq_ha.engine import wire
from nsq_ha.engine.loops import looks
from nsq_ha.engine.secret import secret_of
from nsq_ha.engine.tcp import REACHABLE, TcpStream
from nsq_ha.engine.tls import server_name, ssl_context
from nsq_ha.errors import (
    ConnectError,
    ConnectionLostError,
    NsqError,
    ProtocolError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.message import Message, MessageSource
from nsq_ha.options.types import TlsConfig
from nsq_ha.policy.liveness import is_silent, next_look
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.protocol import ClientProtocol, Close, DamagedMessage, Identity, Offer
from nsq_ha.protocol.client import LONGEST_RUN, OK_RUNS
from nsq_ha.protocol.encoding import NOP
from nsq_ha.protocol.handshake import GetSecret, Handshake, Send, StartCodec, StartTls, Step
from nsq_ha.protocol.identify import DEFAULTS
from nsq_ha.protocol.refusals import refused_option

if TYPE_CHECKING:
    from nsq_ha.options.config import ClientConfig
    from nsq_ha.policy.topology import Node
    from nsq_ha.protocol import Command, Layout, Received, Sub, SubAdvanced, SubOrdered

log: logging.Logger = logging.getLogger("nsq_ha.connection")
_numbers: Final = itertools.count(1)

USER_AGENT: Final = f"nsq_ha/{__version__}"


def _ignore(_: object) -> None:
    """Take what nobody waits for."""


class Callbacks(msgspec.Struct, frozen=True):
    """Functions that the event loop calls for received data.

    Attributes:
        lost: Called with the reason of the end, exactly once after a successful open.
        answers: Called with the answers to publishes, in order: the response's bytes, or the error.
        messages: Called with the messages of one read.
        refusals: Called with error frames that answer no request.
        damaged: Called with messages that cannot be decoded; they are in flight.
        stored: Called instead of ``answers`` with the number of ``OK`` answers. None to call ``answers``.
        resumed: Called when the socket has space again.
    """

    lost: Callable[[NsqError], None]
    answers: Callable[[list[bytes | ServerError]], None] = _ignore
    messages: Callable[[list[Message]], None] = _ignore
    refusals: Callable[[list[ServerError]], None] = _ignore
    damaged: Callable[[list[DamagedMessage]], None] = _ignore
    stored: Callable[[int], None] | None = None
    resumed: Callable[[], None] | None = None


_NO_CALLBACKS: Final = Callbacks(_ignore)


class Connection:
    """One open connection. Call :meth:`open` to get one.

    Attributes:
        name: A short id, unique in the process, and the nsqd's address; for log lines.
        opened_at: When the handshake was complete, in the loop's time.
        lifetime: How long nsqd can write to the connection. None if there is no limit.
    """

    def __init__(self, config: ClientConfig, node: Node, callbacks: Callbacks) -> None:
        self.config = config
        self.node = node
        self.name: str = f"c{next(_numbers)} {node.address}"
        self.identity: Identity = Identity()
        self.is_open: bool = False
        self.opened_at: float = math.inf
        self._is_logged = wire.is_on()
        self._has_refused = self._is_left = self._is_counting = False
        self._unanswered = 0  # OKs that are due and only counted
        self.lifetime: Lifetime | None = None
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._protocol = ClientProtocol(max_frame_bytes=config.max_frame_bytes)
        self._receive: Callable[[bytes | memoryview], Received] = self._protocol.receive
        if self._is_logged:
            self._receive = partial(wire.receive, self.name, self._protocol)
        self._waiters: list[asyncio.Future[bytes]] = []
        self._stopping: asyncio.Future[bytes] | None = None  # CLS, which nsqd takes only once
        self._stream: TcpStream
        self._is_reached = False
        self._problem = f"cannot connect to {node.address}"  # what takes long now
        self._hint = "" if config.nsqd else REACHABLE  # with nsqd= the user chose the address
        self._looks = looks.here()
        self._last_heartbeat = self._loop.time()
        self._ended: asyncio.Future[NsqError] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        config: ClientConfig,
        node: Node,
        callbacks: Callbacks,
        *,
        extend_support: bool = False,
        is_modest: bool = False,
    ) -> Self:
        """Connect, IDENTIFY, upgrade (TLS, compression) and AUTH, within ``connect_timeout``.

        If nsqd's flags forbid a default of this library, it connects once more with nsqd's own. If it fails or is
        cancelled, the socket is closed and ``lost`` is not called.

        Raises:
            ConnectError: The nsqd is not reachable, or did not answer within ``connect_timeout``.
            ServerError: nsqd refused IDENTIFY or AUTH.
            RemoteProtocolError: The answers are not valid.
        """
        connection = cls(config, node, callbacks)
        try:
            async with time_limit(config.connect_timeout):
                await connection._handshake(extend_support, is_modest)
        except TimeoutError:
            await connection._discard()
            hint = "" if connection._is_reached or not connection._hint else f"; {connection._hint}"
            text = f"{connection._problem} within connect_timeout={config.connect_timeout} s{hint}"
            raise ConnectError(text) from None
        except BaseException as error:
            await connection._discard()
            if isinstance(error, RemoteProtocolError):
                raise connection._named(error) from error.__cause__
            option = refused_option(error) if isinstance(error, ServerError) else None
            if option is None or is_modest or getattr(config, option) != DEFAULTS.get(option, error):
                raise
            log.debug("%s: %s; connecting with the defaults of nsqd", connection.name, error)
            return await cls.open(config, node, callbacks, extend_support=extend_support, is_modest=True)
        connection.is_open, connection.opened_at = True, connection._loop.time()
        connection._looks.add(connection.look, connection._next_look())
        return connection

    async def _handshake(self, extend_support: bool, is_modest: bool) -> None:
        config, node = self.config, self.node
        offer = Offer.of(
            config,
            hostname=config.hostname or socket.gethostname(),
            user_agent=config.user_agent or USER_AGENT,
            extend_support=extend_support,
            is_plain=node.is_plain,
            is_modest=is_modest,
        )
        secret = config.auth_secret
        text = secret if isinstance(secret, str) else None
        asks = secret is not None and text is None
        handshake = Handshake(self._protocol, offer, address=node.address, secret=text, asks=asks)

        def arrived(data: bytes | memoryview) -> None:
            if self._is_logged:  # with TLS or compression, these are no frames
                wire.log.debug("%s < %d bytes of the handshake", self.name, len(data))
            handshake.feed(data)
            while self._waiters:
                waiter = self._waiters.pop(0)
                if not waiter.done():
                    waiter.set_result(b"")

        self._stream = stream = await TcpStream.open(
            arrived,
            self._lost,
            host=node.host,
            port=node.tcp_port,
            limit=config.connect_timeout,
            hint=self._hint,
            local_addr=config.local_addr,
        )
        self._is_reached, self._problem = True, f"{node.address} did not complete the handshake"
        identified_at = self._loop.time()
        for step in handshake:
            if isinstance(step, GetSecret) and callable(secret):
                before = self._problem
                self._problem = f"{node.address} asks for AUTH, but the function auth_secret returned no secret"
                handshake.secret = await secret_of(secret, node.address)
                self._problem = before
            else:
                await self._do(step, stream)
        stream.receiver, stream.on_resume = self._received, self._callbacks.resumed
        if self._callbacks.stored is not None and not self._is_logged:
            self._is_counting, self._receive = True, self._receive_uncounted
        self.identity = handshake.identity
        if config.tls is not None:
            self.lifetime = Lifetime.of(self.identity.version, identified_at, random.random)
        if self._ended.done():  # with its last answer
            raise self._ended.result()

    async def _do(self, step: Step, stream: TcpStream) -> None:
        if isinstance(step, Send):
            self.write(step.data)
        elif isinstance(step, StartTls):
            tls = self.config.tls or TlsConfig()
            await stream.start_tls(ssl_context(tls), server_name(tls, self.node.host))
        elif isinstance(step, StartCodec):
            stream.start_codec(step.codec, step.trailing)
        else:
            await self._waiter()

    def _request(self, command: Command) -> asyncio.Future[bytes]:
        data = self._protocol.send(command)
        waiter = self._waiter()
        self.write(data)
        return waiter

    def _waiter(self) -> asyncio.Future[bytes]:
        if self._ended.done():
            raise self._ended.result()
        waiter: asyncio.Future[bytes] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    async def subscribe(self, command: Sub | SubOrdered | SubAdvanced, source: MessageSource, layout: Layout) -> None:
        """Subscribe and wait for the answer; messages then go to the callbacks.

        If this is cancelled, abort the connection.

        Raises:
            ServerError: nsqd refused; it closes the connection.
            ConnectionLostError: The connection was lost.
            ResponseTimeoutError: No answer within ``connect_timeout``; abort it.
        """
        self._protocol.subscribe_to(source, layout)
        try:
            async with time_limit(self.config.connect_timeout):
                await self._request(command)
        except TimeoutError:
            raise ResponseTimeoutError(
                f"{self.node.address} did not answer SUB within connect_timeout={self.config.connect_timeout} s"
            ) from None

    def write(self, data: bytes) -> None:
        """Buffer commands; they are written together at the end of this turn of the event loop."""
        if self._is_logged:
            wire.sent(self.name, data)
        self._stream.write(data)

    def write_now(self, data: bytes) -> None:
        """Write buffered commands and ``data`` now, if waiting for the end of the turn has no advantage."""
        if self._is_logged:
            wire.sent(self.name, data)
        self._stream.write_now(data)

    def write_publishes(self, data: bytes | list[bytes], count: int) -> bool:
        """Write ``count`` publish commands now; ``answers`` gets one answer for each, in order.

        Args:
            data: The commands, or parts of them in their order.
            count: Number of commands.

        Returns:
            Whether the socket has space. If not, the last command was not sent to its end (but on Windows, where that
            is unknown), and never will be if the connection is lost now. False also once the end is decided.
        """
        stream = self._stream
        if self._is_counting:
            self._unanswered += count
        else:
            self._protocol.expect_publish(count)
            if self._is_logged:
                wire.sent(self.name, data if isinstance(data, bytes) else b"".join(data))
        if isinstance(data, bytes):
            stream.write_now(data)
        else:
            stream.write_parts(data)
        return not (stream.is_paused or stream.is_closing())

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat, or since connecting."""
        return self._loop.time() - self._last_heartbeat

    async def stop_messages(self) -> None:
        """Send CLS and wait for its answer. No new message comes after it; FIN, REQ and TOUCH still work.

        It may be called again: the first CLS counts.

        Raises:
            NsqError: The connection was lost, or nsqd refused.
        """
        if self._stopping is None:
            self._stopping = self._request(Close())
        await asyncio.shield(self._stopping)

    def keep_alive(self) -> None:
        """Send NOP without having received a heartbeat, and do not end the connection when nsqd is silent."""
        self._looks.remove(self.look)
        self.write(NOP)

    async def ended(self) -> NsqError:
        """Wait for the end and return its reason."""
        return await asyncio.shield(self._ended)

    @property
    def was_ended_by_peer(self) -> bool:
        """Whether it has ended, and neither this client chose that nor the nsqd did after it had refused a publish."""
        if not self._ended.done():
            return False
        if isinstance(self._ended.result(), ProtocolError | ResponseTimeoutError | ServerError):
            return True
        return not (self._is_left or self._has_refused)

    def _leave(self) -> None:
        self._is_left = self._is_left or not self._ended.done()

    def close(self) -> None:
        """Send buffered data and close, without waiting for the end."""
        self._leave()
        self._stream.close()

    async def aclose(self, timeout: float) -> None:
        """Send buffered data, close, and wait for the end; abort after ``timeout`` seconds."""
        if self._ended.done():
            return
        self._leave()
        self._stream.close()
        try:
            async with asyncio.timeout(timeout):
                await self.ended()
        except TimeoutError:
            self.abort(ConnectionLostError(f"closed the connection to {self.node.address} at the time limit"))

    def abort(self, reason: NsqError) -> None:
        """End the connection at once; ``lost`` is called in this or the next turn of the event loop."""
        self._leave()
        self._stream.abort(reason)

    def _named(self, reason: NsqError) -> NsqError:
        """Return ``reason`` with the nsqd's address in its text; errors of the protocol do not know it."""
        if not isinstance(reason, RemoteProtocolError) or self.node.address in str(reason):
            return reason
        named = type(reason)(f"{self.node.address}: {reason}")
        named.__cause__ = reason.__cause__
        return named

    async def _discard(self) -> None:
        self._forget_owner()
        if self._is_reached:
            self._stream.abort()
            await self.ended()

    def _forget_owner(self) -> None:
        """Call nothing any more. The callbacks may lead back to this object; in a cycle it would outlive its end."""
        self._callbacks = _NO_CALLBACKS

    def _next_look(self) -> float:
        return next_look(self._loop.time(), self._last_heartbeat, self.config.heartbeat_interval)

    def look(self, due: float) -> float:
        """End the connection if nsqd has been silent for too long; return when to look again.

        Args:
            due: When this look was due, in the loop's time.
        """
        if self._ended.done():
            return math.inf
        now, interval = self._loop.time(), self.config.heartbeat_interval
        last = self._stream.last_received
        if is_silent(now, due, last, interval):
            self.abort(
                ResponseTimeoutError(
                    f"{self.node.address} sent nothing for {now - last:.1f} s (two heartbeat intervals)"
                )
            )
        elif is_silent(now, due, self._last_heartbeat, interval) and self._protocol.swallowed_heartbeats():
            # Bytes arrive, but the heartbeats among them are inside a frame with a wrong size.
            self.abort(
                RemoteProtocolError(
                    f"{self.node.address} sent a frame with a wrong size: its heartbeats arrive inside the frame"
                )
            )
        return self._next_look()

    def _receive_uncounted(self, data: bytes | memoryview) -> Received:
        """Read frames, and count again while nothing but whole answers to publishes is due."""
        if self._unanswered:
            self._protocol.expect_publish(self._unanswered)
        received = self._protocol.receive(data)
        self._unanswered = self._protocol.take_publishes()
        self._is_counting = self._protocol.is_idle
        return received

    def _received(self, data: bytes | memoryview) -> None:
        """Count what was read if it is a run of the usual answers to publishes; else process it."""
        stored = self._callbacks.stored
        if stored is not None and self._unanswered and len(data) <= LONGEST_RUN:
            count = OK_RUNS.get(bytes(data))
            if count is not None and count <= self._unanswered:
                self._unanswered -= count
                stored(count)
                return
        received = self._receive(data)
        if received.heartbeats:
            self._last_heartbeat = self._loop.time()
            if received.messages:
                self.write(NOP)  # the answers to the messages follow
            else:
                self.write_now(NOP)
        if received.answers:
            self._answered(received.answers)
        if received.damaged:
            self._callbacks.damaged(received.damaged)
        if received.refusals:  # before the messages, which may be redelivered ones whose FIN was refused
            self._callbacks.refusals(received.refusals)
        if received.messages:
            self._callbacks.messages(received.messages)

    def _answered(self, answers: list[bytes | ServerError]) -> None:
        if self._waiters:  # of a subscription, whose connection has no publishes
            for answer in answers:
                self._take_answer(self._waiters.pop(0), answer)
        else:
            self._has_refused = isinstance(answers[-1], ServerError)
            self._callbacks.answers(answers)

    @staticmethod
    def _take_answer(waiter: asyncio.Future[bytes], answer: bytes | NsqError) -> None:
        if waiter.done():
            return
        if isinstance(answer, NsqError):
            waiter.set_exception(answer)
            waiter.exception()  # mark it as retrieved: the request's caller may be gone
        else:
            waiter.set_result(answer)

    def _lost(self, reason: NsqError) -> None:
        reason = self._named(reason)
        was_open, self.is_open = self.is_open, False
        callbacks = self._callbacks
        self._forget_owner()
        self._looks.remove(self.look)
        for waiter in self._waiters:
            self._take_answer(waiter, reason)
        self._waiters.clear()
        if not self._ended.done():
            self._ended.set_result(reason)
        if was_open:
            log.debug("%s: connection ended: %s", self.name, reason, extra={"nsqd": self.node.address})
            callbacks.lost(reason)
