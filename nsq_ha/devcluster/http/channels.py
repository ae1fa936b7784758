"""nsqd's HTTP for channels: make, delete, pause, skip, empty, order, offset.

Source: protocol reference 13; youzan/nsq ``nsqdserver/http.go``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.http.answers import HttpError
from nsq_ha.devcluster.http.query import NOT_LEADER, channel_name_of, led_channel_of, replica_of
from nsq_ha.devcluster.storage.search import SearchError
from nsq_ha.devcluster.storage.start import start_index

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.node import Nsqd


class ChannelOrders:
    """What operators ask of a channel on its leader."""

    def __init__(self, node: Nsqd) -> None:
        """Do it on one node."""
        self._node = node

    async def create(self, request: Request) -> None:
        """``/channel/create``."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if not replica.leads:
            raise HttpError(400, NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            raise HttpError(403, f"channel {name} not registered. channel should be initialized before use.")
        replica.channel(name)

    async def delete(self, request: Request) -> None:
        """``/channel/delete``; a channel that is not there counts as deleted."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if not replica.leads:
            raise HttpError(400, NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            text = f"channel {name} cuold not be deleted localy in nsqd."
            raise HttpError(403, f"topic {replica.topic} has channel auto create disabled. {text}")
        replica.remove_channel(name)

    async def pause(self, request: Request) -> None:
        """``/channel/pause``."""
        led_channel_of(self._node, request).paused = True

    async def unpause(self, request: Request) -> None:
        """``/channel/unpause``."""
        channel = led_channel_of(self._node, request)
        channel.paused = False
        channel.dispatch(self._node.now())

    async def skip(self, request: Request) -> None:
        """``/channel/skip``: confirm everything undelivered, now and until unskip."""
        channel = led_channel_of(self._node, request)
        channel.skipped = True
        channel.empty()
        channel.dispatch(self._node.now())

    async def unskip(self, request: Request) -> None:
        """``/channel/unskip``."""
        channel = led_channel_of(self._node, request)
        channel.skipped = False
        channel.refresh()
        channel.empty()
        channel.dispatch(self._node.now())

    async def empty(self, request: Request) -> None:
        """``/channel/empty``."""
        channel = led_channel_of(self._node, request)
        channel.empty()
        channel.dispatch(self._node.now())

    async def empty_delayed(self, request: Request) -> None:
        """``/channel/emptydelayed``."""
        led_channel_of(self._node, request).empty_delayed()

    async def accept(self, request: Request) -> None:
        """``/channel/setclientlimit``: accepted, without effect here."""
        led_channel_of(self._node, request)

    async def set_order(self, request: Request) -> None:
        """``/channel/setorder``; ``false`` cuts the consumers."""
        channel = led_channel_of(self._node, request)
        order = request.query_params.get("order")
        if order == "true":
            channel.switch_to_ordered()
            channel.dispatch(self._node.now())
        elif order == "false":
            channel.switch_to_unordered()
        else:
            raise HttpError(400, "INVALID_OPTION")

    async def set_offset(self, request: Request) -> None:
        """``/channel/setoffset``; the body is ``type:value``."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if name in replica.partition.topic.channels:
            # Whoever leads has what is registered, before anybody subscribed.
            replica.channel(name)
        if name not in replica.cursors:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        body = await request.body()
        if not body:
            raise HttpError(406, "MSG_EMPTY")
        channel = led_channel_of(self._node, request)
        try:
            index = start_index(replica.log, channel.end, body.decode("utf-8", "replace"))
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        except SearchError as error:
            raise HttpError(500, str(error)) from None
        channel.reset(index)
        channel.dispatch(self._node.now())

    async def finish(self, request: Request) -> None:
        """``/message/finish``: FIN for whoever holds the message."""
        channel = led_channel_of(self._node, request)
        text = request.query_params.get("msgid", "")
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise HttpError(400, "INVALID_REQUEST")
        entry = channel.in_flight.get(int(text))
        if entry is None:
            raise HttpError(500, "ErrType:7 ErrCode:0 : Message ID not in flight")
        channel.finish(int(text), entry.consumer, self._node.now())
