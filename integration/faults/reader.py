"""A second consumer, as a process of its own that can be killed and frozen.

``python -m integration.faults.reader TOPIC CHANNEL OPTIONS LOOKUPD...``: a line of JSON for each
delivery, written before its FIN, and one when it is subscribed. The options are JSON; TLS, AUTH and compression are the
environment's. SIGTERM closes the consumer.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time

from integration.faults.pace import of_environment
from nsq_ha import Consumer


async def main(topic: str, channel: str, options: dict[str, float], lookupds: list[str]) -> None:
    """Read until killed, or told to leave."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Consumer(topic, channel, lookupd=lookupds, **(of_environment() | options)) as consumer:
        _write({"subscribed": True})
        async for message in consumer:
            _write(
                {
                    "t": time.monotonic(),
                    "body": message.body.decode(),
                    "partition": message.partition,
                    "id": message.internal_id,
                    "nsqd": message.nsqd,
                }
            )
            message.finish()


def _write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:]))
