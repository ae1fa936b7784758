"""Write what a load does, as it happens: one line of JSON for each event.

``call``, then ``stored`` or ``failed``, for each publish; ``seen`` for each message that the program gets; ``finish``
for each FIN, as the library's trace log tells it. A message is named by the nsqd that delivered it (on a partitioned
cluster its partition says enough), its partition and its id.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import ClassVar, Final, Self

from nsq_ha import Receipt
from nsq_ha.tracelog import switch

_trace: Final = logging.getLogger("nsq_ha.trace")


class History(logging.Handler):
    """The file of one load. Use it with ``with``.

    Args:
        path: The file, which is replaced.
        topic: The topic.
        channel: The channel.
        limit: Seconds within which each publish must end.
        ordered: Messages of a key must arrive in their order.
        partitioned: The cluster has partitions, so that an id names a message wherever it is delivered.
    """

    _recording: ClassVar[set[History]] = set()
    _level: ClassVar[int] = logging.NOTSET
    """The log's own, while some record."""

    def __init__(
        self, path: Path, topic: str, channel: str, *, limit: float, ordered: bool, partitioned: bool = True
    ) -> None:
        super().__init__(logging.INFO)
        self._file = path.open("w")
        self._topic = topic
        self._channel = channel
        self._writing = threading.Lock()
        self._write("begin", topic=topic, channel=channel, limit=limit, ordered=ordered, partitioned=partitioned)

    def __enter__(self) -> Self:
        switch.enable(self._topic)
        if not History._recording:
            History._level = _trace.level
        History._recording.add(self)
        _trace.addHandler(self)
        _trace.setLevel(logging.INFO)
        _trace.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        if self._file.closed:
            return
        _trace.removeHandler(self)
        History._recording.discard(self)
        if not History._recording:
            _trace.setLevel(History._level)
            _trace.propagate = True
        switch.disable(self._topic)
        self._write("end")
        self._file.close()

    def called(self, key: str, seq: int) -> None:
        """Record that a publish begins."""
        self._write("call", key=key, seq=seq)

    def stored(self, key: str, seq: int, receipt: Receipt) -> None:
        """Record that it was acknowledged."""
        where = {"nsqd": receipt.nsqd, "partition": receipt.partition}
        self._write("stored", key=key, seq=seq, id=receipt.internal_id, offset=receipt.offset, **where)

    def failed(self, key: str, seq: int, *, maybe_stored: bool | None) -> None:
        """Record that it failed; None for an error that does not tell."""
        self._write("failed", key=key, seq=seq, maybe_stored=maybe_stored)

    def seen(
        self, key: str, seq: int, *, at: float, nsqd: str, partition: int, internal_id: int, offset: int | None
    ) -> None:
        """Record that a program got a message, at a time of the monotonic clock."""
        self._write("seen", at=at, key=key, seq=seq, id=internal_id, offset=offset, nsqd=nsqd, partition=partition)

    def emit(self, record: logging.LogRecord) -> None:
        """Record a FIN."""
        line = json.loads(record.getMessage())
        if line["event"] == "finish" and (line["topic"], line["channel"]) == (self._topic, self._channel):
            self._write("finish", nsqd=line["nsqd"], partition=line["partition"], id=line["internal_id"])

    def _write(self, event: str, **facts: object) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n"
        with self._writing:
            if not self._file.closed:  # a call that a closed load has left behind
                self._file.write(line)
