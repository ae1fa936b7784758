"""Options of ``format("nsq")``: their names, meanings and checks.

Owns the words that a user writes into ``.option(...)``; Kafka's where the
meaning is the same. Does not own what is on the servers: whether a partition
exists or an offset is still kept is the planner's to say.

The invariant: everything is checked on the driver, before any task starts, and
an error names the option.

**Source:** Spark reference 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nsq_ha.addresses import nsqd_addresses
from nsq_ha.config import Compression, TlsConfig
from nsq_ha.names import EPHEMERAL_SUFFIX, check_channel, check_topic
from nsq_ha.redaction import conceal
from nsq_ha.spark import values
from nsq_ha.spark.values import DEAD_LETTER, EARLIEST, FAIL, LATEST, WAYS, ByPartition, OffsetBound, Texts, wrong
from nsq_ha.spark.words import KNOWN, OF_REPLAY, Mode, spelled

__all__ = [
    "DEAD_LETTER",
    "EARLIEST",
    "FAIL",
    "KNOWN",
    "LATEST",
    "Access",
    "ByPartition",
    "OffsetBound",
    "ReadOptions",
    "WriteOptions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the nsqds are talked to.

    Attributes:
        auth_secret: None where no AUTH is asked for.
        tls: None for plain TCP.
        compression: Of the connection; none where the server does not offer it.
        msg_timeout: Seconds; None for the server's default.
        output_buffer_timeout: Seconds that the server may gather.
    """

    auth_secret: str | None = field(default=None, repr=False)
    tls: TlsConfig | None = None
    compression: Compression = Compression.NONE
    msg_timeout: float | None = None
    # The server raises 1..9 ms to 10; the last part of a range waits that long.
    output_buffer_timeout: float = 0.01

    def __post_init__(self) -> None:
        """Let no error show the secret."""
        conceal(self.auth_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked.

    Attributes:
        lookupd: Base URLs of nsqlookupds.
        topics: What to read; none when a pattern says.
        pattern: Regular expression of topics. None when they are named.
        assign: Partitions by topic. None for all.
        starting: Where to start; a partition that is not named begins at its earliest.
        starting_times: Milliseconds: for all, or by topic and partition. None when offsets say.
        ending: Where to end; a partition that is not named ends at its latest.
        ending_times: As ``starting_times``.
        max_offsets: Messages of a micro-batch. None for any.
        max_bytes: Bytes of a micro-batch. None for any.
        min_offsets: Messages to wait for. None for none.
        max_delay: Seconds of that waiting.
        min_partitions: Tasks at least. None for one a partition.
        max_records: Messages of one task. None for any.
        fetch_timeout: Seconds without progress after which a task opens another channel.
        fetch_retries: How often in a row it does that before it fails.
        metadata_refresh: Seconds that a survey of the partitions stays good.
        driver_bytes: A micro-batch of up to so many bytes is read where it is planned. 0 for none.
        fail_on_data_loss: Whether missing messages are an error.
        include_headers: Whether there is a column of extension headers.
        channel: Registered channel to read through. None for throw-away ones.
        channel_prefix: Of the throw-away ones.
        report_channel: Durable channel that shows progress. None for none.
        ready: Most messages under way in a task.
        batch_rows: Rows of an Arrow batch.
        pushdown: Whether filters narrow the ranges.
        delivery: ``replay``, or ``ack`` for servers without offsets.
        spool: Folder of the files of ``ack``.
        spool_bytes: Bytes that may wait there for Spark.
        nsqd: Addresses of plain nsqds, for ``ack``.
        access: How the nsqds are talked to.
    """

    lookupd: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    starting: OffsetBound = "earliest"
    starting_times: int | ByPartition | None = None
    ending: OffsetBound = "latest"
    ending_times: int | ByPartition | None = None
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay: float = 900.0
    min_partitions: int | None = None
    max_records: int | None = None
    fetch_timeout: float = 5.0
    fetch_retries: int = 10
    metadata_refresh: float = 0.1
    driver_bytes: int = 64 * 1024
    fail_on_data_loss: bool = True
    include_headers: bool = False
    channel: str | None = None
    channel_prefix: str = "spark-"
    report_channel: str | None = None
    ready: int = 2500
    batch_rows: int = 8192
    pushdown: bool = False
    delivery: str = "replay"
    spool: str | None = None
    spool_bytes: int = 1024**3
    nsqd: tuple[str, ...] = ()
    access: Access = Access()

    @property
    def patience(self) -> float:
        """Seconds without any progress before a task, or the plan, fails."""
        return self.fetch_timeout * (self.fetch_retries + 1)

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Literal["batch", "stream"] = "batch") -> ReadOptions:
        """Read the options of a Spark user; names in any case, values as text.

        An unknown name, and one without a meaning in ``mode``, is warned about
        on the logger ``nsq_ha.spark`` and ignored, since Spark passes options of
        its own through here.

        Raises:
            ConfigError: A value is wrong or a needed one is missing; the
                message begins with the option's name.
        """
        given = spelled(options, mode)
        topics, pattern, assign = _subject(given)
        starting, starting_times = _starting(given, mode)
        ending, ending_times = _ending(given)
        parsed = cls(
            lookupd=() if given.get("nsqd") else values.lookupd(given),
            topics=topics,
            pattern=pattern,
            assign=assign,
            starting=starting,
            starting_times=starting_times,
            ending=ending,
            ending_times=ending_times,
            max_offsets=values.count(given, "maxOffsetsPerTrigger", None, 1, 2**63 - 1),
            max_bytes=values.size(given, "maxBytesPerTrigger", None),
            min_offsets=values.count(given, "minOffsetsPerTrigger", None, 1, 2**63 - 1),
            max_delay=values.duration(given, "maxTriggerDelay", 900.0, 0.0, 86400.0),
            min_partitions=values.count(given, "minPartitions", None, 1, 100_000),
            max_records=values.count(given, "maxRecordsPerPartition", None, 1, 2**63 - 1),
            fetch_timeout=values.duration(given, "fetchTimeout", 5.0),
            fetch_retries=values.count(given, "fetchRetries", 10),
            metadata_refresh=values.duration(given, "metadataRefresh", 0.1, 0.0, 600.0),
            driver_bytes=values.size(given, "driverBytes", 64 * 1024, 0, 16 * 1024 * 1024),
            fail_on_data_loss=values.flag(given, "failOnDataLoss", default=True),
            include_headers=values.flag(given, "includeHeaders", default=False),
            channel=_channel(given, "channel"),
            channel_prefix=_prefix(given),
            report_channel=_channel(given, "reportChannel"),
            ready=values.count(given, "rdy", 2500, 1, 2500),
            batch_rows=values.count(given, "arrowBatchRows", 8192, 1, 1_000_000),
            pushdown=values.flag(given, "pushdown", default=False),
            delivery=values.word(given, "delivery", ("replay", "ack"), "replay"),
            spool=_spool(given),
            spool_bytes=values.size(given, "maxSpoolBytes", 1024**3, 1024**2),
            nsqd=values.checked("nsqd", nsqd_addresses, given["nsqd"]) if given.get("nsqd") else (),
            access=_access(given),
        )
        parsed._agree(given, mode)
        return parsed

    def _agree(self, given: Texts, mode: Mode) -> None:
        """Check what options must be to each other."""
        self._name_topics()
        if self.delivery == "ack" and mode == "stream":
            self._agree_ack(given)
            return
        if told := sorted({"nsqd", "spool", "maxSpoolBytes"} & set(given)):
            raise wrong(told[0], "is for delivery=ack only: offsets need the cluster, and so 'lookupd'")
        if self.channel is not None and (self.min_partitions or self.max_records):
            name = "minPartitions" if self.min_partitions else "maxRecordsPerPartition"
            raise wrong(name, "cannot cut what is read through one 'channel', which serves one reader at a time")
        self._limits_agree()

    def _agree_ack(self, given: Texts) -> None:
        """Check what ``delivery=ack`` needs, and that nothing is asked for that only offsets can give."""
        for name, told in (("spool", self.spool), ("channel", self.channel)):
            if not told:
                raise wrong(name, "is missing: delivery=ack needs it")
        if self.nsqd and "lookupd" in given:
            raise wrong("nsqd", "cannot be together with 'lookupd': either names the servers")
        if useless := sorted(OF_REPLAY & set(given)):
            raise wrong(
                useless[0], "has no meaning with delivery=ack: there are no offsets, the channel knows what is unread"
            )
        self._limits_agree()

    def _limits_agree(self) -> None:
        if self.min_offsets and self.max_offsets and self.min_offsets > self.max_offsets:
            raise wrong("minOffsetsPerTrigger", "is more than 'maxOffsetsPerTrigger': no batch could have so many")

    def _name_topics(self) -> None:
        if self.topics:
            places = {"startingOffsets": self.starting, "endingOffsets": self.ending}
            times = {"startingOffsetsByTimestamp": self.starting_times, "endingOffsetsByTimestamp": self.ending_times}
            for name, told in {**places, **times}.items():
                for topic in told if isinstance(told, Mapping) else ():
                    if topic not in self.topics:
                        raise wrong(name, f"names topic {topic!r}, which is not read ({', '.join(self.topics)})")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write, checked.

    Attributes:
        lookupd: Base URLs of nsqlookupds.
        topic: Where to. None when a column says.
        partitioner: ``column``, ``murmur3``, ``javahash`` or ``roundrobin``.
        batch_messages: Most messages of one MPUB.
        batch_bytes: Most bytes of one MPUB.
        trace: Publish with trace ids.
        trace_column: Column that holds them. None to make them.
        publish_timeout: Seconds for one MPUB with all retries.
        on_bad_row: ``fail``, ``drop`` or ``deadLetter``: for rows that cannot be published.
        dead_letters: The topic of ``deadLetter``; None otherwise.
        access: How the nsqds are talked to.
    """

    lookupd: tuple[str, ...]
    topic: str | None = None
    partitioner: str = "column"
    batch_messages: int = 1000
    batch_bytes: int = 1024 * 1024
    trace: bool = False
    trace_column: str | None = None
    publish_timeout: float = 60.0
    on_bad_row: str = FAIL
    dead_letters: str | None = None
    access: Access = Access()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a Spark user, as :meth:`ReadOptions.parse` does.

        Raises:
            ConfigError: As there.
        """
        given = spelled(options, "write")
        topic = values.topics("topic", given["topic"]) if "topic" in given else (None,)
        if len(topic) > 1:
            raise wrong("topic", "names several: write to one, or give the DataFrame a column 'topic'")
        column = given.get("traceIdColumn")
        return cls(
            lookupd=values.lookupd(given),
            topic=topic[0],
            partitioner=values.word(given, "partitioner", ("column", "murmur3", "javahash", "roundrobin"), "column"),
            batch_messages=values.count(given, "batchMessages", 1000, 1, 100_000),
            batch_bytes=values.size(given, "batchBytes", 1024 * 1024, 1024, 5 * 1024 * 1024 - 4096),
            trace=values.flag(given, "trace", default=False) or column is not None,
            trace_column=column,
            publish_timeout=values.duration(given, "publishTimeout", 60.0),
            on_bad_row=values.word(given, "onBadRow", WAYS, FAIL),
            dead_letters=_dead_letters(given),
            access=_access(given),
        )


def _dead_letters(given: Texts) -> str | None:
    """Return the dead-letter topic; only ``onBadRow=deadLetter`` needs and allows one."""
    told = given.get("deadLetterTopic")
    is_asked = values.word(given, "onBadRow", WAYS, FAIL) == DEAD_LETTER
    if is_asked and not told:
        raise wrong("deadLetterTopic", "is missing: onBadRow=deadLetter needs the topic for such rows")
    if not told:
        return None
    if not is_asked:
        raise wrong("deadLetterTopic", "has no meaning without onBadRow=deadLetter")
    if told == given.get("topic"):
        raise wrong("deadLetterTopic", "is the topic that is written to; dead letters need another one")
    values.checked("deadLetterTopic", check_topic, told)
    return told


def _subject(given: Texts) -> tuple[tuple[str, ...], str | None, Mapping[str, tuple[int, ...]] | None]:
    """Return topics, pattern and partitions; exactly one option says what to read."""
    if "topic" in given and given.get("subscribe", given["topic"]) != given["topic"]:
        raise wrong("subscribe", "means the same as 'topic', and they differ")
    named = "topic" if "topic" in given else "subscribe"
    told = [name for name in (named, "subscribePattern", "assign") if name in given]
    if len(told) > 1:
        raise wrong(told[1], f"cannot be together with {told[0]!r}: one of them says what to read")
    if "assign" in given:
        assign = values.assigned(given) or {}
        return tuple(assign), None, assign
    if pattern := given.get("subscribePattern"):
        try:
            re.compile(pattern)
        except re.error as error:
            raise wrong("subscribePattern", f"is no regular expression: {error}") from error
        return (), pattern, None
    if not given.get(named):
        raise wrong("topic", "is missing: the topic to read, or several separated by commas")
    return values.topics(named, given[named]), None, None


def _starting(given: Texts, mode: Mode) -> tuple[OffsetBound, int | ByPartition | None]:
    words = ("earliest", "latest") if mode == "stream" else ("earliest",)
    specials = (EARLIEST, LATEST) if mode == "stream" else (EARLIEST,)
    default = "latest" if mode == "stream" else "earliest"
    _alone(given, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    times = values.times(given, "startingOffsetsByTimestamp")
    one = values.milliseconds(given, "startingTimestamp")
    return values.place(given, "startingOffsets", words, specials, default), one if times is None else times


def _ending(given: Texts) -> tuple[OffsetBound, int | ByPartition | None]:
    _alone(given, "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    times = values.times(given, "endingOffsetsByTimestamp")
    one = values.milliseconds(given, "endingTimestamp")
    return values.place(given, "endingOffsets", ("latest",), (LATEST,), "latest"), one if times is None else times


def _alone(given: Texts, *names: str) -> None:
    told = [name for name in names if name in given]
    if len(told) > 1:
        raise wrong(told[1], f"cannot be together with {told[0]!r}")


def _channel(given: Texts, name: str) -> str | None:
    channel = given.get(name)
    if channel is None:
        return None
    values.checked(name, check_channel, channel)
    if channel.endswith(EPHEMERAL_SUFFIX):
        raise wrong(name, f"is {channel!r}: a durable channel is needed")
    return channel


def _spool(given: Texts) -> str | None:
    told = given.get("spool")
    if not told:
        return None
    path = told.removeprefix("file://")
    if "://" in path or not path.startswith("/"):
        raise wrong("spool", f"is {told!r}: an absolute path of a folder that driver and workers see as files")
    return path


def _prefix(given: Texts) -> str:
    prefix = given.get("channelPrefix", "spark-")
    if not prefix or len(prefix) > 32:
        raise wrong("channelPrefix", f"is {prefix!r}: 1 to 32 characters")
    values.checked("channelPrefix", check_channel, prefix)
    return prefix


def _access(given: Texts) -> Access:
    files = {"tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsServerName", "tlsVerify"} & set(given)
    tls = None
    if values.flag(given, "tls", default=False):
        tls = TlsConfig(
            ca_file=given.get("tlsCaFile"),
            cert_file=given.get("tlsCertFile"),
            key_file=given.get("tlsKeyFile"),
            verify=values.flag(given, "tlsVerify", default=True),
            server_name=given.get("tlsServerName"),
        )
    elif files:
        raise wrong(min(files), "is of no use without 'tls'")
    return Access(
        auth_secret=given.get("authSecret"),
        tls=tls,
        compression=Compression(values.word(given, "compression", ("none", "snappy", "deflate"), "none")),
        msg_timeout=values.duration(given, "msgTimeout", None, 1.0, 900.0),
        output_buffer_timeout=values.duration(given, "outputBufferTimeout", 0.01, 0.001, 1.0),
    )
