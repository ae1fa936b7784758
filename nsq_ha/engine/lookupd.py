"""A client of one nsqlookupd, for reading.

``servers`` chooses among several nsqlookupds; ``admin`` changes the cluster.

Source: server protocol 11.
"""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from nsq_ha.base.unexpected import without_frames
from nsq_ha.engine import answers
from nsq_ha.engine.answers import LookupdList, NodeInfo, TopicInfo
from nsq_ha.engine.body import Body
from nsq_ha.engine.http import HttpPeer
from nsq_ha.errors import ClosedError, ConfigError, LookupUnavailableError, NsqError
from nsq_ha.options.checks import check_topic, lookupd_urls
from nsq_ha.options.types import TlsConfig
from nsq_ha.policy.topology import LookupAnswer

if TYPE_CHECKING:
    import httpx
else:
    from nsq_ha.engine.http import httpx

T = TypeVar("T")

_NO_ANSWER: Final = "no usable answer"

Access = Literal["r", "w"]
"""``r`` for every leader, ``w`` only for leaders of partitions that can be written now."""


class LookupClient(HttpPeer):
    """Asks one nsqlookupd.

    Use it as an async context manager, or call :meth:`aclose`.

    Args:
        lookupd: Its address: ``host:port`` or ``http://host:port``.
        timeout: Seconds for one request, from connecting to the end of the answer.
        client: An HTTP client to share. None creates a private one.
        lookupd_tls: TLS for an ``https://`` address, without ``client``. None trusts the system's authorities.

    Attributes:
        lookupd: Its base URL.

    Raises:
        ConfigError: The address is not valid, there are several, or ``lookupd_tls`` cannot be used.
    """

    def __init__(
        self,
        lookupd: str,
        *,
        timeout: float = 1.0,
        client: httpx.AsyncClient | None = None,
        lookupd_tls: TlsConfig | ssl.SSLContext | None = None,
    ) -> None:
        urls = lookupd_urls(lookupd)
        if len(urls) != 1:
            raise ConfigError(f"LookupClient takes the address of one nsqlookupd, not of {len(urls)}: {lookupd!r}")
        super().__init__(urls[0], timeout=timeout, client=client, tls=lookupd_tls)
        self.lookupd: str = urls[0]

    async def lookup(self, topic: str, access: Access = "r") -> LookupAnswer:
        """Ask who leads the partitions of ``topic``.

        A plain nsqlookupd answers with the nsqds that have the topic. If none has it, and ``access`` is ``w``, this
        asks for all nsqds, since each creates a topic that is published to it.

        Returns:
            The answer, even if the topic does not exist. ``leads`` is always
            False; :meth:`list_lookupd` names the leading nsqlookupd.

        Raises:
            ConfigError: The topic's name is not valid.
            LookupUnavailableError: No usable answer; ask another nsqlookupd, or ask later.

        Cancellation leaves nothing behind.
        """
        params = {"topic": check_topic(topic), "access": access, "metainfo": "true"}
        answer = await self._ask("/lookup", params, lambda body: answers.decode_lookup(body, self.lookupd))
        if access == "w" and answer.nodes == ():
            candidates = tuple(info.node for info in await self.nodes() if topic not in info.tombstoned)
            answer = dataclasses.replace(answer, candidates=candidates, exists=answer.exists or bool(candidates))
        return answer

    async def list_lookupd(self) -> LookupdList:
        """Ask for all nsqlookupds; ``supported`` is False if the server does not know the route.

        Raises:
            LookupUnavailableError: No usable answer; ask another nsqlookupd, or ask later.
        """
        scheme = self.lookupd.partition(":")[0]
        return await self._ask("/listlookup", None, lambda body: answers.decode_lookupd_list(body, scheme))

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics by name.

        Raises:
            LookupUnavailableError: No usable answer; ask another nsqlookupd, or ask later.
        """
        return await self._ask("/topics", {"metaInfo": "true"}, answers.decode_topics)

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the nsqds registered at this nsqlookupd, with the partitions that they lead.

        Raises:
            LookupUnavailableError: No usable answer; ask another nsqlookupd, or ask later.
        """
        return await self._ask("/nodes", None, answers.decode_nodes)

    async def channels(self, topic: str, partition: int | None = None) -> tuple[str, ...]:
        """Return the channels of ``topic``, or of one of its partitions; none for an unknown topic.

        Raises:
            ConfigError: The topic's name is not valid.
            LookupUnavailableError: No usable answer; ask another nsqlookupd, or ask later.
        """
        params = {"topic": check_topic(topic)} | ({} if partition is None else {"partition": str(partition)})
        return await self._ask("/channels", params, answers.decode_channels)

    async def _ask(self, path: str, params: Mapping[str, str] | None, decode: Callable[[Body], T]) -> T:
        """Send a request; turn any failure into an error that names the server."""
        try:
            return decode(await self._exchange("GET", path, params))
        except ClosedError:
            raise
        except NsqError as error:
            raise LookupUnavailableError(_NO_ANSWER, ((self.lookupd, str(error)),)) from without_frames(error)
