"""Send changes to the leading nsqlookupd, and wait until they work.

Finds the leading nsqlookupd, and repeats a change while none leads or the cluster is
not ready. ``topics``, ``channels`` and ``cluster`` have the changes, ``bounded`` their
time limit.

The cluster accepts a change before it works. It may skip its first check of new
partitions, so this module requests another one after a while.

Source: server protocol 11; server failures 2, 3.6, 3.7.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from nsq_ha.admin.bounded import PAUSE
from nsq_ha.admin.nsqd_http import Https, NsqdHttp
from nsq_ha.engine.http import ask, new_client
from nsq_ha.engine.lookupd import Access, LookupClient
from nsq_ha.engine.servers import Servers
from nsq_ha.errors import (
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    TopicNotFoundError,
    TransportError,
    server_error,
)
from nsq_ha.policy.plain_topology import merge_round

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    import httpx

    from nsq_ha.admin.bounded import Bounded
    from nsq_ha.engine.answers import NodeInfo
    from nsq_ha.options.types import TlsConfig
    from nsq_ha.policy.topology import LookupAnswer, Node, TopicView

NUDGE_INTERVAL: Final = 7.0
"""Seconds between two requests for another check."""

_LONGEST_PAUSE: Final = 2.0
_RECENT: Final = 5.0
"""Seconds for which a lookup is used again where a caller reads message after message."""
_ABSENT: Final = ("key not found", "topic is not created")
_PASSING: Final = (
    "e_failed_on_not_leader",
    "not nsqlookup leader",
    "unstable",
    "balance is running",
    "waiting",
    "need wait",
    "upgrading",
)

T = TypeVar("T")


class Leading:
    """All nsqlookupds as one: changes go to the leading one, views are merged from all answers.

    Args:
        urls: Base URLs of the configured nsqlookupds.
        timeout: Seconds for one request to one server.
        tls: For nsqlookupds' https. None trusts the system's authorities.
        nsqd_tls: For the HTTPS of nsqds that refuse plain HTTP. None trusts the system's authorities.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        timeout: float,
        tls: TlsConfig | ssl.SSLContext | None = None,
        nsqd_tls: TlsConfig | ssl.SSLContext | None = None,
    ) -> None:
        configured = tuple(urls)
        self.timeout = timeout
        self.http: httpx.AsyncClient = new_client(configured, tls)
        self._https = Https(nsqd_tls)
        self.servers: Servers = Servers(configured, timeout=timeout, client=self.http)
        self._recent: dict[str, tuple[float, TopicView]] = {}
        self._comparing: asyncio.Task[None] | None = None
        self._are_several = len(configured) > 1

    async def start(self) -> None:
        """Compare the nsqlookupds if there are several, but wait only a little for one that hangs.

        Raises:
            ConfigError: They belong to several clusters.
        """
        if self._are_several:
            self._comparing = asyncio.create_task(self.servers.refresh_lists(), name="nsq_ha admin compares")
            await self.servers.started()

    async def aclose(self) -> None:
        """Close the connections."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        await self.servers.aclose()
        await self.http.aclose()
        await self._https.aclose()

    async def change(
        self,
        path: str,
        params: Mapping[str, str],
        call: Bounded,
        *,
        done: str = "",
        known: str = "",
        timeout: float | None = None,
    ) -> None:
        """Send a change to the leading nsqlookupd; wait until there is one and the cluster is ready.

        Args:
            path: The route.
            params: The query.
            call: Limits the waiting.
            done: Text of a refusal that means success if an earlier request got no answer.
            known: Text of a refusal that always means success.
            timeout: Seconds for one request. None uses five times :attr:`timeout`.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ServerError: The server refused, and a retry would not help.
        """
        in_doubt, pause = False, PAUSE
        while True:
            leader = await self.leader(call)
            try:
                body = await ask(self.http, "POST", leader + path, timeout=timeout or self.timeout * 5, params=params)
            except (TransportError, RemoteProtocolError) as error:
                call.last = LookupUnavailableError("no answer", ((leader, str(error)),))
                in_doubt = True
            else:
                text = body.message.lower()
                if body.status == 200 or (in_doubt and done and done in text) or (known and known in text):
                    return
                if any(word in text for word in _ABSENT):
                    raise TopicNotFoundError(f"topic {params['topic']!r} does not exist")
                call.last = server_error((body.message or f"HTTP status {body.status}").encode())
                if not any(word in text for word in _PASSING):
                    raise call.last
            await asyncio.sleep(pause)
            # An unstable cluster stays so for minutes, and logs each attempt.
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def tell(self, urls: Iterable[str], path: str, params: Mapping[str, str]) -> list[tuple[str, str]]:
        """Send a change to some nsqlookupds once.

        Returns:
            Their base URLs, each with the reason why it failed; empty if it did not.
        """

        async def one(url: str) -> tuple[str, str]:
            try:
                body = await ask(self.http, "POST", url + path, timeout=self.timeout, params=params)
            except (TransportError, RemoteProtocolError) as error:
                return url, str(error)
            return url, "" if body.status == 200 else body.message or f"HTTP status {body.status}"

        return await asyncio.gather(*map(one, urls))

    async def leader(self, call: Bounded) -> str:
        """Return the base URL of the leading nsqlookupd; wait until there is one.

        Raises:
            ConfigError: The nsqlookupds belong to several clusters.
        """
        while True:
            await self.servers.refresh_lists()
            self.servers.check()
            if self.servers.leader is not None:
                return self.servers.leader
            asked = tuple((url, "names no leader, or does not answer") for url in self.servers.urls)
            call.last = LookupUnavailableError("no nsqlookupd leads", asked)
            await asyncio.sleep(PAUSE)

    async def nodes(self, call: Bounded) -> tuple[NodeInfo, ...]:
        """Return the nsqds that the leading nsqlookupd lists; wait for its answer.

        It places the partitions. Another one that has just started does not know all nsqds yet.
        """
        while True:
            leader = await self.leader(call)
            try:
                return await self.lookupd(leader).nodes()
            except LookupUnavailableError as error:
                call.last = error
            await asyncio.sleep(PAUSE)

    async def view(self, topic: str, access: Access, call: Bounded | None = None) -> TopicView:
        """Return a view from new answers only.

        Args:
            topic: The topic.
            access: For reading or for writing.
            call: Limits the waiting for a usable answer. None asks only once.

        Raises:
            LookupUnavailableError: No usable answer, and ``call`` is None.
        """
        while True:
            result = await self.servers.look_up(topic, access)
            if result.error is None:
                return merge_round(topic, None, result.answers)
            if call is None:
                raise result.error
            call.last = result.error
            await asyncio.sleep(PAUSE)

    async def is_plain(self, topic: str, call: Bounded) -> bool:
        """Return whether the topic's cluster is a plain one, where no nsqlookupd leads; wait for an answer."""
        if not self.servers.has_lists:
            await self.servers.refresh_lists()
        return not self.servers.has_lists and (await self.view(topic, "r", call)).is_plain

    async def whole_view(self, topic: str) -> tuple[TopicView, Mapping[str, str]]:
        """Return what all nsqlookupds of a plain cluster say of a topic, and why others say nothing, by base URL.

        Each may be the only one that lists an nsqd, so the first answers are not enough.
        """
        answers: list[LookupAnswer] = []
        silent: dict[str, str] = {}

        async def ask(url: str) -> None:
            try:
                answers.append(await self.lookupd(url).lookup(topic))
            except LookupUnavailableError as error:
                silent[url] = "; ".join(text for _, text in error.causes)

        await asyncio.gather(*map(ask, self.servers.urls))
        return merge_round(topic, None, answers), silent

    async def existing(self, topic: str) -> TopicView:
        """Return the view for reading of an existing topic.

        Raises:
            TopicNotFoundError: It does not exist.
            LookupUnavailableError: No nsqlookupd gave a usable answer; or one of a plain cluster, which may be the only
                one that knows the topic, gave none.
        """
        view = await self.view(topic, "r")
        if view.is_plain and not view.exists:
            view, silent = await self.whole_view(topic)
            if silent and not view.exists:
                raise LookupUnavailableError(
                    f"not all nsqlookupds say whether topic {topic!r} exists", tuple(silent.items())
                )
        if not view.exists:
            raise TopicNotFoundError(f"topic {topic!r} does not exist")
        return view

    async def recent(self, topic: str) -> TopicView:
        """Return what :meth:`existing` returned in the last seconds, or ask; for many calls one after the other.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        now = asyncio.get_running_loop().time()
        asked, view = self._recent.get(topic, (-math.inf, None))
        if view is None or now - asked > _RECENT:
            view = await self.existing(topic)
            self._recent[topic] = (now, view)
        return view

    def forget(self, topic: str) -> None:
        """Ask again in the next :meth:`recent`."""
        self._recent.pop(topic, None)

    async def collect(self, question: Callable[[LookupClient], Awaitable[T]]) -> tuple[T, ...]:
        """Ask all nsqlookupds. Return the first answer if they share what they know, otherwise all answers.

        Those of a plain cluster are independent: each knows only what registered at it.

        Raises:
            LookupUnavailableError: None of them gave a usable answer.
        """
        answers: list[T] = []
        causes: list[tuple[str, str]] = []
        tasks = [asyncio.ensure_future(self._ask(question, url)) for url in self.servers.urls]
        try:
            for ended in asyncio.as_completed(tasks):
                try:
                    answer, is_shared = await ended
                except LookupUnavailableError as error:
                    causes.extend(error.causes)
                    continue
                if is_shared:
                    return (answer,)
                answers.append(answer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if answers:
            return tuple(answers)
        raise LookupUnavailableError("no nsqlookupd gave a usable answer", tuple(causes))

    async def is_shown(self, view: TopicView, flag: Literal["is_leader", "extended"], *, silent: bool = False) -> bool:
        """Return whether every partition has a leader that shows a flag; a lookup may be a minute ahead of the nsqd.

        Args:
            view: Names the leaders.
            flag: The field of their statistics.
            silent: An nsqd whose HTTP does not answer counts as one that shows it.
        """
        shown: set[int] = set()
        for node in set(view.leaders.values()):
            led = {partition for partition, leader in view.leaders.items() if leader == node}
            try:
                found = await self.nsqd(node).stats(view.topic, leader_only=True)
            except NsqError:
                shown |= led if silent else set()
            else:
                shown |= led & {e.partition for e in found if e.topic == view.topic and getattr(e, flag)}
        return view.complete and shown == view.leaders.keys()

    def nsqd(self, node: Node) -> NsqdHttp:
        """Return a client of a node's HTTP. It shares this object's connections, so it need not be closed."""
        return NsqdHttp(node, timeout=self.timeout, client=self.http, https=self._https)

    def lookupd(self, url: str) -> LookupClient:
        """Return a client of an nsqlookupd, which need not be closed, either."""
        return LookupClient(url, timeout=self.timeout, client=self.http)

    async def _ask(self, question: Callable[[LookupClient], Awaitable[T]], url: str) -> tuple[T, bool]:
        """Return the answer, and whether the nsqlookupd lists others."""
        client = self.lookupd(url)
        answer = await question(client)
        try:
            return answer, self.servers.has_lists or (await client.list_lookupd()).supported
        except LookupUnavailableError:
            return answer, False


async def until_usable(
    leading: Leading, topic: str, partitions: int, call: Bounded, *, needs_channels: bool = True
) -> TopicView:
    """Wait for all leaders. After a while request another check from the cluster, which may have skipped one."""
    loop = asyncio.get_running_loop()
    nudge_at = loop.time() + NUDGE_INTERVAL
    while True:
        usable = await leading.view(topic, "r", call)
        if needs_channels:
            writable = await leading.view(topic, "w", call)
            # By default nsqlookupd hides a topic without channel from publishers.
            usable = usable if "no channel" in writable.note.lower() else writable
        if usable.complete and usable.partition_num == partitions:
            if await leading.is_shown(usable, "is_leader", silent=True):
                return usable
            call.last = NoLeaderError(f"{topic}: the nsqds that nsqlookupd names as leaders do not serve it yet")
        else:
            call.last = unled(usable, partitions)
        if loop.time() >= nudge_at:
            nudge_at = loop.time() + NUDGE_INTERVAL
            await leading.tell([await leading.leader(call)], "/topic/meta/update", {"topic": topic})
        await asyncio.sleep(PAUSE)


def unled(view: TopicView, partitions: int) -> NoLeaderError:
    """Return the error for a topic that has partitions without leader."""
    missing = ", ".join(str(number) for number in range(partitions) if number not in view.leaders)
    note = f" ({view.note})" if view.note else ""
    if missing:
        return NoLeaderError(f"topic {view.topic!r}: no leader for partition {missing}{note}")
    return NoLeaderError(f"topic {view.topic!r}: the nsqlookupds name different leaders or partition counts{note}")
