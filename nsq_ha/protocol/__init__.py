"""The wire protocol of nsqd, both sides, as bytes in and bytes out.

Pure: no I/O, no clock, no randomness. ``ClientProtocol`` is the client's side of a connection and ``Handshake`` its
start. The other modules: ``encoding`` (commands of the hot path as functions), ``messages``, ``frames``,
``compression``, ``server`` (the server's side of a connection).
"""

from nsq_ha.protocol.client import ClientProtocol, Received
from nsq_ha.protocol.commands import (
    Close,
    Command,
    Finish,
    Mpub,
    Pub,
    Ready,
    Requeue,
    Sub,
    SubAdvanced,
    SubOrdered,
    Touch,
)
from nsq_ha.protocol.handshake import GetSecret, Handshake, Receive, Send, StartCodec, StartTls
from nsq_ha.protocol.identify import Identity, Offer
from nsq_ha.protocol.messages import DamagedMessage, Layout, Traced, decode_traced, layout_for

__all__ = [
    "ClientProtocol",
    "Close",
    "Command",
    "DamagedMessage",
    "Finish",
    "GetSecret",
    "Handshake",
    "Identity",
    "Layout",
    "Mpub",
    "Offer",
    "Pub",
    "Ready",
    "Receive",
    "Received",
    "Requeue",
    "Send",
    "StartCodec",
    "StartTls",
    "Sub",
    "SubAdvanced",
    "SubOrdered",
    "Touch",
    "Traced",
    "decode_traced",
    "layout_for",
]
