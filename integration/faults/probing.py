"""The probes' own process: a publish to every replica of every partition each 50 ms, by bare sockets.

Reads its targets as one line of JSON from standard input, writes a line of JSON
for each publish that the cluster took and for each change of an answer, and ends
when standard input is closed. It shares nothing with the library but the
encoding of PUB, so it measures the cluster itself.
"""

import asyncio
import contextlib
import json
import struct
import sys
import time
from typing import Final

from nsq_ha.protocol.encoding import encode_pub

INTERVAL: Final = 0.05
"""The rhythm of the probes; all sleeps here keep it."""
PATIENCE: Final = 1.0
"""Seconds without answer after which a second connection is made; the first may still answer."""
LATE: Final = 30.0
MAX_LATE: Final = 6
MARK: Final = b"probe"


class Probe:
    """Publishes to one replica of one partition."""

    def __init__(self, topic: str, partition: int, host: str, port: int) -> None:
        self.topic, self.partition, self.host, self.port = topic, partition, host, port
        self._said = ""
        self._late: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE):
                    reader, writer = await asyncio.open_connection(self.host, self.port)
            except (OSError, TimeoutError) as error:
                self._say(f"no connection ({type(error).__name__})")
                await asyncio.sleep(INTERVAL)
                continue
            await self._over(reader, writer)

    async def _over(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"  V2")
        due = time.monotonic()
        kept = False
        answer: asyncio.Future[str] | None = None
        try:
            while True:
                writer.write(encode_pub(self.topic, self.partition, MARK))
                answer = asyncio.ensure_future(_answer(reader, writer))
                done, _ = await asyncio.wait({answer}, timeout=PATIENCE)
                if not done:
                    self._say("no answer")
                    kept = self._wait_longer(answer, writer)
                    return
                self._note(answer.result())
                due = max(due + INTERVAL, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
        except (OSError, EOFError) as error:
            if self._said != "E_TOPIC_NOT_EXIST":
                self._say(f"closed ({type(error).__name__})")
            # A node that holds no replica closes each time; once it holds one it is probed in full rhythm.
            await asyncio.sleep(2 * INTERVAL)
        finally:
            if not kept:
                writer.close()
                if answer is not None:
                    answer.cancel()

    def _wait_longer(self, answer: asyncio.Future[str], writer: asyncio.StreamWriter) -> bool:
        if len(self._late) >= MAX_LATE:
            answer.cancel()
            return False
        task = asyncio.ensure_future(self._late_answer(answer, writer))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return True

    async def _late_answer(self, answer: asyncio.Future[str], writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(LATE):
                self._note(await answer)
        except (OSError, EOFError, TimeoutError):
            return
        finally:
            writer.close()

    def _note(self, answer: str) -> None:
        if answer == "OK":
            _write({"t": time.monotonic(), "topic": self.topic, "partition": self.partition, "port": self.port})
        self._say(answer)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            where = f"{self.topic}-{self.partition}"
            _write({"t": time.monotonic(), "said": text, "topic": where, "port": self.port})


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Return the first word of the answer to the one publish that waits."""
    while True:
        size, kind = struct.unpack(">ii", await reader.readexactly(8))
        data = await reader.readexactly(size - 4)
        if kind == 0 and data == b"_heartbeat_":
            writer.write(b"NOP\n")
            continue
        return data.split(b" ")[0].decode("ascii", "replace")


def _write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Probe the targets of standard input until it is closed."""
    loop = asyncio.get_running_loop()
    targets = json.loads(await loop.run_in_executor(None, sys.stdin.readline))
    probes = [asyncio.ensure_future(Probe(*target).run()) for target in targets]
    await loop.run_in_executor(None, sys.stdin.readline)
    for probe in probes:
        probe.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*probes)


if __name__ == "__main__":
    asyncio.run(main())
