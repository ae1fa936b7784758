"""Blocking requests to nsqlookupds and partition leaders, for Spark's processes.

This module runs the asynchronous clients of ``engine`` in a private event loop, call
by call: Spark runs driver and task code in its own Python processes, where no loop runs.
It does not decide what the answers mean for a read (``plan``, ``read``).

Leaders that are known are asked directly. nsqlookupds say what has changed; while none of
them answers, what they said last counts, and they are asked only now and then.

**Source:** Spark design 1.1, 1.2.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from nsq_ha.admin.bounded import several
from nsq_ha.admin.nsqd_http import NsqdHttp, Search, StoredMessage
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.engine.servers import GRACE, Servers
from nsq_ha.errors import (
    ChannelNotRegisteredError,
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    ServerError,
)
from nsq_ha.options.checks import EPHEMERAL_SUFFIX
from nsq_ha.options.start_from import StartFrom
from nsq_ha.policy.topology import Node, TopicMeta, TopicView, merge
from nsq_ha.spark import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    import httpx

    from nsq_ha.admin.description import Unfinished
    from nsq_ha.spark.checkpoint import TopicPartition

TIMEOUT: Final = 2.0
"""Seconds for one request; short, since a task retries."""

ROUTINE: Final = 2.0
"""Seconds after which the nsqlookupds are asked again although nothing shows that their answer has changed."""

_ROUTINE_TIMEOUT: Final = 0.5  # of a lookup whose answer is probably known
_PAUSE: Final = 2.0  # without an answer; but if nothing shows a change:
_ROUTINE_PAUSE: Final = 15.0

_REUSED: Final = "SPARK_REUSE_WORKER"  # a variable that Spark sets to 1 in processes that run several tasks
_FLUSHED_WITHIN: Final = 0.1  # a new channel flushes on its own
_FLUSHED_LOOK: Final = 0.005
_AT_ONCE: Final = 4  # more take longer: httpcore looks at each connection for each request
_CHANNEL_END: Final = re.compile(rb"channel end : &\{\{\{\d+ \d+\} (\d+)\} (\d+)\}")

_COLLECTED_EACH: Final = 100_000  # new objects; a search for cycles costs as much as reading 700 messages


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a partition's log, as its leader reports it.

    Attributes:
        start: Offset of the oldest kept message.
        end: Offset after the newest message; of those that :meth:`BlockingCluster.extents` returns, the last part may
            not be committed to the replicas yet.
        messages: Number of messages ever stored, which is the number of the newest one.
    """

    start: int
    end: int
    messages: int = 0


def temporary_channel(prefix: str) -> str:
    """Return an unused name of a channel that vanishes when its last client leaves."""
    return f"{prefix}{secrets.token_hex(8)}{EPHEMERAL_SUFFIX}"


