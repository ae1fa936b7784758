"""One client connection to nsqd, as bytes in and bytes out.

Owns the order: which answer belongs to which command, what may be sent now, where a layer ends. It does no I/O and has
no clock; ``engine.connection`` moves the bytes, watches heartbeats and closes.

The invariant: answers have no number, so the n-th answer belongs to the n-th command that has one. Heartbeats,
messages and failed FIN, REQ and TOUCH never count. Anything that does not fit ends the connection: if one answer went
to the wrong publish, all later ones would, too.

Source: server protocol 1, 3, 5, 7; server failures 1.
"""

from __future__ import annotations

import re
from itertools import repeat
from types import MappingProxyType
from typing import Final, cast

import msgspec

from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsq_ha.message import Message, MessageSource
from nsq_ha.protocol import commands
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.frames import (
    FRAME_HEAD,
    FRAME_TYPES,
    HEARTBEAT,
    OK,
    FrameType,
    check_size,
    encode_frame,
    unknown_type,
)
from nsq_ha.protocol.identify import Upgrade
from nsq_ha.protocol.messages import DamagedMessage, Layout, Reader, damage_of, reader_for
from nsq_ha.protocol.refusals import NEVER_ANSWERS, read_error
from nsq_ha.protocol.state import (
    ANSWERED,
    CONSUMING,
    OPEN,
    PUBLISHES,
    SENDS,
    SUBSCRIBES,
    UPGRADES,
    ConnectionState,
    Request,
    after_sending,
    check_arrival,
    is_answer,
)

_PUBLISH: Final = Request.PUBLISH  # reading a member from its enum is not free
_OK_FRAME: Final = encode_frame(FrameType.RESPONSE, OK)
_HEARTBEAT_FRAME: Final = encode_frame(FrameType.RESPONSE, HEARTBEAT)
OK_RUNS: Final = MappingProxyType({_OK_FRAME * count: count for count in range(1, 129)})
"""How many answers to publishes a read is that has nothing else: the usual case."""
LONGEST_RUN: Final = max(map(len, OK_RUNS))
"""The most bytes of such a read."""
_OK_FRAMES: Final = re.compile(b"(?:%b)+" % re.escape(_OK_FRAME))
_CLOSED: Final = ConnectionState.CLOSED  # needed for each read
_BULKY_BYTES: Final = 2048  # above it, a second copy of a body costs more than a memoryview


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


class Run(msgspec.Struct):
    """Requests of one kind in a row, as a count, since there may be thousands of publishes."""

    kind: Request
    count: int


