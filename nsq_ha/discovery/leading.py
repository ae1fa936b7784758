"""Changes that only the leading nsqlookupd takes, and views for those who wait for them.

Owns finding the leading one, asking again while nobody leads or the cluster is
not ready, and the time limit of a whole call. Does not know what is changed
(``admin``).

Source: protocol reference 12; failures reference 2, 3.6, 3.7.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self, TypeVar

from nsq_ha.discovery.http import ask, new_client
from nsq_ha.discovery.lookupd import Access, LookupClient
from nsq_ha.discovery.nsqd_http import NsqdHttp
from nsq_ha.discovery.servers import Servers
from nsq_ha.errors import (
    DiscoveryError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    TopicNotFoundError,
    TransportError,
    server_error,
)
from nsq_ha.policy.topology import Node, TopicView, merge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from types import TracebackType

PAUSE: Final = 0.3
"""Seconds between two looks at something that is under way."""

_LONGEST_PAUSE: Final = 2.0
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


class Bounded:
    """The time limit of a whole call, and what it has seen last for the error when the time is over.

    Args:
        what: For the error, such as "creating topic orders".
        timeout: Seconds.

    Attributes:
        last: The latest obstacle. None while there was none.
    """

    def __init__(self, what: str, timeout: float) -> None:
        self.last: NsqError | None = None
        self._text = f"{what} was not done within {timeout:g} s"
        self._limit = asyncio.timeout(timeout)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as over:
            if self.last is None:
                raise DiscoveryError(self._text) from over
            known = type(self.last) if isinstance(self.last, NoLeaderError | TopicNotFoundError) else DiscoveryError
            raise known(f"{self._text}: {self.last}") from self.last


class Leading:
    """The nsqlookupds seen as one: whoever leads takes the changes, all together give views.

    Args:
        urls: Base URLs of those that are configured.
        timeout: Seconds for one question to one server.
    """

    def __init__(self, urls: Iterable[str], *, timeout: float) -> None:
        configured = tuple(urls)
        self.timeout = timeout
        self.http = new_client(configured)
        self.servers = Servers(configured, timeout=timeout, client=self.http)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.servers.aclose()
        await self.http.aclose()

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
        """Have the leading nsqlookupd do something; waits for one, and until the cluster is ready for it.

        Args:
            path: What.
            params: With what.
            call: Bounds the waiting.
            done: Text of a refusal that means, after a try without answer, that it is done.
            known: Text of a refusal that means so in any case.
            timeout: Seconds for one try. None for some of :attr:`timeout`.

        Raises:
            TopicNotFoundError: There is no such topic.
            ServerError: Refused for good.
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
                    raise TopicNotFoundError(f"no topic {params['topic']}")
                call.last = server_error((body.message or f"HTTP status {body.status}").encode())
                if not any(word in text for word in _PASSING):
                    raise call.last
            await asyncio.sleep(pause)
            # An unstable cluster stays so for minutes, and each try is a line in its log.
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    async def leader(self, call: Bounded) -> str:
        """Return the base URL of the leading nsqlookupd; waits until there is one."""
        while True:
            await self.servers.refresh_lists()
            if self.servers.leader is not None:
                return self.servers.leader
            asked = tuple((url, "names no leader, or does not answer") for url in self.servers.urls)
            call.last = LookupUnavailableError("no nsqlookupd leads", asked)
            await asyncio.sleep(PAUSE)

    async def view(self, topic: str, access: Access, call: Bounded | None = None) -> TopicView:
        """Return what the nsqlookupds say now, nothing remembered.

        Args:
            topic: The topic.
            access: As reader or as writer.
            call: Bounds the waiting for a usable answer. None to wait for none.

        Raises:
            LookupUnavailableError: No usable answer, and ``call`` is None.
        """
        while True:
            result = await self.servers.look_up(topic, access)
            if result.error is None:
                return merge(None, result.answers, topic=topic)
            if call is None:
                raise result.error
            call.last = result.error
            await asyncio.sleep(PAUSE)

    async def existing(self, topic: str) -> TopicView:
        """Return a reader's view of a topic that must be there.

        Raises:
            TopicNotFoundError: It is not.
            LookupUnavailableError: No usable answer.
        """
        view = await self.view(topic, "r")
        if not view.exists:
            raise TopicNotFoundError(f"no topic {topic}")
        return view

    async def first(self, question: Callable[[LookupClient], Awaitable[T]]) -> T:
        """Put a question to all nsqlookupds and return the first good answer.

        Raises:
            LookupUnavailableError: None of them had one.
        """
        causes: list[tuple[str, str]] = []
        tasks = [asyncio.ensure_future(self._put(question, url)) for url in self.servers.urls]
        try:
            for ended in asyncio.as_completed(tasks):
                try:
                    return await ended
                except LookupUnavailableError as error:
                    causes.extend(error.causes)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise LookupUnavailableError("no nsqlookupd gave a usable answer", tuple(causes))

    def nsqd(self, node: Node) -> NsqdHttp:
        """Return a client of a node's HTTP; it needs no closing."""
        return NsqdHttp(node, timeout=self.timeout, client=self.http)

    async def _put(self, question: Callable[[LookupClient], Awaitable[T]], url: str) -> T:
        return await question(LookupClient(url, timeout=self.timeout, client=self.http))
