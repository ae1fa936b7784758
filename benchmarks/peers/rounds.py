"""Interleaved rounds: in each, every client does the same work once, in another order than in the last round."""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.peers.clients.measure import Task
from benchmarks.peers.environments import ROOT, Client, command_of, variables
from benchmarks.peers.nsqd import Nsqd

LIMIT = 120.0


class SkippedError(Exception):
    """A client could not do its work; the table says why."""


@dataclass
class Work:
    """One row's work.

    Attributes:
        name: Of the row.
        work: See ``Task.work``.
        counts: Messages for ours, and for peers (they need longer for each).
        body_bytes: Size of each body.
        in_flight: Unanswered at most; also the size of a batch.
        rate: Messages a second, where messages are published meanwhile.
    """

    name: str
    work: str
    counts: tuple[int, int]
    body_bytes: int = 100
    in_flight: int = 200
    rate: int = 0


@dataclass
class Outcome:
    """What one client needed, one entry a round; NaN where it failed."""

    client: Client
    results: list[dict[str, float]] = field(default_factory=list)
    trouble: str = ""

    def per_message(self, figure: str) -> list[float]:
        """Return a figure of each round, for one message where that makes sense."""
        return [result[figure] for result in self.results]

    def median(self, figure: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.per_message(figure))


class Bench:
    """Runs works on one nsqd."""

    def __init__(self, server: Nsqd, build_folder: Path, clients: Sequence[Client]) -> None:
        """Make the environments of all clients; those that do not install are left out with a line."""
        self._server = server
        self._variables = variables(build_folder)
        self._commands: dict[Client, list[str]] = {}
        for client in clients:
            command = command_of(client, build_folder)
            if isinstance(command, str):
                print(command)
            else:
                self._commands[client] = command

    def run(self, work: Work, clients: Sequence[Client], rounds: int) -> list[Outcome]:
        """Run ``rounds`` rounds and return what each client needed; rounds with a failure are dropped for all."""
        outcomes = [Outcome(client) for client in clients if client in self._commands]
        for number in range(rounds):
            order = outcomes[number % len(outcomes) :] + outcomes[: number % len(outcomes)]
            for outcome in order:
                if outcome.trouble:
                    continue
                try:
                    outcome.results.append(self._once(work, outcome.client))
                except (SkippedError, RuntimeError, OSError) as error:
                    outcome.trouble = str(error)
        return outcomes

    def _once(self, work: Work, client: Client) -> dict[str, float]:
        count = work.counts[0 if client.is_ours else 1]
        topic = f"bench{time.time_ns()}"
        consumes = work.work in ("drain", "latency")
        self._server.create(topic, ["bench"] if consumes else [])
        task = Task(
            work=work.work,
            address=self._server.address,
            topic=topic,
            count=count,
            body_bytes=work.body_bytes,
            in_flight=work.in_flight,
            loop=client.loop,
        )
        try:
            if work.work == "drain":
                self._server.fill(topic, count, b"x" * work.body_bytes)
            meanwhile = None
            if work.work == "latency":
                meanwhile = lambda: self._server.publish_stamped(topic, count, work.rate)  # noqa: E731 - one use
            result = self._call(client, task, meanwhile)
            if consumes:
                self._server.check_finished(topic, "bench", count)
            else:
                self._server.check_stored(topic, count)
        finally:
            self._server.delete(topic)
        return {**result, "rate": count / result["seconds"], "cpu": result["cpu_seconds"] / count}

    def _call(self, client: Client, task: Task, meanwhile: Callable[[], None] | None) -> dict[str, float]:
        command = [*self._commands[client], json.dumps(asdict(task))]
        with subprocess.Popen(
            command, cwd=ROOT.parent, env=self._variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                if meanwhile is not None and process.stdout is not None:
                    process.stdout.readline()  # "ready"
                    time.sleep(0.5)
                    meanwhile()
                output, errors = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise SkippedError(f"{client.name} did not end within {LIMIT} s") from None
        lines = output.strip().splitlines()
        if process.returncode or not lines:
            raise SkippedError(f"{client.name} failed: {(errors.strip().splitlines() or ['no word'])[-1]}")
        answer: dict[str, float] = json.loads(lines[-1])
        return answer


def ratios(one: Outcome, other: Outcome, figure: str) -> list[float]:
    """Return ``one`` over ``other``, round by round."""
    return [a / b for a, b in zip(one.per_message(figure), other.per_message(figure), strict=False)]
