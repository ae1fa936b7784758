"""A cluster with scripted answers."""

from __future__ import annotations

from tests.discovery.loopback import Fake, list_body, lookup_body


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

    def lookups(self, *contents: object, status: int = 200) -> None:
        """Both say these in turn, for each question of either access."""
        for fake in (self.follower, self.leader):
            fake.answer("/lookup", contents[0], status)
            for content in contents[1:]:
                fake.then("/lookup", content, status)
