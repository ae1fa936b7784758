"""The options of ``format("nsq")``: each is declared here, once, with its use, type, range, default and meaning.

The language is that of :mod:`nsq_ha.options.language`; ``names`` says how the options are called and read. Names are
Kafka's if the meaning is the same. This module does not know the servers: the planner checks whether a partition
exists and whether an offset is still kept.

The invariant: everything is checked on the driver, before any task starts, and an error names the option.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Meta

from nsq_ha.base.redaction import conceal
from nsq_ha.options.checks import MAX_INT64, check_topic
from nsq_ha.options.config import FrameBytes, MsgTimeout
from nsq_ha.options.language import Bytes, Seconds, declared
from nsq_ha.options.types import Compression, TlsConfig
from nsq_ha.options.values import secret_text
from nsq_ha.spark import logger
from nsq_ha.spark.options import values
from nsq_ha.spark.options.names import (
    AckStreams,
    Batches,
    Everywhere,
    Names,
    Reads,
    Replays,
    ReplayStreams,
    Streams,
    Writes,
    exclude,
    field_values,
    known_options,
    spelled,
    wrong,
)
from nsq_ha.spark.options.values import LATEST, ByPartition

_Wait = Annotated[Seconds, Meta(ge=0.05, le=600)]
_Count = Annotated[int, Meta(ge=1, le=MAX_INT64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect to nsqds. Times are seconds."""

    auth_secret: Everywhere[Annotated[str, secret_text] | None] = field(default=None, repr=False)
    """Secret for servers that require AUTH."""
    tls: Everywhere[TlsConfig | None] = None
    """Use TLS for connections to nsqds."""
    compression: Everywhere[Compression] = Compression.NONE
    """Between Spark and nsqds, if nsqd offers it."""
    msg_timeout: Reads[MsgTimeout | None] = None
    """Of the read's channel, up to nsqd's --max-msg-timeout; by default nsqd's."""
    # The server raises 1..9 ms to 10; the last part of a range waits that long.
    output_buffer_timeout: Reads[Annotated[Seconds, Meta(ge=0.001, le=600)]] = 0.01
    """How long nsqd gathers messages to send."""
    max_frame_bytes: Reads[FrameBytes] = 16 * 2**20
    """Largest message to read, with its head."""

    def __post_init__(self) -> None:
        """Hide the secret in errors and logs."""
        conceal(self.auth_secret)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle so that a task hides the secret as soon as it has it: it asks nsqd by HTTP before it sends AUTH."""
        return partial(ConnectionOptions, **{name: getattr(self, name) for name in declared(ConnectionOptions)}), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked. Times are in seconds, sizes in bytes; None means no limit."""

    lookupd: Everywhere[values.LookupdUrls] = ()
    """Base URLs of nsqlookupds."""
    topics: Reads[Annotated[values.Topics, Names(("topic", "subscribe"))]] = ()
    """Topics to read; ``subscribe`` is Kafka's name for it."""
    subscribe_pattern: Replays[values.Regex | None] = None
    """Read all topics whose whole name matches."""
    assign: Replays[values.Assigned | None] = None
    """Read only these partitions."""
    starting_offsets: Replays[values.Start] = "earliest"
    """Where a batch or a new stream starts; in JSON, -2 is earliest and -1 latest, and a missing partition is earliest.
    latest is for streams only, and their default."""
    starting_timestamp: Replays[values.TimeMs | None] = None
    """Start at this time."""
    starting_offsets_by_timestamp: Replays[values.TimesMs | None] = None
    """The same by partition."""
    starting_offsets_by_timestamp_strategy: Replays[Literal["latest", "error"]] = "latest"
    """Where to start in a partition without a message as young as the start time: at the log's end, or fail."""
    ending_offsets: Batches[values.End] = "latest"
    """Where a batch ends; in JSON, -1 is latest."""
    ending_timestamp: Batches[values.TimeMs | None] = None
    """End before this time."""
    ending_offsets_by_timestamp: Batches[values.TimesMs | None] = None
    """The same by partition."""
    max_offsets_per_trigger: Streams[_Count | None] = None
    """Maximum messages of a micro-batch, shared by backlog; each partition with new ones gets at least one."""
    max_bytes_per_trigger: Streams[Annotated[Bytes, Meta(ge=1, le=MAX_INT64)] | None] = None
    """Maximum bytes of the log in a micro-batch."""
    max_time_per_trigger: Streams[Annotated[Seconds, Meta(ge=0.001, le=31_536_000)] | None] = None
    """Maximum span of time in a micro-batch, from the oldest unread message of all partitions on: they advance together
    through a backlog, so that none falls behind the watermark."""
    min_offsets_per_trigger: Streams[_Count | None] = None
    """Wait for this number of messages."""
    max_trigger_delay: Streams[Annotated[Seconds, Meta(ge=0, le=86400)]] = 900.0
    """Limit of that wait."""
    min_partitions: Reads[Annotated[int, Meta(ge=1, le=100_000)] | None] = None
    """Minimum number of tasks: split large ranges."""
    max_records_per_partition: Reads[_Count | None] = None
    """Maximum messages of a task."""
    fail_on_data_loss: Reads[bool] = True
    """Fail if messages of the range are gone; false reads the rest."""
    include_headers: Replays[bool] = False
    """Add the column headers."""
    headers_as: Replays[Literal["map", "array"]] = "map"
    """With includeHeaders: the type of headers; map keeps the last of repeated names, array keeps all."""
    fetch_timeout: Reads[_Wait] = 5.0
    """A task without progress for this time opens another channel."""
    fetch_retries: Reads[Annotated[int, Meta(ge=0, le=999_999)]] = 10
    """How often in a row before the read fails; planning waits as long."""
    metadata_refresh: ReplayStreams[Annotated[Seconds, Meta(ge=0, le=600)]] = 0.1
    """How long known ends of partitions stay valid."""
    driver_bytes: ReplayStreams[Annotated[Bytes, Meta(ge=0, le=16 * 2**20)]] = 64 * 1024
    """The driver itself reads micro-batches up to this size, without tasks."""
    channel: Reads[values.Channel | None] = None
    """A registered channel to read through, one reader at a time; with delivery=ack any."""
    channel_prefix: Replays[values.Prefix] = "spark-"
    """Prefix of the names of temporary channels."""
    report_channel: ReplayStreams[values.Channel | None] = None
    """A channel to set to the committed offsets, for NSQ's tools."""
    fetch: Replays[Literal["auto", "bulk", "subscribe"]] = "auto"
    """bulk copies ranges of the log through the port of the replicas, which is faster, but has neither AUTH nor TLS;
    auto does so unless authSecret, tls or channel is set."""
    bulk_without_tls: Replays[bool] = False
    """Allow fetch=bulk though authSecret or tls is set."""
    rdy: Reads[Annotated[int, Meta(ge=1, le=1_000_000)]] = 2500
    """Maximum messages in flight to a task, up to nsqd's --max-rdy-count."""
    arrow_batch_rows: Reads[Annotated[int, Meta(ge=1, le=1_000_000)]] = 8192
    """Rows of an Arrow batch."""
    delivery: Streams[Literal["replay", "ack"]] = "replay"
    """ack reads servers without offsets, at least once."""
    spool: AckStreams[values.Folder | None] = None
    """With delivery=ack: folder that only this query uses."""
    max_spool_bytes: AckStreams[Annotated[Bytes, Meta(ge=2**20, le=MAX_INT64)]] = 2**30
    """With delivery=ack: pause while this many bytes wait for Spark."""
    nsqd: AckStreams[values.Nsqds] = ()
    """With delivery=ack: plain nsqds, instead of lookupd."""
    connection: ConnectionOptions = ConnectionOptions()

    @property
    def starting_times(self) -> int | ByPartition | None:
        """The time to start at, of all or by topic and partition."""
        return self.starting_offsets_by_timestamp if self.starting_timestamp is None else self.starting_timestamp

    @property
    def ending_times(self) -> int | ByPartition | None:
        """The time to end before, of all or by topic and partition."""
        return self.ending_offsets_by_timestamp if self.ending_timestamp is None else self.ending_timestamp

    @property
    def is_limited(self) -> bool:
        """Whether anything limits a micro-batch."""
        limits = self.max_offsets_per_trigger, self.max_bytes_per_trigger, self.max_time_per_trigger
        return any((*limits, self.min_offsets_per_trigger))

    @property
    def patience(self) -> float:
        """Seconds without any progress before a task, or the plan, fails."""
        return self.fetch_timeout * (self.fetch_retries + 1)

    @property
    def by_partition(self) -> Mapping[str, Mapping[str, Iterable[int]]]:
        """The options that name partitions by topic."""
        given = {
            "startingOffsets": self.starting_offsets,
            "startingOffsetsByTimestamp": self.starting_times,
            "endingOffsets": self.ending_offsets,
            "endingOffsetsByTimestamp": self.ending_times,
            "assign": self.assign,
        }
        return {name: value for name, value in given.items() if isinstance(value, Mapping)}

    def reads(self, topic: str, partition: int) -> bool:
        """Return whether the options choose this partition."""
        if self.assign is not None:
            return partition in self.assign.get(topic, ())
        if self.subscribe_pattern is not None:
            return re.fullmatch(self.subscribe_pattern, topic) is not None
        return topic in self.topics

    @property
    def choice(self) -> str:
        """What the options choose to read, for error messages."""
        if self.assign is not None:
            return ", ".join(f"{topic}-{number}" for topic, numbers in self.assign.items() for number in numbers)
        if self.subscribe_pattern is not None:
            return f"topics that match {self.subscribe_pattern!r}"
        return ", ".join(map(repr, self.topics))

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Literal["batch", "stream"] = "batch") -> Self:
        """Parse the options of a Spark user; names in any case, values as text.

        Ignore the options of Spark itself, which it passes here too. Log a warning about an option that does not apply
        to ``mode``, and ignore it, since a program may use the same options for reads and writes.

        Raises:
            ConfigError: An option is unknown, a value is wrong or a required one is missing; the
                message begins with the option's name.
        """
        given = spelled(KNOWN, options, mode)
        exclude(given, "topic" if "topic" in given else "subscribe", "subscribePattern", "assign")
        for end in ("starting", "ending"):
            exclude(given, f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp")
        values: dict[str, Any] = {"starting_offsets": "latest"} if mode == "stream" else {}
        values |= field_values(cls, given)
        values.setdefault("topics", tuple(values.get("assign") or ()))
        parsed = cls(**values)
        parsed._check(given, mode)
        if parsed.delivery == "ack":
            parsed._check_ack(given)
        else:
            parsed = dataclasses.replace(parsed, fetch=parsed._checked_fetch())
        if needless := sorted(name for name in given if KNOWN[name].delivery not in ("", parsed.delivery)):
            raise wrong(needless[0], _NEEDLESS[parsed.delivery])
        return parsed

    def _check(self, given: Mapping[str, str], mode: str) -> None:
        if not self.nsqd and not self.lookupd:
            raise wrong("lookupd", "is missing: set the address of an nsqlookupd, such as 127.0.0.1:4161")
        if not self.topics and not self.subscribe_pattern:
            raise wrong("topic", "is missing: set the topic to read, or several separated by commas")
        for name, value in self.by_partition.items():
            for topic in value:
                if self.topics and topic not in self.topics:
                    raise wrong(name, f"has topic {topic!r}, which is not read ({', '.join(self.topics)})")
        if self.starting_times is None and "startingOffsetsByTimestampStrategy" in given:
            raise wrong(
                "startingOffsetsByTimestampStrategy", "needs 'startingTimestamp' or 'startingOffsetsByTimestamp'"
            )
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least and most and least > most:
            raise wrong("minOffsetsPerTrigger", "is more than 'maxOffsetsPerTrigger', the maximum of a micro-batch")

        if "headersAs" in given and not self.include_headers:
            raise wrong("headersAs", "needs includeHeaders=true")
        starting = self.starting_offsets
        parts = () if isinstance(starting, str) else starting.values()
        if mode == "batch" and (starting == "latest" or any(LATEST in part.values() for part in parts)):
            raise wrong("startingOffsets", "cannot be latest (-1) in a batch read, which would have no rows")

    def _checked_fetch(self) -> Literal["bulk", "subscribe"]:
        protected = [name for name, value in _PROTECTION.items() if getattr(self.connection, value) is not None]
        if self.fetch == "bulk" and protected and not self.bulk_without_tls:
            raise wrong(
                "fetch",
                f"bulk reads through a port without AUTH and TLS, though {protected[0]!r} is set: set "
                "bulkWithoutTls=true if that is allowed, or fetch=subscribe",
            )
        if self.channel is not None and (self.min_partitions or self.max_records_per_partition):
            name = "minPartitions" if self.min_partitions else "maxRecordsPerPartition"
            raise wrong(name, "cannot be combined with 'channel', which serves one reader at a time")
        copies = not protected or self.bulk_without_tls
        if self.fetch == "bulk" or (self.fetch == "auto" and copies and self.channel is None):
            return "bulk"
        logger.info(
            "%s: reading by subscription; where Spark may reach the --rpc-port of the nsqds, fetch=bulk%s is faster",
            self.choice,
            "" if copies else " with bulkWithoutTls=true",
        )
        return "subscribe"

    def _check_ack(self, given: Mapping[str, str]) -> None:
        for name, value in (("spool", self.spool), ("channel", self.channel)):
            if not value:
                raise wrong(name, "is missing: delivery=ack needs it")
        if self.nsqd:
            exclude(given, "lookupd", "nsqd")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, checked. Times are in seconds, sizes in bytes."""

    lookupd: Everywhere[values.LookupdUrls] = ()
    """Base URLs of nsqlookupds."""
    topic: Writes[values.Topic | None] = None
    """The topic to write to; by default the column topic."""
    partitioner: Writes[Literal["column", "murmur3", "javahash", "roundrobin"]] = "column"
    """How to choose the partition: column uses the column partition, else murmur3 of key, else round robin."""
    batch_messages: Writes[Annotated[int, Meta(ge=1, le=100_000)]] = 1000
    """Maximum messages of one MPUB."""
    batch_bytes: Writes[Annotated[Bytes, Meta(ge=1024, le=2**31 - 1)]] = 2**20
    """Maximum bytes of one MPUB, below nsqd's --max-body-size; one message may have more."""
    max_message_bytes: Writes[Annotated[Bytes, Meta(ge=1, le=2**31 - 1)]] = 2**20
    """Largest message with trace id and headers: nsqd's --max-msg-size."""
    trace: Writes[bool] = False
    """Publish with trace ids from what rows are, which stay the same if they are written again; needs rows that
    by_partition placed, or traceIdColumn."""
    trace_id_column: Writes[str | None] = None
    """Column that says what a row is: a number is the trace id, text or bytes are hashed to it."""
    write_id: Writes[str | None] = None
    """With trace, in a batch write: a name of the write, the same if the program repeats it."""
    on_bad_row: Writes[Literal["fail", "drop", "deadLetter"]] = "fail"
    """What to do with a row that cannot be published (empty, too large, no partition); drop counts it in the log."""
    dead_letter_topic: Writes[Annotated[str, check_topic, Meta(description="a topic")] | None] = None
    """With onBadRow=deadLetter: the topic for bad rows, as JSON."""
    publish_timeout: Writes[_Wait] = 60.0
    """Limit for one MPUB with its retries; an election takes 22 s."""
    connection: ConnectionOptions = ConnectionOptions()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options of a Spark user, as :meth:`ReadOptions.parse` does.

        Raises:
            ConfigError: As for :meth:`ReadOptions.parse`.
        """
        given = {
            name: text for name, text in spelled(KNOWN, options, "write").items() if text or name != "deadLetterTopic"
        }
        values = field_values(cls, given)
        parsed = cls(**values)
        if not parsed.lookupd:
            raise wrong("lookupd", "is missing: set the address of an nsqlookupd, such as 127.0.0.1:4161")
        dead_letters = parsed.dead_letter_topic
        if parsed.on_bad_row == "deadLetter" and not dead_letters:
            raise wrong("deadLetterTopic", "is missing: onBadRow=deadLetter needs a topic for bad rows")
        if parsed.on_bad_row != "deadLetter" and dead_letters:
            raise wrong("deadLetterTopic", "needs onBadRow=deadLetter")
        if dead_letters and dead_letters == parsed.topic:
            raise wrong("deadLetterTopic", "is the topic of the write: choose another one for bad rows")
        # Positions do not say what a row is.
        if parsed.trace_id_column in ("offset", "partition"):
            raise wrong(
                "traceIdColumn",
                f"{parsed.trace_id_column!r} is a position, which other rows have, too: use a column of "
                "nsq_ha.spark.functions.row_id()",
            )
        if parsed.write_id is not None and (not parsed.trace or parsed.trace_id_column is not None):
            raise wrong("writeId", "needs trace=true without 'traceIdColumn', whose ids do not depend on the write")
        return dataclasses.replace(parsed, trace=parsed.trace or parsed.trace_id_column is not None)


KNOWN: Final = known_options(ReadOptions, WriteOptions)
"""Every option, by its name."""

_PROTECTION: Final = {"tls": "tls", "authSecret": "auth_secret"}
"""Options whose protection ``fetch=bulk`` would go around, and their fields."""

_NEEDLESS: Final = {
    "ack": "cannot be combined with delivery=ack: it needs a server with offsets",
    "replay": "needs delivery=ack; a read by offsets uses 'lookupd'",
}
