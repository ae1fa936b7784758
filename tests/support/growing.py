"""A scripted topic of which partition 1 is empty and has no channel, though partition 0 has one."""

from typing import Any, Self

from tests.engine.lookups.loopback import Fake, lookup_body
from tests.support.stage import TOPIC, Stage


class Growing:
    """Two partitions on one nsqd, whose HTTP a test scripts. Use it with ``async with``.

    Attributes:
        http: The nsqd's HTTP.
    """

    def __init__(self, stage: Stage) -> None:
        self.http = Fake()
        self._stage = stage

    async def __aenter__(self) -> Self:
        await self.http.start()
        self.has(leads=True)
        self.http.answer("/channel/create", b"")
        stage = self._stage
        body: dict[str, Any] = lookup_body(dict.fromkeys(range(2), stage.nsqd.port))
        body["channels"] = ["billing"]
        for peer in body["partitions"].values():
            peer["http_port"] = self.http.port
        stage.lookupd.answer("/lookup", body)
        stage.lookupd.answer("/channels", {"channels": []})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.stop()

    def has(self, *, leads: bool) -> None:
        """Say whether the nsqd leads the empty partition."""
        old = {"channels": [{"channel_name": "billing"}], "message_count": 5, "is_leader": True}
        places = [{"topic_name": TOPIC, "topic_partition": number} for number in "01"]
        self.http.answer("/stats", {"topics": [places[0] | old, places[1] | {"is_leader": leads}]})

    def created(self) -> list[str]:
        """Return the partitions that got the channel."""
        return [query["partition"] for query in self.http.queries("/channel/create")]
