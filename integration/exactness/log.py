"""The log of a partition as its leader tells it, message by message."""

import contextlib
import http.client
import json
import urllib.parse
from collections.abc import Iterator
from typing import Final

from integration.exactness.verdict import Row

PATIENCE: Final = 30.0
"""Seconds for one answer."""


def log_of(host: str, port: int, topic: str, partition: int, count: int) -> Iterator[Row]:
    """Yield the first ``count`` messages of a partition, asked for one by one.

    The SDK's client for this takes ten times as long, which is most of a run.

    Raises:
        AssertionError: The answer is none, or another message.
    """
    asked = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    with contextlib.closing(asked):
        for number in range(1, count + 1):
            which = {"topic": topic, "partition": partition, "search_mode": "count", "search_pos": number}
            path = f"/message/get?{urllib.parse.urlencode(which)}&needext=true"
            asked.request("GET", path, headers={"Accept": "application/vnd.nsq; version=1.0"})
            answer = asked.getresponse()
            body = answer.read()
            assert answer.status == 200, f"message {number} of {topic}-{partition} at {host}:{port}: {body[:200]!r}"
            found = json.loads(body)
            # The server answers with the first message of the log if it cannot find the one asked for.
            assert found["queue_cnt_index"] == number, (
                f"message {number} of {topic}-{partition} at {host}:{port}: the answer is {found['queue_cnt_index']}"
            )
            yield partition, found["offset"], found["body"].encode()
