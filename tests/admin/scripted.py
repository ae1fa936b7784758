"""Clusters of both kinds with scripted answers."""

from collections.abc import Sequence
from typing import Any

from tests.engine.lookups.loopback import Fake, list_body, lookup_body

UNKNOWN = {"message": "TOPIC_NOT_FOUND"}


def part(number: int | None = 0, *channels: str, **state: Any) -> dict[str, object]:  # noqa: ANN401
    """What ``/stats`` says of a partition of ``orders`` (None of a plain topic), whose channels have this state."""
    place = {} if number is None else {"topic_partition": str(number), "is_leader": True}
    return {"topic_name": "orders", "channels": [{"channel_name": name, **state} for name in channels], **place}


class Scripted:
    """Two nsqlookupds, the second of which leads, and one nsqd."""

    def __init__(self, follower: Fake, leader: Fake, nsqd: Fake) -> None:
        self.follower, self.leader, self.nsqd = follower, leader, nsqd
        self.led_by(leader)
        for fake in (follower, leader):
            fake.answer("/nodes", {"producers": [self.peer()]})

    def led_by(self, leader: Fake | None) -> None:
        for fake in (self.follower, self.leader):
            url = leader.url if leader is not None else None
            fake.answer("/listlookup", list_body(url, self.follower.url, self.leader.url))

    def peer(self, port: int = 4150) -> dict[str, object]:
        """An nsqd of which only the HTTP is real."""
        return {
            "broadcast_address": "127.0.0.1",
            "tcp_port": port,
            "http_port": self.nsqd.port,
            "distributed_id": f"127.0.0.1:1:{port}:7",
        }

    def body(self, *ports: int, partition_num: int | None = None, **meta: int) -> dict[str, object]:
        """A lookup in which these ports lead partitions 0, 1, ..."""
        content = lookup_body(dict(enumerate(ports)), partition_num)
        content["partitions"] = {str(partition): self.peer(port) for partition, port in enumerate(ports)}
        content["meta"] = {"partition_num": partition_num or len(ports), "replica": 1} | meta
        return content

    def has_channels(self, *names: str) -> None:
        """Both list these channels."""
        for fake in (self.follower, self.leader):
            fake.answer("/channels", {"channels": list(names)})

    def lookups(self, *contents: object, status: int = 200) -> None:
        """Both say these in turn, for each question of either access."""
        for fake in (self.follower, self.leader):
            fake.answer("/lookup", contents[0], status)
            for content in contents[1:]:
                fake.then("/lookup", content, status)


class Plain:
    """Two nsqlookupds and two nsqds, each nsqd registered at the nsqlookupd of its number."""

    def __init__(self, lookupds: Sequence[Fake], nsqds: Sequence[Fake]) -> None:
        self.lookupds, self.nsqds = lookupds, nsqds
        for lookupd, nsqd in zip(lookupds, nsqds, strict=True):
            lookupd.answer("/lookup", UNKNOWN, 404)
            lookupd.answer("/nodes", {"producers": [self.peer(nsqd)]})
            for path in ("/topic/create", "/topic/delete", "/channel/create", "/channel/delete"):
                lookupd.answer(path, b"")
            lookupd.answer("/channels", {"channels": []})
            nsqd.answer("/topic/delete", UNKNOWN, 404)
            for action in ("create", "delete", "pause"):
                nsqd.answer(f"/channel/{action}", b"")
            nsqd.answer("/stats", {"topics": []})

    @staticmethod
    def peer(nsqd: Fake, *topics: str, tombstones: Sequence[bool] = ()) -> dict[str, Any]:
        """An nsqd of which only the HTTP is real, as ``/nodes`` and ``/lookup`` list it."""
        return {
            "broadcast_address": "127.0.0.1",
            "tcp_port": nsqd.port + 1,
            "http_port": nsqd.port,
            "topics": list(topics),
            "tombstones": list(tombstones),
        }

    def has_topic(self, *numbers: int) -> None:
        """List topic ``orders`` for these nsqds, each at the nsqlookupd of its number."""
        for number in numbers:
            peer = self.peer(self.nsqds[number], "orders")
            self.lookupds[number].answer("/lookup", {"channels": [], "producers": [peer]})
            self.lookupds[number].answer("/nodes", {"producers": [peer]})
            self.nsqds[number].answer("/topic/delete", b"")

    def then_deleted(self) -> None:
        """From the second question on, list the topic nowhere."""
        for lookupd, nsqd in zip(self.lookupds, self.nsqds, strict=True):
            lookupd.then("/lookup", UNKNOWN, 404)
            lookupd.then("/nodes", {"producers": [self.peer(nsqd)]})

    def asked(self, path: str) -> list[list[dict[str, str]]]:
        """Return the queries of each server: nsqlookupds first."""
        return [server.queries(path) for server in (*self.lookupds, *self.nsqds)]
