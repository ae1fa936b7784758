"""Questions to one nsqlookupd.

Owns the routes that read. Does not choose among several nsqlookupds
(``servers``, ``watcher``) and changes nothing in the cluster (``admin``).

Source: protocol reference 12.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

from nsq_ha.addresses import lookupd_urls
from nsq_ha.discovery import answers
from nsq_ha.discovery.http import HttpPeer
from nsq_ha.errors import ClosedError, ConfigError, LookupUnavailableError, NsqError
from nsq_ha.names import check_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

    from nsq_ha.discovery.answers import LookupdList, NodeInfo, TopicInfo
    from nsq_ha.discovery.body import Body
    from nsq_ha.policy.topology import LookupAnswer, Node

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
        body = await self._get("/lookup", params)
        with self._failures():
            return answers.decode_lookup(body, self.lookupd)

    async def plain_nodes(self, topic: str) -> tuple[Node, ...]:
        """Ask for the nsqds of a topic without partitions, as a plain nsqlookupd tells them; none for an unknown topic.

        Raises:
            ConfigError: The topic's name is not legal, or it has partitions: ask :meth:`lookup`.
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        params = {"topic": check_topic(topic), "metainfo": "true"}
        body = await self._get("/lookup", params)
        with self._failures():
            nodes = answers.decode_plain_nodes(body)
        if nodes is None:
            raise ConfigError(f"topic {topic!r} has partitions")
        return nodes

    async def list_lookupd(self) -> LookupdList:
        """Ask for all nsqlookupds; ``supported`` is False where the server does not know the question.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        body = await self._get("/listlookup")
        with self._failures():
            return answers.decode_lookupd_list(body, self.lookupd.partition(":")[0])

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics by name.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        body = await self._get("/topics", {"metaInfo": "true"})
        with self._failures():
            return answers.decode_topics(body)

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the nsqds that are registered at this nsqlookupd, with the partitions they lead.

        Raises:
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        body = await self._get("/nodes")
        with self._failures():
            return answers.decode_nodes(body)

    async def channels(self, topic: str) -> tuple[str, ...]:
        """Return the channels of ``topic``; none for an unknown topic.

        Raises:
            ConfigError: The topic's name is not legal.
            LookupUnavailableError: No usable answer; ask another one, or later.
        """
        body = await self._get("/channels", {"topic": check_topic(topic)})
        with self._failures():
            return answers.decode_channels(body)

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> Body:
        with self._failures():
            return await self._exchange("GET", path, params)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what one question fails with into the error that says whom was asked."""
        try:
            yield
        except ClosedError:
            raise
        except NsqError as error:
            raise LookupUnavailableError("no usable answer", ((self.lookupd, str(error)),)) from error
