"""Plan the micro-batches of ``delivery=ack``: files of a spool that pullers fill from plain nsqds.

The offset in Spark's checkpoint is ``{"spool": id, "file": n}``, with the number of the
first file that the next micro-batch reads. At least once: a message is repeated if
something is killed between its file and its FIN, or if it is not written within
``msgTimeout``.

The invariants: an offset never goes back, except for data loss that is explicitly
allowed; a file is deleted only after Spark has committed the micro-batch that read it.

**Source:** Spark design 2.2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import ConfigError, DataLossError, NsqError, ResponseTimeoutError
from nsq_ha.options.checks import shown
from nsq_ha.policy.topology import Node
from nsq_ha.spark import logger
from nsq_ha.spark.ack.puller import QUIET, Draining, Puller
from nsq_ha.spark.ack.spool import Spool, SpoolFile
from nsq_ha.spark.cluster import ROUTINE, BlockingCluster
from nsq_ha.spark.plan.batch_planner import goes_back

if TYPE_CHECKING:
    from nsq_ha.spark.options import ReadOptions


Offset = dict[str, Any]
"""The offset in Spark's checkpoint: the spool's id and the number of a file."""

TASK_BYTES: Final = 64 * 1024 * 1024
"""Bytes of messages of one task, unless ``minPartitions`` asks for smaller ones."""

_MSG_TIMEOUT: Final = 60.0  # an nsqd's default
_LOOK_UP: Final = 5.0
_LOOK: Final = 0.05
_LONGEST_WAIT: Final = 1.0  # for a larger micro-batch


class AckPlanner:
    """Plans the micro-batches of one query over a spool. Blocking; used from one thread.

    Args:
        options: Options of the read, with ``spool`` and ``channel``.

    Raises:
        ConfigError: The spool cannot be used, or another query uses it.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster = BlockingCluster(options.lookupd)
        self._spool = Spool(options.spool or "", options.fetch_timeout)
        self._pullers: dict[tuple[str, str], Puller] = {}
        self._begun: Offset | None = None
        self._read_to = self._spool.first
        self._draining: dict[tuple[str, str], Draining] | None = None
        self._looked_at = float("-inf")
        self._since = time.monotonic()
        self._moved_at = time.monotonic()
        self._reported: str | None = None

    def close(self) -> None:
        """Stop pulling and unlock the folder."""
        for puller in self._pullers.values():
            puller.stop()
        self._spool.close()
        self._cluster.close()

    def initial(self) -> Offset:
        """Return where a new query begins: at the first file of the spool. Spark may ask repeatedly."""
        if self._begun is None:
            self._begun = self._offset(self._spool.first)
        return self._begun

    def latest(self, start: Mapping[str, Any] | None, *, limited: bool = True) -> Offset:
        """Return the end of the next micro-batch; ``start`` itself if there is nothing to read.

        Args:
            start: The start of the micro-batch; None if Spark does not provide it.
            limited: Whether the limits of the options apply.

        Raises:
            DataLossError: The spool is another one or lacks files, and ``failOnDataLoss`` is true.
            NsqError: A server refuses permanently, or none answers within the patience of the read.
        """
        begin = self._number(start or self.initial())
        self._read_to = begin
        if start and start["spool"] == self._spool.id and begin < start["file"]:
            # A step that reads nothing. Otherwise the next files would count as read, since their numbers were.
            return self._offset(begin)
        until = time.monotonic() + (_LONGEST_WAIT if self._draining is None else math.inf)
        is_over = False
        while True:
            self._pull()
            end, is_full = self._end(begin, limited=limited)
            grows = not is_full and any(each.flows for each in self._pullers.values())
            if is_over or (end > begin and not (grows and time.monotonic() < until)):
                break
            # A puller may write and finish its last messages after the files were counted: then count them again.
            is_over = end == begin and (self._draining is None or self._is_drained(self._draining))
            if not is_over:
                time.sleep(_LOOK)
        self._read_to = end
        if end > begin:
            self._moved_at = time.monotonic()
        return dict(start) if start and end == begin and start.get("spool") == self._spool.id else self._offset(end)

    def report(self) -> Offset:
        """Return where the spool ends, for Spark's progress."""
        return self._offset(self._spool.end)

    def prepare_target(self) -> None:
        """End the query when the servers have delivered all messages published before now."""
        self._draining = {}
        for place, puller in self._pullers.items():
            self._drain(place, puller)

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Return the paths of the files of each task of one micro-batch, which may have been planned before a restart.

        Raises:
            ConfigError: The batch ends before it begins, which would repeat messages.
            DataLossError: Files are gone, and ``failOnDataLoss`` is true.
        """
        same = start.get("spool") == end.get("spool") == self._spool.id
        first = self._number(start) if same else self._spool.first
        until = self._number(end)
        if until < first:
            if self._options.fail_on_data_loss:
                raise goes_back(f"spool {self._options.spool}", first, until, "file")
            # Planned after an allowed loss: the folder had lost its newest files.
            first = until
        files = self._spool.between(first, until)
        if missing := until - first - len(files):
            self._lose(f"{missing} of the files {first} to {until - 1} are gone")
        groups = divided(files, self._options.min_partitions or 1, self._options.max_records_per_partition)
        return [tuple(str(self._spool.folder / file.name) for file in group) for group in groups]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Delete the files that Spark has committed."""
        if end.get("spool") == self._spool.id:
            self._spool.forget(self._number(end))

    # ------------------------------------------------------------ numbers

    def _offset(self, number: int) -> Offset:
        return {"spool": self._spool.id, "file": number}

    def _number(self, offset: Mapping[str, Any]) -> int:
        """Return the file number of an offset. For another spool or lost files, return the first remaining file."""
        spool, number = offset.get("spool"), offset.get("file")
        if not isinstance(spool, str) or not isinstance(number, int) or isinstance(number, bool):
            raise ConfigError(
                f"the checkpoint is damaged or from another source: it has {shown(dict(offset))}, not spool files; "
                "restore the checkpointLocation of this query, or give it a new one and a new spool"
            )
        first, end = self._spool.first, self._spool.end
        if spool != self._spool.id:
            self._lose("the checkpoint was made with another folder")
            return first
        if not first <= number <= end:
            self._lose(f"the checkpoint is at file {number}, the folder has files {first} to {end - 1}")
            return max(first, min(number, end))
        return number

    def _lose(self, loss: str) -> None:
        text = f"spool {self._options.spool}: {loss}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to continue with what is left")
        if text != self._reported:
            self._reported = text
            logger.warning("%s; continuing with what is left", text)

    def _end(self, begin: int, *, limited: bool) -> tuple[int, bool]:
        """Return the end of the next micro-batch within the limits, in whole files, at least one; and if it is full.

        A larger one is not worth waiting for then. Each costs Spark as much as reading some 10,000 messages.
        """
        files, options = self._spool.between(begin, self._spool.end), self._options
        least = options.min_offsets_per_trigger or 0
        is_late = self._draining is not None or time.monotonic() - self._moved_at >= options.max_trigger_delay
        if not files or (limited and not is_late and sum(file.rows for file in files) < least):
            return begin, False
        most_rows, most_bytes = options.max_offsets_per_trigger, options.max_bytes_per_trigger
        rows = size = 0
        for count, file in enumerate(files):
            rows, size = rows + file.rows, size + file.size
            if limited and count and (rows > (most_rows or rows) or size > (most_bytes or size)):
                return file.number, True
        return files[-1].number + 1, rows == most_rows or size >= min(TASK_BYTES, options.max_spool_bytes)

    # ------------------------------------------------------------ servers

    def _pull(self) -> None:
        """Start a puller for each new nsqd, and check all of them.

        Raises:
            NsqError: See :meth:`latest`.
        """
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_UP:
            self._looked_at = now
            self._look_up()
        for puller in self._pullers.values():
            if puller.fatal is not None:
                raise puller.fatal
        failing = [puller for puller in self._pullers.values() if puller.trouble is not None]
        late = [puller for puller in failing if now - puller.troubled_since >= self._options.patience]
        # A stream continues with those that answer; a query that must read everything cannot.
        if late and (len(failing) == len(self._pullers) or self._draining is not None):
            raise ResponseTimeoutError(
                f"nsqd {late[0].node.address} does not answer (fetchTimeout, fetchRetries): {late[0].trouble}"
            ) from late[0].trouble

    def _look_up(self) -> None:
        try:
            found = {(topic, node.address): node for topic in self._options.topics for node in self._nodes(topic)}
        except NsqError as error:
            if not error.retriable or (not self._pullers and time.monotonic() - self._since >= self._options.patience):
                raise
            found = {}
        for place, node in found.items():
            if place not in self._pullers:
                puller = self._pullers[place] = Puller(node, place[0], self._options, self._spool, self._may_pull)
                self._drain(place, puller)
                puller.start()

    def _nodes(self, topic: str) -> Sequence[Node]:
        """Return the nsqds of the option ``nsqd``, or those that any nsqlookupd knows."""
        if self._options.nsqd:
            parts = (address.rpartition(":") for address in self._options.nsqd)
            return [Node(host.strip("[]"), int(port), 0) for host, _, port in parts]
        return self._cluster.plain_nodes(topic, ROUTINE)

    def _may_pull(self) -> bool:
        """Return whether the spool has room beside the last micro-batch; called from the pullers' threads."""
        waiting = sum(file.size for file in self._spool.between(self._read_to, self._spool.end))
        return waiting < self._options.max_spool_bytes

    def _drain(self, place: tuple[str, str], puller: Puller) -> None:
        if self._draining is not None:
            limit = (self._options.connection.msg_timeout or _MSG_TIMEOUT) + QUIET
            self._draining[place] = Draining(puller, self._cluster, limit)

    def _is_drained(self, draining: Mapping[tuple[str, str], Draining]) -> bool:
        """Return whether all nsqds have delivered everything; False while a topic has no known nsqd.

        Raises:
            ResponseTimeoutError: An nsqd holds messages but delivers none, or no nsqd is known for too long.
        """
        if missing := sorted({*self._options.topics} - {topic for topic, _ in self._pullers}):
            if time.monotonic() - self._since >= self._options.patience:
                raise ResponseTimeoutError(
                    f"topic {missing[0]!r}: no nsqlookupd knows an nsqd that has it (asked "
                    f"{', '.join(self._options.lookupd)}; fetchTimeout, fetchRetries): create the topic, or remove it"
                )
            return False
        # Ask all of them each time, so that their waits overlap.
        done = [each.is_done() for each in draining.values()]
        return all(done)


def divided(files: Sequence[SpoolFile], pieces: int, most_rows: int | None) -> list[list[SpoolFile]]:
    """Divide files into tasks of whole files, in order.

    Args:
        files: Files of one micro-batch.
        pieces: Minimum number of tasks, if there are enough files.
        most_rows: Maximum number of rows of one task, unless a single file has more.
    """
    total = sum(file.size + file.rows for file in files)
    share = min(TASK_BYTES, -(-total // pieces)) if pieces > 1 else TASK_BYTES
    groups: list[list[SpoolFile]] = []
    rows = size = 0
    for at, file in enumerate(files):
        rows, size = rows + file.rows, size + file.size + file.rows
        # As many files as tasks are left: one for each.
        is_scarce = len(files) - at <= pieces - len(groups)
        if not groups or size > share or rows > (most_rows or rows) or is_scarce:
            groups.append([])
            rows, size = file.rows, file.size + file.rows
        groups[-1].append(file)
    return groups
