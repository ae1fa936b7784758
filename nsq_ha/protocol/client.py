"""One client connection to nsqd, as bytes in and bytes out.

Owns the order of things: which answer belongs to which command, what may be
sent now, where a layer ends. Does no I/O and knows no time; ``transport`` moves
the bytes, watches heartbeats and closes.

The invariant: answers carry no number, so the n-th answer belongs to the n-th
command that has one. Heartbeats, messages and failed FIN, REQ and TOUCH never
count. Whatever does not fit ends the connection: one answer misattributed would
put every later one on the wrong publish.

Source: protocol reference 1, 3, 5, 7; failures reference 1.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Final, cast

from nsq_ha.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.exchange import ANSWERED, NEVER_ANSWERS, SENDS, Received, Request, Run, is_answer, read_error
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
from nsq_ha.protocol.messages import Layout, Reader, damage_of, reader_for
from nsq_ha.protocol.state import PUBLISHING, Input, State, advance
from nsq_ha.redaction import excerpt

if TYPE_CHECKING:
    from nsq_ha.message import Message, MessageSource
    from nsq_ha.protocol import commands
    from nsq_ha.protocol.identify import Upgrade


_PUBLISH: Final = Request.PUBLISH  # to read a member from its enum is not free
_OK_FRAME: Final = encode_frame(FrameType.RESPONSE, OK)
_HEARTBEAT_FRAME: Final = encode_frame(FrameType.RESPONSE, HEARTBEAT)
_OK_RUN: Final = 32
_OK_RUNS: Final = {_OK_FRAME * count: count for count in range(1, 129)}
_LONGEST_OK_RUN: Final = 128 * len(_OK_FRAME)
_OK_FRAMES: Final = _OK_FRAME * _OK_RUN
_CLOSED: Final = State.CLOSED  # looked up for each read
_BULKY_BYTES: Final = 2048  # from here on a second copy of a body costs more than a memoryview does


class ClientProtocol:
    """The client's side of one connection.

    Args:
        max_frame_bytes: A frame that announces more ends the connection before
            anything is reserved for it.

    Attributes:
        state: Where the connection stands.
        awaiting: Number of requests without an answer.
        received: What the last :meth:`receive` found, also when it raised: what
            came before the fault is good.
    """

    def __init__(self, *, max_frame_bytes: int) -> None:
        self.state = State.NEW
        self.awaiting = 0
        self.received = Received()
        self._largest = max_frame_bytes
        self._runs: deque[Run] = deque()
        self._tail = bytearray()
        self._needed = 0
        self._held = False
        self._is_bulky = False
        self._source: MessageSource | None = None
        self._layout = Layout.PLAIN
        self._read: Reader | None = None

    # ------------------------------------------------------------ sending

    def send(self, command: commands.Command) -> bytes:
        """Return the bytes of ``command`` and note that they were sent.

        For what is sent seldom; publishes and answers of a running connection
        are encoded by the functions of ``protocol.commands``, the former
        announced by :meth:`expect_publish`. The first command is IDENTIFY, and
        the magic stands before it.

        Raises:
            LocalProtocolError: The command is not allowed now, or a
                subscription was not announced by :meth:`subscribe_to`. Nothing
                was noted and nothing may be written.
            ConfigError: A value of the command is not legal; as above.
        """
        try:
            event, request = SENDS[type(command)]
        except KeyError:
            raise LocalProtocolError(f"{type(command).__name__} is no command of a client") from None
        following = advance(self.state, event)
        if event is Input.SEND_AUTH:
            self._check_idle()
        if request is Request.SUBSCRIBE and self._source is None:
            raise LocalProtocolError("subscribe_to() must tell source and layout before a subscription is sent")
        data = command.encode()
        if self.state is State.NEW:
            data = MAGIC + data
        self.state = following
        if request is not None:
            self._expect(request)
        return data

    def subscribe_to(self, source: MessageSource, layout: Layout) -> None:
        """Tell what messages will belong to, before the subscription is sent.

        Args:
            source: Becomes :attr:`Message.source <nsq_ha.Message>`.
            layout: From ``layout_for``; nothing on the wire tells it.

        Raises:
            LocalProtocolError: A subscription was sent already.
        """
        advance(self.state, Input.SEND_SUBSCRIBE)
        self._source = source
        self._layout = layout

    def expect_publish(self, count: int = 1) -> None:
        """Note that the caller writes ``count`` commands of the PUB family itself.

        Raises:
            LocalProtocolError: Publishing is not allowed now; write nothing.
        """
        if self.state not in PUBLISHING:
            self.state = advance(self.state, Input.SEND_PUBLISH)
        self.awaiting += count
        runs = self._runs
        if runs and runs[-1].kind is _PUBLISH:
            runs[-1].count += count
        else:
            runs.append(Run(_PUBLISH, count))

    def expect_upgrade(self, upgrade: Upgrade) -> bytes:
        """Switch to another layer; its ``OK`` comes inside it.

        Args:
            upgrade: The layer.

        Returns:
            The bytes after the last answer, empty for TLS. They belong to the new
            layer; pass them through it, and the result to :meth:`receive`.

        Raises:
            LocalProtocolError: The connection does not stand behind the answer
                to IDENTIFY, or behind the ``OK`` of another layer.
            RemoteProtocolError: Bytes came before TLS began. Anybody on the way
                may have injected them: drop the connection.
        """
        following = advance(self.state, Input.SEND_UPGRADE)
        self._check_idle()
        trailing = self.take_trailing()
        if trailing and upgrade == "tls":
            self.state = State.CLOSED
            raise RemoteProtocolError(
                f"{len(trailing)} bytes came in plain text after the answer to IDENTIFY and before TLS began: "
                "somebody between here and nsqd may have injected them"
            )
        self.state = following
        self._expect(Request.UPGRADE)
        return trailing

    def _check_idle(self) -> None:
        """Refuse what changes the meaning of later answers while earlier ones are outstanding."""
        if self.awaiting:
            raise LocalProtocolError(f"{self.awaiting} request(s) must be answered first")

    def _expect(self, request: Request) -> None:
        if request is _PUBLISH:
            self.expect_publish()
            return
        self.awaiting += 1
        self._runs.append(Run(request, 1))

    # ------------------------------------------------------------ receiving

    def take_oks(self, data: bytes | memoryview) -> int:
        """Take a read that is nothing but ``OK`` to publishes, as all are while nothing is wrong; return how many.

        0 when it is anything else: then nothing was taken, give it to :meth:`receive`.
        """
        runs = self._runs
        if not runs or self._tail or self.state is _CLOSED or len(data) > _LONGEST_OK_RUN:
            return 0
        run, count = runs[0], _OK_RUNS.get(bytes(data), 0)
        if run.kind is not _PUBLISH or not 0 < count <= run.count:
            return 0
        self._answered(run, count)
        return count

    def receive(self, data: bytes | bytearray | memoryview) -> Received:
        """Read what the peer sent; cut anywhere.

        Reading stops behind the answer to IDENTIFY and behind the ``OK`` of an
        upgrade, since what follows may belong to another layer: then call
        :meth:`expect_upgrade` for the next layer, or :meth:`take_trailing` when
        there is none, and give the bytes back here. What comes after the connection is closed is ignored.

        Args:
            data: What one read gave; the caller may reuse the buffer afterwards.

        Raises:
            RemoteProtocolError: The peer broke a rule; the state is closed. Drop
                the connection; ``received`` has what came before the fault.
        """
        received = self.received = Received()
        tail = self._tail
        if self.state is _CLOSED:
            return received
        if self._held or len(tail) + len(data) < self._needed:
            tail += data
            if self._held and len(tail) > self._largest:
                self.state = State.CLOSED
                raise RemoteProtocolError(f"more than {self._largest} bytes came before the next layer was set up")
            return received
        try:
            if self._is_bulky:
                data = self._take_bulk(data, received)
            elif tail:
                data = b"".join((tail, data))
                self._tail = bytearray()
            elif type(data) is not bytes:
                data = bytes(data)
            position = self._parse(data, received)
        except RemoteProtocolError:
            self.state = State.CLOSED
            raise
        if position < len(data):
            self._tail += memoryview(data)[position:]
        if received.messages:
            self._is_bulky = len(received.messages[-1].body) >= _BULKY_BYTES
        return received

    def _take_bulk(self, data: bytes | bytearray | memoryview, received: Received) -> bytes:
        """Read large messages with one copy of each body; return what follows them.

        The unfinished frame of the last read is completed by itself, so that the
        others need not be moved to stand behind it.
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
        # The readers cut out of whatever they are given; here each cut becomes bytes, the only copy.
        end = self._read(cast("bytes", view), 0, self._largest, self._source, messages)
        for message in messages:
            message.body = bytes(message.body)
            if message.ext is not None:
                message.ext = bytes(message.ext)
        received.messages += messages
        return end

    def _parse(self, data: bytes, received: Received) -> int:
        """Read frames from the start of ``data``; return where the unfinished rest begins."""
        position = 0
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
        """Read a run of plain ``OK`` while publishes wait for them; return the position behind it."""
        run = self._runs[0]
        if run.kind is not Request.PUBLISH:
            return position
        left = run.count
        while left >= _OK_RUN and data.startswith(_OK_FRAMES, position):
            position += len(_OK_FRAMES)
            left -= _OK_RUN
        while left and data.startswith(_OK_FRAME, position):
            position += len(_OK_FRAME)
            left -= 1
        if left < run.count:
            answers.extend(repeat(OK, run.count - left))
            self._answered(run, run.count - left)
        return position

    def _answered(self, run: Run, count: int) -> None:
        self.awaiting -= count
        run.count -= count
        if not run.count:
            self._runs.popleft()

    def _take_frame(self, kind: int, data: bytes, received: Received) -> None:
        if kind == FrameType.RESPONSE:
            self._take_response(data, received)
        elif kind == FrameType.ERROR:
            self._take_error(data, received)
        else:
            self.state = advance(self.state, Input.RECV_MESSAGE)
            received.damaged.append(damage_of(data, self._layout))

    def _take_response(self, data: bytes, received: Received) -> None:
        if data == HEARTBEAT:
            self.state = advance(self.state, Input.RECV_HEARTBEAT)
            received.heartbeats += 1
            return
        if not self._runs:
            raise RemoteProtocolError(f"response {excerpt(data)} answers no request")
        run = self._runs[0]
        request = run.kind
        if not is_answer(request, data):
            raise RemoteProtocolError(f"response {excerpt(data)} is no answer to {request.name}")
        self.state = advance(self.state, ANSWERED[request])
        self._answered(run, 1)
        received.answers.append(data)
        if request is Request.SUBSCRIBE:
            self._read = reader_for(self._layout)
        # What follows may be TLS or compressed: only the caller knows.
        self._held = request in (Request.IDENTIFY, Request.UPGRADE)

    def _take_error(self, data: bytes, received: Received) -> None:
        error = read_error(data)
        run = self._runs[0] if self._runs else None
        event = Input.RECV_STRAY_ERROR
        if error.code in NEVER_ANSWERS:
            run, event = None, Input.RECV_ANSWER_ERROR
        elif run is not None:
            event = Input.RECV_PUBLISH_ERROR if run.kind is Request.PUBLISH else Input.RECV_REFUSAL
        try:
            self.state = advance(self.state, event)
        except RemoteProtocolError as fault:
            raise RemoteProtocolError(f"error frame {str(error)!r} came out of place: {fault}") from None
        if run is None:
            received.refusals.append(error)
        else:
            self._answered(run, 1)
            received.answers.append(error)

    # ------------------------------------------------------------ layers and the end

    def take_trailing(self) -> bytes:
        """Return what followed the answer to IDENTIFY, or the ``OK`` of an upgrade, and go on reading.

        For when no further layer follows: give the bytes to :meth:`receive`.

        Raises:
            LocalProtocolError: Reading did not stop for a layer.
        """
        if not self._held:
            raise LocalProtocolError("nothing is held back: the last answer ended no layer")
        trailing = bytes(self._tail)
        self._tail.clear()
        self._held = False
        self._needed = 0
        return trailing

    def swallowed_heartbeats(self) -> int:
        """Count the heartbeats inside the frame that has not come to its end.

        A size that was damaged on the way swallows the frames that follow. A body
        may hold the same bytes, so this tells only of a frame that takes too long.
        """
        return self._tail.count(_HEARTBEAT_FRAME)

    def end_of_stream(self) -> list[Request]:
        """Note that the stream ended, by whichever side.

        Returns:
            The requests without an answer, oldest first; publishes among them
            are in doubt.
        """
        self.state = advance(self.state, Input.RECV_EOF)
        unanswered = [run.kind for run in self._runs for _ in range(run.count)]
        self._runs.clear()
        self.awaiting = 0
        self._tail.clear()
        return unanswered
