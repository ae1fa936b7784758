"""A fake cluster whose nsqds flush late and answer ``/message/get`` about fresh messages as the real ones do.

**Source:** youzan/nsq nsqdserver/http.go ``doMessageGet``, consistence/nsqd_coordinator.go ``SearchLogByMsgCnt``
and ``SearchLogByMsgOffset``, seen on the real server as well.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import respx

from tests.engine.lookups.loopback import lookup_body

LOOKUPD = "http://127.0.0.1:4161"
SECOND = 1_700_000_000
"""When the first message of each log was published, in seconds since 1970; the others follow, one each second."""


@dataclass
class LaggingLog:
    """One partition's log.

    Attributes:
        sizes: Bytes of each message.
        fresh: How many of the newest are acknowledged and not flushed.
        flushes_after: Questions about fresh messages until all is flushed. None for never.
        pending: Bytes after them that are written and not committed: a replica does not answer.
    """

    sizes: Sequence[int]
    fresh: int = 0
    flushes_after: int | None = None
    pending: int = 0
    asked: list[tuple[str, int]] = field(default_factory=list)

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.sizes)]

    def stats(self, topic: str, partition: int) -> dict[str, Any]:
        """Return what ``/stats`` shows at once, flushed or not."""
        return {
            "topic_name": topic,
            "topic_partition": str(partition),
            "is_leader": True,
            "backend_start": 0,
            "backend_depth": self.offsets[-1] + self.pending,
            "message_count": len(self.sizes) + (self.pending > 0),
            "channels": [],
        }

    def get(self, mode: str, position: int) -> httpx.Response:
        """Answer ``/message/get``."""
        self.asked.append((mode, position))
        total, offsets = len(self.sizes), self.offsets
        wanted = max(position - 1, 0) if mode == "count" else bisect.bisect_left(offsets, position)
        readable = total - self.fresh
        if wanted >= readable and self.fresh and self.flushes_after is not None:
            self.flushes_after -= 1
            self.fresh = self.fresh if self.flushes_after > 0 else 0
        if wanted >= total > readable + 1:
            return httpx.Response(404, json={"message": "disk reader move offset overflowed the end"})
        if wanted >= total or wanted == readable:
            # The handler fails at its own missing error.
            return httpx.Response(500, json={"message": "INTERNAL_ERROR"})
        # The seek beyond what is flushed fails, the handler ignores that, and reads where it stands: at the start.
        found = wanted if wanted < readable else 0
        return httpx.Response(
            200,
            json={
                "id": found + 2,
                "trace_id": 0,
                "body": "",
                "timestamp": (SECOND + found) * 1_000_000_000,
                "attempts": 1,
                "offset": offsets[found],
                "queue_cnt_index": found + 1,
                "ext": "",
            },
        )


class LaggingCluster:
    """One topic ``t``; each partition on a node of its own.

    Args:
        mock: Answers its HTTP.
        logs: By partition.
        registered_only: Channels are refused; otherwise a new one has its partition flushed.
    """

    def __init__(self, mock: respx.MockRouter, logs: dict[int, LaggingLog], *, registered_only: bool = True) -> None:
        self.registered_only = registered_only
        self.logs = logs
        self.leaderless: set[int] = set()
        self.channels: list[tuple[str, str]] = []
        mock.get(f"{LOOKUPD}/listlookup").respond(404, json={"message": "NOT_FOUND"})
        mock.get(f"{LOOKUPD}/lookup").mock(side_effect=self._lookup)
        for number in logs:
            node = f"http://127.0.0.1:{4151 + 10 * number}"
            mock.get(f"{node}/stats").mock(side_effect=self._stats(number))
            mock.get(f"{node}/message/get").mock(side_effect=self._get(number))
            mock.get(f"{node}/message/stats").mock(side_effect=self._end(number))
            for path in ("create", "delete"):
                mock.post(f"{node}/channel/{path}").mock(side_effect=self._channel(number, path))

    def _lookup(self, _: httpx.Request) -> httpx.Response:
        ports = {number: 4150 + 10 * number for number in self.logs if number not in self.leaderless}
        return httpx.Response(200, json=lookup_body(ports, partition_num=len(self.logs)))

    def _stats(self, number: int) -> Any:  # noqa: ANN401 - respx's side effects
        return lambda _: httpx.Response(200, json={"topics": [self.logs[number].stats("t", number)]})

    def _get(self, number: int) -> Any:  # noqa: ANN401 - respx's side effects
        def answer(request: httpx.Request) -> httpx.Response:
            asked = request.url.params
            return self.logs[number].get(asked["search_mode"], int(asked["search_pos"]))

        return answer

    def _end(self, number: int) -> Any:  # noqa: ANN401 - respx's side effects
        def answer(_: httpx.Request) -> httpx.Response:
            end, count = self.logs[number].offsets[-1], len(self.logs[number].sizes)
            return httpx.Response(200, text=f"channel end : &{{{{{{0 {end}}} {end}}} {count}}},current read:")

        return answer

    def _channel(self, number: int, path: str) -> Any:  # noqa: ANN401 - respx's side effects
        def answer(request: httpx.Request) -> httpx.Response:
            if self.registered_only:
                return httpx.Response(403, json={"message": "channel not registered"})
            self.channels.append((path, request.url.params["channel"]))
            self.logs[number].fresh = 0
            return httpx.Response(200)

        return answer