class ClientProtocol:
    """The client's side of one connection.

    Args:
        max_frame_bytes: Largest frame. A larger one ends the connection before memory is reserved for it.

    Attributes:
        state: Where the connection stands.
        received: The result of the last :meth:`receive`. If that raised, the data before the fault is still valid.
    """

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.state: ConnectionState = ConnectionState.NEW
        self.received: Received = Received()
        self._largest = max_frame_bytes
        self._runs: list[Run] = []
        self._tail = bytearray()
        self._needed = 0
        self._held = False
        self._is_bulky = False
        self._source: MessageSource | None = None
        self._layout = Layout.PLAIN
        self._read: Reader | None = None

    # ------------------------------------------------------------ sending

    def send(self, command: commands.Command) -> bytes:
        """Return the bytes of ``command`` and record that they are sent.

        Use this for rare commands. For publishes, FIN, REQ, TOUCH and RDY of an open connection use the functions of
        ``protocol.encoding``, and call :meth:`expect_publish` for publishes. The first command must be IDENTIFY; the
        magic precedes it.

        Raises:
            LocalProtocolError: The command is not allowed now, or :meth:`subscribe_to` was not called before a
                subscription. Nothing was recorded; write nothing.
            ConfigError: A value of the command is not valid; as above.
        """
        sending = SENDS[type(command)]
        following, request = after_sending(self.state, sending, command.word.decode()), sending.request
        if request is Request.AUTH:
            self._check_idle()
        if request is Request.SUBSCRIBE and self._source is None:
            raise LocalProtocolError("call subscribe_to() with source and layout before you send a subscription")
        data = command.encode()
        if self.state is ConnectionState.NEW:
            data = MAGIC + data
        self.state = following
        if request is _PUBLISH:
            self.expect_publish()
        elif request is not None:
            self._runs.append(Run(request, 1))
        return data

    def subscribe_to(self, source: MessageSource, layout: Layout) -> None:
        """Set the source and the layout of messages; call this before the subscription is sent.

        Args:
            source: Becomes :attr:`Message.source <nsq_ha.Message>`.
            layout: From ``layout_for``; frames do not name it.

        Raises:
            LocalProtocolError: A subscription was already sent.
        """
        after_sending(self.state, SUBSCRIBES, "SUB")
        self._source = source
        self._layout = layout

    def expect_publish(self, count: int = 1) -> None:
        """Record that the caller writes ``count`` publish commands.

        Raises:
            LocalProtocolError: Publishing is not allowed now; write nothing.
        """
        after_sending(self.state, PUBLISHES, "a publish")
        runs = self._runs
        if runs and runs[-1].kind is _PUBLISH:
            runs[-1].count += count
        else:
            runs.append(Run(_PUBLISH, count))

    def expect_upgrade(self, upgrade: Upgrade) -> bytes:
        """Switch to another layer; its ``OK`` arrives inside it.

        Returns:
            The bytes after the last answer, none for TLS. Decompress them and pass the result to :meth:`receive`.

        Raises:
            LocalProtocolError: The last answer was neither to IDENTIFY nor the ``OK`` of another layer.
            RemoteProtocolError: Bytes arrived before TLS began. They may have been
                injected: drop the connection.
        """
        following = after_sending(self.state, UPGRADES, "TLS or compressed data")
        self._check_idle()
        trailing = self.take_trailing()
        if trailing and upgrade == "tls":
            self.state = ConnectionState.CLOSED
            raise RemoteProtocolError(
                f"{len(trailing)} bytes arrived in plain text after the answer to IDENTIFY, before TLS began: "
                "someone between this client and nsqd may have injected them"
            )
        self.state = following
        self._runs.append(Run(Request.UPGRADE, 1))
        return trailing

    def _check_idle(self) -> None:
        """Refuse a command that changes the meaning of later answers while earlier ones are outstanding."""
        if self.awaiting:
            raise LocalProtocolError(f"{self.awaiting} request(s) must be answered first")

    # ------------------------------------------------------------ receiving

    @property
    def awaiting(self) -> int:
        """Number of requests without an answer."""
        return sum(run.count for run in self._runs)

    @property
    def is_idle(self) -> bool:
        """Whether no answer is due, and no frame is unfinished."""
        return not (self._runs or self._tail)

    def take_publishes(self) -> int:
        """Expect no answers to publishes any more, and return how many are due: the caller counts them by itself.

        Return 0 if other answers are due, too, or if a frame is unfinished; then nothing is changed.
        """
        runs = self._runs
        if len(runs) != 1 or runs[0].kind is not _PUBLISH or self._tail:
            return 0
        return runs.pop().count

    def receive(self, data: bytes | bytearray | memoryview) -> Received:
        """Process received data; it may be cut anywhere.

        Reading stops after the answer to IDENTIFY and after the ``OK`` of an upgrade, since further bytes may belong to
        another layer: then call :meth:`expect_upgrade` for the next layer, or :meth:`take_trailing` if there is none,
        and pass the bytes to this method again. After the end, data is ignored.

        Args:
            data: The result of one read; the caller may reuse the buffer afterwards.

        Raises:
            RemoteProtocolError: The peer broke a rule; ``received`` has the data before that. Drop the connection.
        """
        received = self.received = Received()
        tail = self._tail
        if self.state is _CLOSED:
            return received
        position = 0
        if self._read is not None and self._source is not None and not tail and not self._is_bulky:
            if type(data) is not bytes:
                data = bytes(data)
            position = self._read(data, 0, self._largest, self._source, received.messages)
            if position == len(data):  # nothing but whole messages, the usual case
                self._is_bulky = position > _BULKY_BYTES and len(received.messages[-1].body) >= _BULKY_BYTES
                return received
            if data == _HEARTBEAT_FRAME:  # all that hundreds of idle connections get
                received.heartbeats = 1
                return received
        return self._receive_more(data, position, received)

    def _receive_more(self, data: bytes | bytearray | memoryview, position: int, received: Received) -> Received:
        """Process data that is more, or less, than whole messages; those before ``position`` were read."""
        tail = self._tail
        if self._held or (not position and len(tail) + len(data) < self._needed):
            tail += data
            if self._held and len(tail) > self._largest:
                self.state = ConnectionState.CLOSED
                raise RemoteProtocolError(f"more than {self._largest} bytes arrived before the next layer was set up")
            return received
        try:
            if self._is_bulky:
                data = self._take_bulk(data, received)
                if tail:
                    return received  # the frame is still unfinished
            elif tail:
                data = b"".join((tail, data))
                self._tail = bytearray()
            elif type(data) is not bytes:
                data = bytes(data)
            position = self._parse(data, received, position)
        except RemoteProtocolError:
            self.state = ConnectionState.CLOSED
            raise
        if position < len(data):
            self._tail += memoryview(data)[position:]
        if received.messages:
            self._is_bulky = len(received.messages[-1].body) >= _BULKY_BYTES
        return received

    def _take_bulk(self, data: bytes | bytearray | memoryview, received: Received) -> bytes:
        """Read large messages with one copy of each body; return the rest of the data.

        The unfinished frame of the last read is completed separately, so that the other frames are not copied.
        """
        tail = self._tail
        view = memoryview(data)
        while tail:
            missing = self._needed - len(tail)
            tail += view[:missing]
            if missing > len(view):
                return b""
            view = view[missing:]
            with memoryview(tail) as frame:
                position = self._read_bulk(frame, received)
            del tail[: position or self._parse(bytes(tail), received)]
        return bytes(view[self._read_bulk(view, received) :])

    def _read_bulk(self, view: memoryview, received: Received) -> int:
        """Read message frames from the start of ``view``; return where they end."""
        if self._read is None or self._source is None:
            return 0
        messages: list[Message] = []
        # The readers slice what they get; each slice becomes bytes here, the only copy.
        end = self._read(cast("bytes", view), 0, self._largest, self._source, messages)
        for message in messages:
            message.body = bytes(message.body)
            if message.ext is not None:
                message.ext = bytes(message.ext)
        received.messages += messages
        return end

    def _parse(self, data: bytes, received: Received, position: int = 0) -> int:
        """Read frames of ``data`` from ``position`` on; return where the unfinished rest begins."""
        end = len(data)
        while self.state is not _CLOSED and not self._held:
            if self._read is not None and self._source is not None:
                position = self._read(data, position, self._largest, self._source, received.messages)
                if position == end:
                    break
            if self._runs:
                after = self._read_oks(data, position, received.answers)
                if after != position:
                    position = after
                    continue  # a message may follow
            available = end - position
            if available < 8:
                if available >= 4:
                    check_size(int.from_bytes(data[position : position + 4], "big", signed=True), self._largest)
                self._needed = 8 if available >= 4 else 4
                return position
            size, kind = FRAME_HEAD.unpack_from(data, position)
            check_size(size, self._largest)
            if kind not in FRAME_TYPES:
                raise unknown_type(kind)
            stop = position + 4 + size
            if stop > end:
                self._needed = 4 + size
                return position
            self._take_frame(kind, data[position + 8 : stop], received)
            position = stop
        self._needed = 0
        return position

    def _read_oks(self, data: bytes, position: int, answers: list[bytes | ServerError]) -> int:
        """Read a run of plain ``OK`` answers to publishes; return the position after it."""
        run = self._runs[0]
        if run.kind is not Request.PUBLISH:
            return position
        found = _OK_FRAMES.match(data, position)
        if found is None:
            return position
        count = min((found.end() - position) // len(_OK_FRAME), run.count)
        answers.extend(repeat(OK, count))
        self._answered(run, count)
        return position + count * len(_OK_FRAME)

    def _answered(self, run: Run, count: int) -> None:
        run.count -= count
        if not run.count:
            del self._runs[0]

    def _take_frame(self, kind: int, data: bytes, received: Received) -> None:
        if kind == FrameType.RESPONSE:
            self._take_response(data, received)
        elif kind == FrameType.ERROR:
            self._take_error(data, received)
        else:
            check_arrival(self.state, CONSUMING, "a message")
            received.damaged.append(damage_of(data, self._layout))

    def _take_response(self, data: bytes, received: Received) -> None:
        if data == HEARTBEAT:
            check_arrival(self.state, OPEN, "a heartbeat")
            received.heartbeats += 1
            return
        if not self._runs:
            raise RemoteProtocolError(f"response {excerpt(data)} answers no request")
        run = self._runs[0]
        request = run.kind
        if not is_answer(request, data):
            raise RemoteProtocolError(f"response {excerpt(data)} is not an answer to {request.name}")
        self.state = ANSWERED.get(request, self.state)
        self._answered(run, 1)
        received.answers.append(data)
        if request is Request.SUBSCRIBE:
            self._read = reader_for(self._layout)
        # The next bytes may be TLS or compressed; only the caller knows.
        self._held = request in (Request.IDENTIFY, Request.UPGRADE)

    def _take_error(self, data: bytes, received: Received) -> None:
        error = read_error(data)
        run = self._runs[0] if self._runs and error.code not in NEVER_ANSWERS else None
        if run is None:
            check_arrival(self.state, CONSUMING, f"the unexpected error frame {str(error)!r}")
            received.refusals.append(error)
            return
        if run.kind is not _PUBLISH:
            self.state = ConnectionState.CLOSED  # the server closes after it
        self._answered(run, 1)
        received.answers.append(error)

    # ------------------------------------------------------------ layers

    def take_trailing(self) -> bytes:
        """Continue without another layer; return the bytes after the last answer, for :meth:`receive`.

        Raises:
            LocalProtocolError: Reading did not stop for a layer.
        """
        if not self._held:
            raise LocalProtocolError("the last answer was neither to IDENTIFY nor to an upgrade")
        trailing = bytes(self._tail)
        self._tail.clear()
        self._held = False
        return trailing

    def swallowed_heartbeats(self) -> int:
        """Count the heartbeats inside the unfinished frame.

        A frame with a damaged size swallows the next frames. A body may contain the
        same bytes, so this is evidence only if a frame takes too long.
        """
        return self._tail.count(_HEARTBEAT_FRAME)
