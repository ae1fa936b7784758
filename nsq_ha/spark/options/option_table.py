"""The options of ``format("nsq")``: one table, from which parsing, errors and documentation follow.

Each field of the three classes is a row of the table: the uses that it applies to, the
kind of its values, its meaning and its default; the option is named like the field. Names
are Kafka's if the meaning is the same. This module does not know the servers: the planner
checks whether a partition exists and whether an offset is still kept.

The invariant: everything is checked on the driver, before any task starts, and an error
names the option.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from nsq_ha.errors import ConfigError
from nsq_ha.option_types import Compression, TlsConfig
from nsq_ha.redaction import conceal
from nsq_ha.spark.options import option_parsing as of
from nsq_ha.spark.options.option_parsing import ByPartition, OffsetBound, wrong
from nsq_ha.spark.options.option_rows import Mode, Option, Texts, exclude, field_values, row, rows, spelled, table

FAIL: Final = "fail"
DROP: Final = "drop"
DEAD_LETTER: Final = "deadLetter"

B: Final[tuple[Mode, ...]] = ("batch",)
S: Final[tuple[Mode, ...]] = ("stream",)
W: Final[tuple[Mode, ...]] = ("write",)
BS: Final = B + S
BSW: Final = BS + W


_TLS_NAMES: Final = {
    "tlsCaFile": "ca_file",
    "tlsCertFile": "cert_file",
    "tlsKeyFile": "key_file",
    "tlsKeyPassword": "key_password",
    "tlsVerify": "verify",
    "tlsServerName": "server_name",
    "tlsMinimumVersion": "minimum_version",
}


def in_tls_options(text: str) -> str:
    """Return a text about :class:`TlsConfig` with the names of the options instead of its fields."""
    for option, field in _TLS_NAMES.items():
        text = re.sub(rf"\b{field}\b=?", option, text)
    return text


def _tls(values: Mapping[str, Any]) -> TlsConfig | None:
    parts = {name: value for name, value in values.items() if name != "tls"}
    if values.get("tls"):
        try:
            return TlsConfig(**{_TLS_NAMES[name]: value for name, value in parts.items()})
        except ConfigError as error:
            # The text begins with the field's name.
            name, _, problem = in_tls_options(str(error)).partition(" ")
            raise wrong(name, problem.replace("give None for", "leave it out for")) from error
    if parts:
        raise wrong(min(parts), "needs tls=true")
    return None


def _same_topics(values: Mapping[str, Any]) -> tuple[str, ...]:
    if len({*values.values()}) > 1:
        raise wrong("subscribe", "has the same meaning as 'topic', but another value")
    topics: tuple[str, ...] = next(iter(values.values()))
    return topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect to nsqds. Times are seconds."""

    auth_secret: str | None = row(BSW, of.SECRET, "secret for servers that require AUTH", secret=True)
    tls: TlsConfig | None = rows(
        None,
        Option(name="tls", modes=BSW, kind=of.FLAG, meaning="use TLS for connections to nsqds", default="false"),
        Option(
            name="tlsCaFile", modes=BSW, kind=of.TEXT, meaning="PEM file of trusted authorities; default: the system's"
        ),
        Option(name="tlsCertFile", modes=BSW, kind=of.TEXT, meaning="PEM file of a client certificate"),
        Option(name="tlsKeyFile", modes=BSW, kind=of.TEXT, meaning="PEM file of its key"),
        Option(name="tlsKeyPassword", modes=BSW, kind=of.TEXT, meaning="password of an encrypted key; never shown"),
        Option(name="tlsVerify", modes=BSW, kind=of.FLAG, meaning="false is only for tests", default="true"),
        Option(name="tlsServerName", modes=BSW, kind=of.TEXT, meaning="name to expect in the certificate"),
        Option(
            name="tlsMinimumVersion", modes=BSW, kind=of.word("1.2", "1.3"), meaning="oldest TLS version", default="1.2"
        ),
        join=_tls,
    )
    compression: Compression = row(BSW, of.COMPRESSION, "between Spark and nsqds, if nsqd offers it", "none")
    msg_timeout: float | None = row(
        BS, of.duration(1.0, 864_000.0), "of the read's channel, up to nsqd's --max-msg-timeout; default: nsqd's"
    )
    # The server raises 1..9 ms to 10; the last part of a range waits that long.
    output_buffer_timeout: float = row(BS, of.duration(0.001, 600.0), "how long nsqd gathers messages to send", "10ms")
    max_frame_bytes: int = row(BS, of.size(1024, 2**31 - 1), "largest message to read, with its head", "16m")

    def __post_init__(self) -> None:
        """Hide the secret in errors and logs."""
        conceal(self.auth_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked. Times are in seconds, sizes in bytes; None means no limit."""

    lookupd: tuple[str, ...] = rows((), Option(modes=BSW, kind=of.LOOKUPD, meaning="base URLs of nsqlookupds"))
    topics: tuple[str, ...] = rows(
        (),
        Option(name="topic", modes=BS, kind=of.TOPICS, meaning="topics to read"),
        Option(name="subscribe", modes=BS, kind=of.TOPICS, meaning="the same, by Kafka's name"),
        join=_same_topics,
    )
    subscribe_pattern: str | None = row(BS, of.REGEX, "read all topics whose whole name matches")
    assign: Mapping[str, tuple[int, ...]] | None = row(BS, of.PARTITIONS, "read only these partitions")
    starting_offsets: OffsetBound = row(
        BS,
        of.offsets("earliest", "latest"),
        "where a batch or a new stream starts; in JSON, -2 is earliest and -1 latest, and a missing partition is "
        "earliest. latest is for streams only, and their default",
        "earliest",
    )
    starting_times: int | ByPartition | None = rows(
        None,
        Option(name="startingTimestamp", modes=BS, kind=of.TIME_MS, meaning="start at this time"),
        Option(name="startingOffsetsByTimestamp", modes=BS, kind=of.TIMES_MS, meaning="the same by partition"),
    )
    starting_offsets_by_timestamp_strategy: str = row(
        BS,
        of.word("latest", "error"),
        "where to start in a partition without a message as young as the start time: at the log's end, or fail",
        "latest",
    )
    ending_offsets: OffsetBound = row(B, of.offsets("latest"), "where a batch ends; in JSON, -1 is latest", "latest")
    ending_times: int | ByPartition | None = rows(
        None,
        Option(name="endingTimestamp", modes=B, kind=of.TIME_MS, meaning="end before this time"),
        Option(name="endingOffsetsByTimestamp", modes=B, kind=of.TIMES_MS, meaning="the same by partition"),
    )
    max_offsets_per_trigger: int | None = row(S, of.count(1), "maximum messages of a micro-batch, shared by backlog")
    max_bytes_per_trigger: int | None = row(S, of.size(), "maximum bytes of the log in a micro-batch")
    min_offsets_per_trigger: int | None = row(S, of.count(1), "wait for this number of messages")
    max_trigger_delay: float = row(S, of.duration(0.0, 86400.0), "limit of that wait", "15m")
    min_partitions: int | None = row(BS, of.count(1, 100_000), "minimum number of tasks: split large ranges")
    max_records_per_partition: int | None = row(BS, of.count(1), "maximum messages of a task")
    fail_on_data_loss: bool = row(BS, of.FLAG, "fail if messages of the range are gone; false reads the rest", "true")
    include_headers: bool = row(BS, of.FLAG, "add the column headers", "false")
    headers_as: str = row(
        BS,
        of.word("map", "array"),
        "with includeHeaders: the type of headers; map keeps the last of repeated names, array keeps all",
        "map",
    )
    fetch_timeout: float = row(BS, of.duration(), "a task without progress for this time opens another channel", "5s")
    fetch_retries: int = row(
        BS, of.count(0, 999_999), "how often in a row before the read fails; planning waits as long", "10"
    )
    metadata_refresh: float = row(S, of.duration(0.0, 600.0), "how long known ends of partitions stay valid", "100ms")
    driver_bytes: int = row(
        S, of.size(0, 16 * 2**20), "the driver itself reads micro-batches up to this size, without tasks", "64k"
    )
    channel: str | None = row(
        BS, of.DURABLE_CHANNEL, "a registered channel to read through, one reader at a time; with delivery=ack any"
    )
    channel_prefix: str = row(BS, of.CHANNEL_PREFIX, "prefix of the names of temporary channels", "spark-")
    report_channel: str | None = row(
        S, of.DURABLE_CHANNEL, "a channel to set to the committed offsets, for NSQ's tools"
    )
    fetch: str = row(
        BS,
        of.word("subscribe", "bulk"),
        "bulk copies ranges of the log through the port of the replicas, which is faster, but has neither AUTH nor TLS",
        "subscribe",
    )
    bulk_without_tls: bool = row(BS, of.FLAG, "allow fetch=bulk though authSecret or tls is set", "false")
    rdy: int = row(
        BS, of.count(1, 1_000_000), "maximum messages in flight to a task, up to nsqd's --max-rdy-count", "2500"
    )
    arrow_batch_rows: int = row(BS, of.count(1, 1_000_000), "rows of an Arrow batch", "8192")
    pushdown: bool = row(
        B, of.FLAG, "read less by filters; needs spark.sql.python.filterPushdown.enabled=true", "false"
    )
    delivery: str = row(S, of.word("replay", "ack"), "ack reads servers without offsets, at least once", "replay")
    spool: str | None = row(S, of.FOLDER, "with delivery=ack: folder that only this query uses")
    max_spool_bytes: int = row(S, of.size(2**20), "with delivery=ack: pause while this many bytes wait for Spark", "1g")
    nsqd: tuple[str, ...] = rows(
        (), Option(modes=S, kind=of.NSQD, meaning="with delivery=ack: plain nsqds, instead of lookupd")
    )
    connection: ConnectionOptions = ConnectionOptions()

    @property
    def patience(self) -> float:
        """Seconds without any progress before a task, or the plan, fails."""
        return self.fetch_timeout * (self.fetch_retries + 1)

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
    def parse(cls, options: Mapping[str, str], mode: Literal["batch", "stream"] = "batch") -> ReadOptions:
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
        parsed = cls(**values, connection=ConnectionOptions(**field_values(ConnectionOptions, given)))
        parsed._check(given)
        if mode == "batch":
            parsed._check_batch()
        if parsed.delivery == "ack":
            parsed._check_ack(given)
        else:
            parsed._check_replay(given)
        return parsed

    def _check(self, given: Texts) -> None:
        if not self.nsqd and not self.lookupd:
            of.LOOKUPD.parse("lookupd", "")
        if not self.topics and not self.subscribe_pattern:
            of.TOPICS.parse("topic", "")
        bounds = {
            "startingOffsets": self.starting_offsets,
            "endingOffsets": self.ending_offsets,
            "startingOffsetsByTimestamp": self.starting_times,
            "endingOffsetsByTimestamp": self.ending_times,
        }
        for name, value in bounds.items():
            for topic in value if isinstance(value, Mapping) and self.topics else ():
                if topic not in self.topics:
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

    def _check_batch(self) -> None:
        starting = self.starting_offsets
        offsets = (
            (starting,) if isinstance(starting, str) else [each for part in starting.values() for each in part.values()]
        )
        if "latest" in offsets or of.LATEST in offsets:
            raise wrong("startingOffsets", "cannot be latest (-1) in a batch read, which would have no rows")

    def _check_replay(self, given: Texts) -> None:
        if needless := sorted({"nsqd", "spool", "maxSpoolBytes"} & set(given)):
            raise wrong(needless[0], "needs delivery=ack; a read by offsets uses 'lookupd'")
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

    def _check_ack(self, given: Texts) -> None:
        for name, value in (("spool", self.spool), ("channel", self.channel)):
            if not value:
                raise wrong(name, "is missing: delivery=ack needs it")
        if self.nsqd:
            exclude(given, "lookupd", "nsqd")
        if needless := sorted(_REPLAY_ONLY & set(given)):
            raise wrong(needless[0], "cannot be combined with delivery=ack: it needs a server with offsets")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, checked. Times are in seconds, sizes in bytes."""

    lookupd: tuple[str, ...] = rows((), Option(modes=BSW, kind=of.LOOKUPD, meaning="base URLs of nsqlookupds"))
    topic: str | None = row(W, of.ONE_TOPIC, "the topic to write to; default: the column topic")
    partitioner: str = row(
        W,
        of.word("column", "murmur3", "javahash", "roundrobin"),
        "how to choose the partition: column uses the column partition, else murmur3 of key, else round robin",
        "column",
    )
    batch_messages: int = row(W, of.count(1, 100_000), "maximum messages of one MPUB", "1000")
    batch_bytes: int = row(
        W,
        of.size(1024, 2**31 - 1),
        "maximum bytes of one MPUB, below nsqd's --max-body-size; one message may have more",
        "1m",
    )
    max_message_bytes: int = row(
        W, of.size(1, 2**31 - 1), "largest message with trace id and headers: nsqd's --max-msg-size", "1m"
    )
    trace: bool = row(
        W,
        of.FLAG,
        "publish with trace ids from what rows are, which stay the same if they are written again; needs rows that "
        "by_partition placed, or traceIdColumn",
        "false",
    )
    trace_id_column: str | None = row(
        W, of.TEXT, "column that says what a row is: a number is the trace id, text or bytes are hashed to it"
    )
    write_id: str | None = row(
        W, of.TEXT, "with trace, in a batch write: a name of the write, the same if the program repeats it"
    )
    on_bad_row: str = row(
        W,
        of.word(FAIL, DROP, DEAD_LETTER),
        "what to do with a row that cannot be published (empty, too large, no partition); drop counts it in the log",
        FAIL,
    )
    dead_letter_topic: str | None = row(W, of.TOPIC, "with onBadRow=deadLetter: the topic for bad rows, as JSON")
    publish_timeout: float = row(W, of.duration(), "limit for one MPUB with its retries; an election takes 22 s", "60s")
    connection: ConnectionOptions = ConnectionOptions()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse the options of a Spark user, as :meth:`ReadOptions.parse` does.

        Raises:
            ConfigError: As for :meth:`ReadOptions.parse`.
        """
        given = {
            name: text for name, text in spelled(KNOWN, options, "write").items() if text or name != "deadLetterTopic"
        }
        values = field_values(cls, given)
        parsed = cls(**values, connection=ConnectionOptions(**field_values(ConnectionOptions, given)))
        if not parsed.lookupd:
            of.LOOKUPD.parse("lookupd", "")
        dead_letters = parsed.dead_letter_topic
        if parsed.on_bad_row == DEAD_LETTER and not dead_letters:
            raise wrong("deadLetterTopic", "is missing: onBadRow=deadLetter needs a topic for bad rows")
        if parsed.on_bad_row != DEAD_LETTER and dead_letters:
            raise wrong("deadLetterTopic", "needs onBadRow=deadLetter")
        if dead_letters and dead_letters == parsed.topic:
            raise wrong("deadLetterTopic", "is the topic of the write: choose another one for bad rows")
        if parsed.trace_id_column in _POSITIONS:
            raise wrong(
                "traceIdColumn",
                f"{parsed.trace_id_column!r} is a position, which other rows have, too: use a column of "
                "nsq_ha.spark.functions.row_id()",
            )
        if parsed.write_id is not None and (not parsed.trace or parsed.trace_id_column is not None):
            raise wrong("writeId", "needs trace=true without 'traceIdColumn', whose ids do not depend on the write")
        return dataclasses.replace(parsed, trace=parsed.trace or parsed.trace_id_column is not None)


KNOWN: Final = table(ReadOptions, WriteOptions, ConnectionOptions)
"""Every option, by its name."""

_POSITIONS: Final = ("offset", "partition")
"""Columns that do not say what a row is."""

_PROTECTION: Final = {"tls": "tls", "authSecret": "auth_secret"}
"""Options whose protection ``fetch=bulk`` would go around, and their fields."""

_REPLAY_ONLY: Final = {
    *("assign", "bulkWithoutTls", "channelPrefix", "driverBytes", "fetch", "headersAs", "includeHeaders"),
    *(
        "metadataRefresh",
        "reportChannel",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
    ),
    *("startingTimestamp", "subscribePattern"),
}
