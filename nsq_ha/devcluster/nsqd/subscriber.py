"""One subscription of the partitioned nsqd: deliveries, FIN, REQ and TOUCH.

Source: server protocol 7; youzan/nsq ``FIN``, ``REQ``, ``TOUCH``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nsqd.any_session import AnySubscriber
from nsq_ha.devcluster.storage.replica import NOT_LEADER, NOT_WRITABLE, Waiting
from nsq_ha.protocol.ext_filter import Filter
from nsq_ha.protocol.messages import layout_for
from nsq_ha.protocol.server.gotext import byte_list

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.any_session import AnySession
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.log import Record
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol.ext_filter import FilterRule
    from nsq_ha.protocol.messages import Layout

_HEAD: Final = struct.Struct(">iiqHQQ")
_DETAIL: Final = struct.Struct(">QI")
_JSON: Final = b"\x04"


class Subscriber(AnySubscriber[int, "Record"]):
    """A consumer of one channel of a partitioned nsqd."""

    def __init__(self, session: AnySession, replica: Replica, channel: Channel, *, detail: bool) -> None:
        super().__init__(session, channel)
        self._replica = replica
        self._live = channel
        extended = replica.options.extended and session.settings.extend_support
        self._layout = layout_for(detail=detail, ext=extended)
        self.tag: str = session.settings.desired_tag if extended else ""
        self._filter = _filter_of(session.settings.ext_filter) if extended else None

    def leave(self) -> None:
        """Return the unanswered messages and leave the channel."""
        self.ready = 0
        self._live.remove(self, self._host.now())
        self._replica.leave(self._live)

    def wants(self, message: Record) -> bool:
        """Return whether to deliver the message; sampling and the client's filter leave others out."""
        return super().wants(message) and (self._filter is None or self._filter.passes(message.ext))

    def deliver(self, message: Record, attempts: int, *, at_once: bool) -> None:
        """Write the message; at once if RDY allows no more."""
        self.received += 1
        frame = message_frame(message, attempts, self._layout)
        self.session.send_message(frame, at_once=at_once or self.holds >= self.ready)

    def finish(self, message_id: bytes) -> None:
        """FIN. On an ordered channel it needs the replicas, like a write."""
        replica = self._replica
        if not replica.leads:
            self.session.fail(NOT_LEADER)
        elif not (replica.stalled and self._live.ordered):
            super().finish(message_id)
        elif replica.gave_up:
            self.session.fail(NOT_WRITABLE)
        else:
            wait(self.session, replica, lambda: AnySubscriber.finish(self, message_id))

    def _id(self, message_id: bytes) -> int:
        return int.from_bytes(message_id[:8], "big")

    def _refused(self, word: str, message_id: bytes, why: str) -> bytes:
        kind = "ErrType:7 ErrCode:0 : " if word == "FIN" else ""
        return f"E_{word}_FAILED {word} {byte_list(message_id)} failed {kind}{why}".encode()


def _filter_of(rule: FilterRule | None) -> Filter | None:
    """Return the client's filter. None if it has none, or a wrong one, which nsqd ignores."""
    if rule is None or not rule.type:
        return None
    try:
        return Filter(rule)
    except ValueError:
        return None


def wait(session: AnySession, replica: Replica, act: Callable[[], None]) -> None:
    """Call ``act`` once the replicas answer; close the connection if the wait ends without an answer."""

    def resume() -> None:
        session.unblock()
        act()

    session.block()
    replica.wait(Waiting(resume, session.fail))


def message_frame(record: Record, attempts: int, layout: Layout) -> bytes:
    """Encode a message frame: size, type, timestamp, attempts, id, the parts that the layout requires, and the body.

    Golden exchanges compare this fast path and ``protocol.messages`` with the real server's bytes.

    Source: server protocol 2.
    """
    ext, detail = layout.value
    parts = b""
    if ext:
        header = record.ext
        parts = b"\0" if header is None else _JSON + len(header).to_bytes(2, "big") + header
    if detail:
        parts += _DETAIL.pack(record.offset, record.raw_size)
    body = record.body
    size = 30 + len(parts) + len(body)
    head = _HEAD.pack(size, 2, record.timestamp_ns, attempts, record.internal_id, record.trace_id)
    return head + parts + body
