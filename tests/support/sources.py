"""Messages that no nsqd has sent."""

from nsq_ha.message import Message


class Source:
    """Where a message of a test comes from."""

    topic, channel, partition, nsqd = "orders", "files", 3, "127.0.0.1:4150"

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None) -> None: ...

    def touch(self, message: Message) -> None: ...