class BlockingCluster:
    """Blocking requests. A context manager; use it in one thread, outside any running event loop.

    Args:
        lookupd: Base URLs of nsqlookupds; they list the others.
        timeout: Seconds for one request.

    Attributes:
        lookupd: As given.
        silence: Why the last lookup had no answer. None if it had one.
        unanswered: Temporary channels, by topic, partition, node and prefix, of which a node has not said whether they
            exist. It may create one later, and keeps it until its last client leaves: so the next read takes it.
        uncopied: Addresses of the nsqds from which ``fetch=bulk`` cannot copy.
    """

    def __init__(self, lookupd: tuple[str, ...], *, timeout: float = TIMEOUT) -> None:
        self.silence: LookupUnavailableError | None = None
        self.lookupd: tuple[str, ...] = lookupd
        self.unanswered: dict[tuple[str, int, Node, str], str] = {}
        self.uncopied: set[str] = set()
        self._timeout = timeout
        self._runner = asyncio.Runner()
        self._client: httpx.AsyncClient | None = None
        self._servers: Servers | None = None
        self._known: dict[tuple[str, str], Any] = {}  # the answers, by question and topic
        self._answered_at: dict[tuple[str, str], float] = {}
        self._failed_at = 0.0
        self._committed: dict[TopicPartition, tuple[Node, Extent]] = {}
        self._look: dict[Node, Mapping[str, dict[int, Extent]] | NsqError] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the loop; a second call does nothing."""
        if self._client is not None:
            self._runner.run(self._aclose())
        self._runner.close()

    def view(self, topic: str, max_age: float = 0.0) -> TopicView:
        """Ask the nsqlookupds once about ``topic``.

        Args:
            topic: The topic.
            max_age: Seconds for which an earlier answer counts, since nothing shows that it is out of date.

        Returns:
            The merged view of this and earlier answers; the last one while no nsqlookupd answers.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer, and none did before; try again.
            ConfigError: The nsqlookupds belong to several clusters.
        """
        return self._answer(("view", topic), max_age, self._view)

    def leader(self, topic: str, partition: int, known: Node | None = None) -> tuple[Node, TopicMeta | None]:
        """Ask who leads a partition, and what kind of topic that is; None if that is not known.

        Args:
            topic: The topic.
            partition: The partition.
            known: The last known leader, which counts while no nsqlookupd answers.

        Raises:
            NoLeaderError: It has no leader.
            LookupUnavailableError: No nsqlookupd gave a usable answer, and none is known; try again.
        """
        try:
            view = self.view(topic)
        except LookupUnavailableError:
            if known is None:
                raise
            return known, None
        leader = view.leaders.get(partition)
        if leader is None:
            raise NoLeaderError(f"{topic}-{partition} has no leader{view.cause}")
        return leader, view.meta

    def plain_nodes(self, topic: str, max_age: float = 0.0) -> tuple[Node, ...]:
        """Ask all nsqlookupds of a plain cluster for the nsqds that have a topic; arguments are those of :meth:`view`.

        Raises:
            LookupUnavailableError: As :meth:`view`.
            ConfigError: The topic has partitions.
        """
        return self._answer(("nodes", topic), max_age, self._nodes)

    def extents(self, topic: str, node: Node) -> Mapping[int, Extent]:
        """Ask a node for the extent of each partition of ``topic`` that it leads.

        Raises:
            NsqError: No usable answer; look the leader up again.
        """
        if self._look is None:
            return self._extents(node, topic).get(topic, {})
        if node not in self._look:
            try:
                self._look[node] = self._extents(node, None)
            except NsqError as error:
                self._look[node] = error
        found = self._look[node]
        if isinstance(found, NsqError):
            raise found
        return found.get(topic, {})

    @contextlib.contextmanager
    def one_look(self) -> Iterator[None]:
        """Ask each node only once, for all topics, for the :meth:`extents` that are asked for in the block."""
        self._look = {}
        try:
            yield
        finally:
            self._look = None

    def _extents(self, node: Node, topic: str | None) -> Mapping[str, dict[int, Extent]]:
        """Return the extents of the partitions that a node leads, by topic: of one topic, or of all."""
        found: dict[str, dict[int, Extent]] = {}
        for each in self._ask(node, self._nsqd(node).stats(topic, leader_only=True)):
            if each.is_leader:
                extent = Extent(each.begin_offset, each.end_offset, each.messages)
                found.setdefault(each.topic, {})[each.partition] = extent
        return found

    def stored(self, topic: str, partition: int, node: Node, mode: Search, position: int) -> StoredMessage | None:
        """Find a message by number (``count``), or the first one at or after an offset (``virtual_offset``).

        Returns:
            None if it cannot be read: it does not exist, or it is not committed and flushed yet.

        Raises:
            NsqError: No usable answer; look the leader up again.
        """
        return self._ask(node, self._nsqd(node).message_get(topic, partition, mode, position))

    def unfinished(self, node: Node, topic: str, channel: str) -> Unfinished | None:
        """Return the messages that a channel of a node still has to deliver. None if the node does not have it.

        Raises:
            NsqError: No usable answer.
        """
        return self._ask(node, self._nsqd(node).unfinished(topic, channel))

    def tcp_port(self, node: Node) -> int:
        """Return the TCP port that a node names; raises as :meth:`unfinished`."""
        return self._ask(node, self._nsqd(node).tcp_port())

    def clock(self, node: Node) -> float | None:
        """Return the time of a node's clock, in whole seconds since 1970. None if the answer has no time.

        Raises:
            NsqError: No usable answer.
        """
        return self._ask(node, self._nsqd(node).clock())

    def topics(self, max_age: float = 0.0) -> tuple[str, ...]:
        """Return the names of all topics; arguments, answer and errors are as for :meth:`view`."""
        return self._answer(("topics", ""), max_age, self._names)

    def open_channel(self, topic: str, partition: int, node: Node, channel: str, offset: int) -> None:
        """Create ``channel`` on the partition's leader and set it to ``offset``.

        The server applies the offset a little later, so the first messages may be
        others; see ``read.chain``.

        Raises:
            ChannelNotRegisteredError: The topic accepts only registered channels.
            NsqError: No usable answer; look the leader up again.
        """
        start = StartFrom.offset(offset)
        self._ask(node, self._nsqd(node).start_channel_from(topic, partition, channel, start))

    def committed(
        self, written: Mapping[TopicPartition, tuple[Node, Extent]], channel: str | None, prefix: str
    ) -> dict[TopicPartition, Extent | NsqError]:
        """Ask, for many partitions at the same time, up to where their messages are committed.

        The extents of :meth:`extents` include what was written and not committed yet. While a replica does not answer,
        that lasts up to half a minute, and ends with other messages in its place. No channel goes beyond what is
        committed.

        Args:
            written: The leader of each partition, and the extent that it just reported.
            channel: A channel of topics that accept only registered ones.
            prefix: Prefix of the names of temporary channels.

        Returns:
            The extent of each partition up to its last committed message. An error if its leader gave no usable
            answer; look it up again.
        """

        async def ask(place: TopicPartition) -> None:
            node, extent = written[place]
            try:
                extent = await self._flushed(*place, node, prefix, extent)
            except ChannelNotRegisteredError:
                with contextlib.suppress(NsqError):  # before its first subscription, the leader does not know it
                    extent = await self._channel_extent(*place, node, channel or "", extent)
            except NsqError as error:
                found[place] = error
                return
            found[place] = extent
            self._committed[place] = node, extent

        found: dict[TopicPartition, Extent | NsqError] = {place: extent for place, (_, extent) in written.items()}
        grown = [place for place, known in written.items() if self._committed.get(place) != known]
        if grown:
            self._runner.run(several(ask, grown, _AT_ONCE))
        return found

    def flush(self, topic: str, partition: int, node: Node, prefix: str) -> None:
        """Make the leader flush acknowledged messages, as it does for a new channel, which is deleted immediately.

        A failure is ignored: a topic that accepts only registered channels is flushed by its leader's clock.

        Args:
            topic: The topic.
            partition: The partition.
            node: Its leader.
            prefix: Prefix of the channel's name.

        Source: youzan/nsq nsqd/topic.go (flushForChannelMoreData); seen on the real server, 6 of 6.
        """
        with contextlib.suppress(NsqError):
            self._runner.run(self._flushed(topic, partition, node, prefix, Extent(0, 0)))

    async def _flushed(self, topic: str, partition: int, node: Node, prefix: str, seen: Extent) -> Extent:
        """Flush, and return where the messages end that a channel may have, if possible not before ``seen`` does."""
        key = topic, partition, node, prefix
        channel = self.unanswered[key] = self.unanswered.get(key) or temporary_channel(prefix)
        await self._answered(node, self._nsqd(node).change_channel("create", topic, partition, channel))
        until = time.monotonic() + _FLUSHED_WITHIN
        while True:
            extent = await self._channel_extent(topic, partition, node, channel, seen)
            if extent.end >= seen.end or time.monotonic() >= until:
                break
            await asyncio.sleep(_FLUSHED_LOOK)
        with contextlib.suppress(NsqError):
            # A leader that waits for a replica deletes it only afterwards, and the next question takes it.
            nsqd = NsqdHttp(node, timeout=_FLUSHED_WITHIN, client=self._http())
            await self._answered(node, nsqd.change_channel("delete", topic, partition, channel))
            del self.unanswered[key]
        return extent

    async def _channel_extent(self, topic: str, partition: int, node: Node, channel: str, seen: Extent) -> Extent:
        """Return the extent up to the last message that a channel may have; only a text of nsqd's says that."""
        place = {"topic": topic, "partition": str(partition), "channel": channel}
        text = await self._answered(node, self._nsqd(node).request("GET", "/message/stats", place))
        found = _CHANNEL_END.search(text)
        if found is None:
            raise RemoteProtocolError(f"nsqd {node.address} does not say where channel {channel!r} of {topic!r} ends")
        return Extent(seen.start, *map(int, found.groups()))

    def delete_channel(self, topic: str, partition: int, node: Node, channel: str) -> None:
        """Delete ``channel``; raises as :meth:`open_channel`."""
        self._ask(node, self._nsqd(node).change_channel("delete", topic, partition, channel))

    def _nsqd(self, node: Node) -> NsqdHttp:
        return NsqdHttp(node, timeout=self._timeout, client=self._http())

    def _ask(self, node: Node, question: Coroutine[None, None, T]) -> T:
        return self._runner.run(self._answered(node, question))

    @staticmethod
    async def _answered(node: Node, question: Coroutine[None, None, T]) -> T:
        try:
            return await question
        except ServerError as error:
            if error.retriable or error.code.startswith("E_") or not error.code:
                raise
            # nsqd's HTTP API has no error code for a partition that moved, only text.
            raise NoLeaderError(f"nsqd {node.address} refused the request: {error}") from error

    def _answer(
        self, key: tuple[str, str], max_age: float, question: Callable[[str, T | None], Coroutine[None, None, T]]
    ) -> T:
        """Return the answer of the nsqlookupds, or the known one if it counts or if they do not answer now.

        Args:
            key: The question and its topic.
            max_age: As for :meth:`view`.
            question: Asks, given the topic and the known answer.
        """
        before: T | None = self._known.get(key)
        # A view without leaders says nothing that could be used.
        known = None if isinstance(before, TopicView) and not before.leaders else before
        now = time.monotonic()
        pause = _ROUTINE_PAUSE if max_age else _PAUSE
        is_paused = self.silence is not None and now - self._failed_at < pause
        if known is not None and (is_paused or now - self._answered_at.get(key, -max_age) < max_age):
            return known
        limit = _ROUTINE_TIMEOUT if known is not None and max_age else None
        try:
            found = self._runner.run(asyncio.wait_for(question(key[1], before), limit))
        except (LookupUnavailableError, TimeoutError) as error:
            if not isinstance(error, LookupUnavailableError):
                causes = tuple((url, f"no answer within {_ROUTINE_TIMEOUT:g} s") for url in self.lookupd)
                error = LookupUnavailableError("no nsqlookupd gave a usable answer", causes)
            if known is not None and self.silence is None:
                logger.warning("no nsqlookupd answers, going on with the servers known so far: %s", error)
            self.silence, self._failed_at = error, time.monotonic()
            if known is None:
                raise error from None
            return known
        if self.silence is not None:
            logger.info("an nsqlookupd answers again")
        self.silence, self._answered_at[key], self._known[key] = None, now, found
        return found

    async def _view(self, topic: str, before: TopicView | None) -> TopicView:
        if self._servers is None:
            # Who asks knows what a failure means, and says so.
            self._servers = Servers(self.lookupd, timeout=self._timeout, client=self._http(), level=logging.INFO)
            await self._servers.refresh_lists()
        self._servers.check()
        found = await self._servers.look_up(topic, "r")
        if found.error is not None:
            raise found.error
        return merge(before, found.answers, topic=topic)

    async def _nodes(self, topic: str, known: tuple[Node, ...] | None) -> tuple[Node, ...]:
        found: dict[str, Node] = {}
        for answer in await self._asked(lambda client: client.lookup(topic), is_known=known is not None):
            if answer.nodes is None and answer.exists:
                raise ConfigError(
                    f"option 'delivery': topic {topic!r} has partitions, and so offsets: remove delivery=ack"
                )
            found |= {node.address: node for node in answer.nodes or ()}
        return tuple(found.values())

    async def _names(self, _: str, known: tuple[str, ...] | None) -> tuple[str, ...]:
        # Of all: one that has just started lists nothing.
        answers = await self._asked(lambda client: client.topics(), is_known=known is not None)
        return tuple(sorted({topic.name for answer in answers for topic in answer}))

    async def _asked(self, question: Callable[[LookupClient], Coroutine[None, None, T]], *, is_known: bool) -> list[T]:
        """Ask all nsqlookupds at the same time; return their answers.

        Args:
            question: Asks one.
            is_known: Whether to leave out answers that take long beside another one, since an earlier one is known.

        Raises:
            LookupUnavailableError: None of them gave a usable answer.
        """

        async def ask(url: str) -> T:
            async with LookupClient(url, timeout=self._timeout) as client:
                return await question(client)

        tasks = [asyncio.create_task(ask(url)) for url in self.lookupd]
        try:
            done, late = await asyncio.wait(tasks, timeout=GRACE if is_known else None)
            if late and all(each.exception() for each in done):
                done, _ = await asyncio.wait(tasks)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = [each.result() for each in done if not isinstance(each.exception(), LookupUnavailableError)]
        return answers or [each.result() for each in done]

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = new_client(self.lookupd)
        return self._client

    async def _aclose(self) -> None:
        servers, client = self._servers, self._client
        self._servers = self._client = None
        if servers is not None:
            await servers.aclose()
        if client is not None:
            await client.aclose()


_idle: Final[dict[tuple[int, tuple[str, ...]], BlockingCluster]] = {}


@contextlib.contextmanager
def worker_cluster(lookupd: tuple[str, ...]) -> Iterator[BlockingCluster]:
    """Lend a cluster to one task, with the connections of the last task of this process if it had the same servers.

    Its answers are as new as those of any other, unless no nsqlookupd answers: then the last ones count. It is closed
    after a failure, and at the end outside of a worker process that Spark uses again.

    Meanwhile Python searches for reference cycles less often: messages and rows are many, and have none.
    """
    key = os.getpid(), lookupd
    cluster = _idle.pop(key, None) or BlockingCluster(lookupd)
    is_kept = False
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _COLLECTED_EACH) if before[0] else 0, *before[1:])
    try:
        yield cluster
        is_kept = os.environ.get(_REUSED) == "1"
    finally:
        gc.set_threshold(*before)
        if not is_kept:
            cluster.close()
    if is_kept:
        # One is enough: the tasks of a process are mostly those of one query.
        for other in [each for each in _idle if each[0] == key[0]]:
            _idle.pop(other).close()
        _idle[key] = cluster
