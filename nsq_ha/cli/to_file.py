"""``nsq-ha to-file``: write the messages of a topic into files."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from nsq_ha.cli.archive import Archive, Completed, Compressed, Format, check_format
from nsq_ha.cli.options import CHANNEL, IN_FLIGHT, SECONDS, TOPIC, cluster_options, json_option, metrics_option
from nsq_ha.cli.output import clean, print_json, wants_json
from nsq_ha.cli.progress import Progress
from nsq_ha.cli.reading import Intake, Selection, check_read, losses_reported, selection_options
from nsq_ha.cli.running import run
from nsq_ha.cli.views import require_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsq_ha import Message
    from nsq_ha.cli.cluster import ClusterAccess

_Result = TypeVar("_Result")

CHANNEL_OF_FILES: Final = "nsq-ha-to-file"
_MOST_WAIT: Final = 0.2
"""Seconds in which messages are collected for one write: each write waits for the disk."""
_MOST_WAIT_ORDERED: Final = 0.005
"""The same for an ordered topic, where a partition gives one message at a time: empty ones are waited for."""

_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Size(click.ParamType[int]):
    """A number of bytes, with an optional unit: 500k, 64M, 1GiB (powers of 1024)."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes, or fail with the reason."""
        found = _SIZE.fullmatch(str(value).strip())
        size = int(found[1]) * _FACTORS[found[2].lower()] if found else 0
        if size < 1:
            self.fail(f"write a number of bytes such as 500k, 64M or 1G, not {value!r}", param, ctx)
        return size


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The options of the command, by their names."""

    folder: Path
    form: Format
    compressed: Compressed
    rotate_bytes: int
    rotate_seconds: float


@click.command("to-file", short_help="Write messages into files.")
@click.argument("topic", type=TOPIC)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=False,
    help="Write to the folder TOPIC in this one. Default: the current folder.",
)
@click.option("--channel", type=CHANNEL, default=CHANNEL_OF_FILES, help="Channel to read.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "lines", "parquet"]),
    default="json",
    help="json: a line for each message, as tail --json prints it. lines: only the body, and a newline. parquet: needs"
    " pyarrow.",
)
@click.option(
    "--compress",
    "compressed",
    type=click.Choice(["none", "gzip", "zstd"]),
    default="none",
    help="How to compress the files.",
)
@click.option(
    "--rotate-bytes",
    type=Size(),
    default="256M",
    help="Complete a file when its messages, uncompressed, have this size.",
)
@click.option(
    "--rotate-seconds", type=SECONDS, default=3600.0, help="Complete a file this long after its first message."
)
@selection_options("Read", "where the channel is; a new channel starts with new messages")
@click.option(
    "--max-in-flight", type=IN_FLIGHT, default=1000, help="Maximum number of messages that are not on the disk yet."
)
@cluster_options
@metrics_option
@json_option
def to_file(
    topic: str,
    cluster: ClusterAccess,
    chosen: Selection,
    *,
    as_json: bool | None,
    **options: Any,  # noqa: ANN401 - what FileOptions takes
) -> None:
    """Write the messages of TOPIC into files, until Ctrl-C.

    A message is finished only after the disk has it. So nothing is lost if this process is killed; start it again
    with the same --dir to complete what it left. Messages that were written but whose FIN did not arrive are then
    written again: at most --max-in-flight of them, plus those that nsqd delivers again after a leader change.

    A file appears under its name when it is complete, and never changes: DIR/TOPIC/TOPIC.20260131T090000Z.0001.jsonl.
    Its name is printed. Names that begin with a dot are unfinished work.

    --from moves the channel for all its consumers, each time the command starts.
    """
    is_json = wants_json(as_json)

    def show(completed: Completed) -> None:
        if completed.note is not None:
            click.echo(f"warning: {clean(completed.note)}", err=True)
        if not completed.messages:
            return
        if is_json:
            print_json({"file": str(completed.path), "messages": completed.messages})
        else:
            click.echo(f"{clean(str(completed.path))}  {completed.messages:,} messages")

    run(_to_file(cluster, topic, chosen, FileOptions(**options), show), stopped=0, has_end=chosen.has_end)


async def _to_file(
    cluster: ClusterAccess,
    topic: str,
    chosen: Selection,
    options: FileOptions,
    show: Callable[[Completed], None],
) -> int:
    check_format(options.form)
    archive = await asyncio.to_thread(Archive, options.folder, topic, options.form, options.compressed)
    try:
        for completed in await whole(archive.recover):
            show(completed)
        kind = await chosen.wait_for(cluster, topic)
        if kind is None:
            return 0
        reading = chosen.options()
        meta = (await require_topic(cluster, topic)).meta
        wait = _MOST_WAIT_ORDERED if meta is not None and meta.ordered else _MOST_WAIT
        reading["auto_touch"] = True  # a file may be completed for longer than nsqd waits for an answer
        consumer = cluster.consumer(topic, chosen.channel or CHANNEL_OF_FILES, **reading)
        async with consumer, losses_reported(consumer, kind):
            total = await chosen.total(cluster, consumer)
            with Progress(f"messages of {topic}", total) as progress:
                writer = Writer(archive, options, show, progress)
                most = min(each for each in (chosen.max_in_flight, chosen.count) if each is not None)
                intake = Intake(consumer.batches(most, wait), chosen)
                try:
                    await writer.run(intake)
                except asyncio.CancelledError:  # the ordinary end
                    await writer.complete()
                    raise
                await writer.complete()
            if intake.is_idle:
                await check_read(consumer, kind)
        return 0
    finally:
        archive.close()


class Writer:
    """Writes batches into an archive, and finishes their messages.

    Args:
        archive: Where to write.
        options: The command's options.
        show: Called with each complete file.
        progress: Counts messages.
    """

    def __init__(
        self, archive: Archive, options: FileOptions, show: Callable[[Completed], None], progress: Progress
    ) -> None:
        self._archive = archive
        self._options = options
        self._show = show
        self._progress = progress
        self._clock = asyncio.get_running_loop().time
        self._due = math.inf
        self._lines_warned = options.form != "lines"

    async def run(self, intake: Intake) -> None:
        """Write all that comes.

        Raises:
            OSError: The disk cannot be written; the messages go back to nsqd.
        """
        while True:
            if self._clock() >= self._due:
                await self.complete()
            messages = await intake.next(self._due)
            if messages is None:
                return
            if messages:
                await self._write(messages)
                intake.go_on()
            if self._archive.bytes >= self._options.rotate_bytes:
                await self.complete()

    async def complete(self) -> None:
        """Complete the current file, if there is one."""
        self._due = math.inf
        completed = await whole(self._archive.complete)
        if completed is not None:
            self._show(completed)

    async def _write(self, messages: Sequence[Message]) -> None:
        if self._archive.is_empty:
            self._due = self._clock() + self._options.rotate_seconds
        written: list[Message] = []

        def append() -> None:
            self._archive.append(messages)
            written.extend(messages)

        try:
            await whole(append)
        except OSError:
            for message in messages:
                message.requeue(0)
            raise
        finally:  # also if this task was cancelled meanwhile
            for message in written:
                message.finish()
            self._progress.advance(len(written))
        self._warn_of_lines(messages)

    def _warn_of_lines(self, messages: Sequence[Message]) -> None:
        if not self._lines_warned and any(b"\n" in message.body for message in messages):
            self._lines_warned = True
            click.echo(
                "warning: a body contains a newline, so its lines look like several messages: --format json keeps them"
                " apart",
                err=True,
            )


async def whole(work: Callable[[], _Result]) -> _Result:
    """Run ``work`` in a thread to its end, even if this task is cancelled; then the cancellation has its effect."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait({task})
        raise
