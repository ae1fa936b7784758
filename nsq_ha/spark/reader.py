"""Executor side: one range read to its proven end, whatever happens to connections and leaders.

Owns what follows a failure: another channel, at the position reached, on
whoever leads by then. Does not own the rule of what is accepted (``chain``).

The invariant: what is yielded over the life of one reader is exactly the chain
from start to end, each message once. It ends without an error only when that is
complete, or when data loss was allowed by name.

**Source:** Spark reference 1.3, 1.4, 1.5, 2.1.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.config import Backoff
from nsq_ha.errors import DataLossError, NoLeaderError, NsqError, ResponseTimeoutError
from nsq_ha.policy.backoff import delay_after
from nsq_ha.spark.chain import Chain
from nsq_ha.spark.link import LinkExpiredError
from nsq_ha.spark.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.planner import Range

log: Final = logging.getLogger("nsq_ha.spark")

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the log after which rows are given on, so that large messages do not fill the memory."""

_REOPEN: Final = Backoff(initial=0.1, maximum=1.0, factor=2.0, jitter=0.3)


class RangeReader:
    """Reads one range, blocking.

    Args:
        asked: What to read.
        options: Of the read; its times, and whether data may be lost.
        cluster: For look-ups and channels; stays the caller's.

    Attributes:
        opened: Channels opened so far; more than one after trouble.
    """

    def __init__(self, asked: Range, options: ReadOptions, cluster: Cluster) -> None:
        self.opened = 0
        self._asked = asked
        self._options = options
        self._cluster = cluster
        self._chain = Chain(asked.start, asked.end, asked.partition)
        self._rows: list[Message] = []
        self._progress_at = 0.0
        self._progress_to = asked.start
        self._failures = 0

    def batches(self) -> Iterator[list[Message]]:
        """Give the messages of the range in order, some thousands at a time.

        Between two of them the caller may take any time: a connection that the
        server has given up by then is replaced.

        Raises:
            DataLossError: The log does not hold the range, and ``failOnDataLoss`` is true.
            NsqError: No progress for ``fetchTimeout`` times (``fetchRetries`` + 1);
                the last failure is the cause.
        """
        self._progress_at = time.monotonic()
        while not self._chain.is_complete:
            try:
                yield from self._connection()
            except DataLossError as error:
                self._lose(str(error), self._chain.end)
            except LinkExpiredError as error:
                self._expired(error)
            except NsqError as error:
                if not error.retriable:
                    raise
                self._failed(error)
        if self._rows:
            yield self._taken()

    def _connection(self) -> Iterator[list[Message]]:
        """Read through one channel until the range is complete or the channel fails."""
        chain = self._chain
        patience = self._options.fetch_timeout
        with Replay(self._asked, self._leader(), self._cluster, self._options) as replay:
            chain.reopened()
            self.opened += 1
            replay.open(chain.position)
            until = time.monotonic() + patience
            given_on = chain.position
            while not chain.is_complete:
                finish = chain.take(replay.receive(until), self._rows)
                # A complete range needs nothing more: the channel goes with its connection.
                if chain.is_complete:
                    return
                replay.finish_all(finish)
                if not self._has_progressed():
                    continue
                if len(self._rows) >= self._options.batch_rows or chain.position - given_on >= BATCH_BYTES:
                    yield self._taken()
                    given_on = chain.position
                    # The time that the caller took is not the server's.
                    self._progress_at = time.monotonic()
                until = self._progress_at + patience

    def _leader(self) -> Node:
        """Return the planned leader at first, then whoever the nsqlookupds name."""
        if not self.opened and self._asked.leader is not None:
            return self._asked.leader
        view = self._cluster.view(self._asked.topic)
        leader = view.leaders.get(self._asked.partition)
        if leader is None:
            raise NoLeaderError(f"{self._asked.topic}-{self._asked.partition} has no leader {view.note}".rstrip())
        if view.meta is not None:
            self._asked = dataclasses.replace(self._asked, ordered=view.meta.ordered, extended=view.meta.extend_support)
        return leader

    def _taken(self) -> list[Message]:
        rows, self._rows = self._rows, []
        return rows

    def _has_progressed(self) -> bool:
        """Note progress since the last call, and tell whether there was any."""
        if self._chain.position == self._progress_to:
            return False
        self._progress_to = self._chain.position
        self._progress_at = time.monotonic()
        self._failures = 0
        return True

    def _expired(self, error: LinkExpiredError) -> None:
        """Continue through another channel at once, unless nothing arrived for too long."""
        if self._has_progressed() or time.monotonic() - self._progress_at < self._options.fetch_timeout:
            log.debug("%s: opening another channel after: %s", self._where, error)
        else:
            self._failed(ResponseTimeoutError(str(error)))

    def _failed(self, error: NsqError) -> None:
        """Find out whether going on makes sense, and wait a little."""
        self._has_progressed()
        self._failures += 1
        limit = self._options.patience
        spent = time.monotonic() - self._progress_at >= limit
        # A channel that is open and gives nothing: the log may have changed under the plan.
        stalled = isinstance(error, ResponseTimeoutError)
        loss = self._loss(final=spent) if spent or stalled else None
        if loss is not None:
            self._lose(*loss)
            return
        if spent:
            raise ResponseTimeoutError(
                f"{self._where}: no progress for {limit:g} s (fetchTimeout, fetchRetries): {error}"
            ) from error
        log.info("%s: opening another channel after: %s", self._where, error)
        if not stalled:
            time.sleep(delay_after(_REOPEN, self._failures, random.random))

    def _loss(self, *, final: bool) -> tuple[str, int] | None:
        """Compare the range with the leader's log.

        Args:
            final: Patience is at its end, so what could be only late counts as lost.

        Returns:
            What is lost and where reading could go on. None when nothing is known to be.
        """
        position, end, stashed = self._chain.position, self._chain.end, self._chain.next_stashed
        try:
            extent = self._cluster.extents(self._asked.topic, self._leader()).get(self._asked.partition)
        except NsqError:
            extent = None
        if extent is None:
            return None
        if position < extent.start:
            return f"the log begins at {extent.start} by now, what was before is cleaned", min(extent.start, end)
        if final and extent.end < end:
            return f"the log ends at {extent.end}: its tail was never committed, or the topic was re-created", end
        if final and stashed is not None:
            return f"no message begins there, the next one is at {stashed}", stashed
        return None

    def _lose(self, said: str, following: int) -> None:
        """Raise, or go on at ``following`` when that is allowed."""
        text = f"{self._where}: {said}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to read what is left")
        log.warning("%s; %d bytes of the log are left out", text, following - self._chain.position)
        self._chain = Chain(following, self._chain.end, self._chain.partition)

    @property
    def _where(self) -> str:
        return f"{self._asked.name} at offset {self._chain.position}"
