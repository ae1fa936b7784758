"""Questions to one nsqlookupd.

Owns the routes that read. Does not choose among several nsqlookupds
(``servers``, ``watcher``) and changes nothing in the cluster (``admin``).

Source: protocol reference 12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from nsq_ha.addresses import lookupd_urls
from nsq_ha.discovery import answers
from nsq_ha.discovery.http import HttpPeer
from nsq_ha.errors import ClosedError, ConfigError, LookupUnavailableError, NsqError
from nsq_ha.names import check_topic
from nsq_ha.unexpected import without_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from nsq_ha.discovery.answers import LookupdList, NodeInfo, TopicInfo
    from nsq_ha.discovery.body import Body
    from nsq_ha.policy.topology import LookupAnswer, Node

T = TypeVar("T")

Access = Literal["r", "w"]
"""``r`` names every leader, ``w`` only those that may be written now."""


class LookupClient(HttpPeer):
    """Asks one nsqlookupd.

    Use it as an async context manager, or call :meth:`aclose`.

    Args:
        lookupd: Its address: ``host:port`` or ``http://host:port``.
        timeout: Seconds for one whole question.
        client: An HTTP client to share. None for an own one.

    Raises:
        ConfigError: The address is not legal, or not one.
    """

    def __init__(self, lookupd: str, *, timeout: float = 1.0, client: httpx.AsyncClient | None = None) -> None:
        urls = lookupd_urls(lookupd)
        if len(urls) != 1:
            raise ConfigError(f"LookupClient asks one nsqlookupd, not {len(urls)}: {lookupd!r}")
        super().__init__(urls[0], timeout=timeout, client=client)
        self.lookupd = urls[0]

    async def lookup(self, topic: str, access: Access = "r") -> LookupAnswer:
        """Ask who leads the partitions of ``topic``.

        Returns:
            The answer, also for a topic that does not exist. ``leads`` is False:
            :meth:`list_lookupd` tells who leads.

        Raises:
            ConfigError: The topic's name is not legal.
            LookupUnavailableError: No usable answer; ask another one, or later.

        Cancellation leaves nothing behind.
        """
        params = {"topic": check_topic(topic), "access": access, "metainfo": "true"}
        return await self._ask("/lookup", params, lambda body: answers.decode_lookup(body, self.lookupd))

    async def plain_nodes(self, topic: str) -> tuple[Node, ...]:
        """Ask for the nsqds of a topic without partitions, as a plain nsqlookupd tells them; none for an unknown topic.

        Raises:
            ConfigError: The topic's name is not legal, or it has partitions: ask :meth:`lookup`.
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        params = {"topic": check_topic(topic), "metainfo": "true"}
        nodes = await self._ask("/lookup", params, answers.decode_plain_nodes)
        if nodes is None:
            raise ConfigError(f"topic {topic!r} has partitions")
        return nodes

    async def list_lookupd(self) -> LookupdList:
        """Ask for all nsqlookupds; ``supported`` is False where the server does not know the question.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        scheme = self.lookupd.partition(":")[0]
        return await self._ask("/listlookup", None, lambda body: answers.decode_lookupd_list(body, scheme))

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics by name.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        return await self._ask("/topics", {"metaInfo": "true"}, answers.decode_topics)

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the nsqds that are registered at this nsqlookupd, with the partitions they lead.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        return await self._ask("/nodes", None, answers.decode_nodes)

    async def channels(self, topic: str) -> tuple[str, ...]:
        """Return the channels of ``topic``; none for an unknown topic.

        Raises:
            ConfigError: The topic's name is not legal.
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        return await self._ask("/channels", {"topic": check_topic(topic)}, answers.decode_channels)

    async def _ask(self, path: str, params: Mapping[str, str] | None, decode: Callable[[Body], T]) -> T:
        """Ask, and turn any failure into the error that says who was asked.

        No local variable holds the answer: an error that somebody keeps holds the frames that it went through, and
        would hold megabytes with them.
        """
        try:
            return decode(await self._exchange("GET", path, params))
        except ClosedError:
            raise
        except NsqError as error:
            raise LookupUnavailableError("no usable answer", ((self.lookupd, str(error)),)) from without_frames(error)
