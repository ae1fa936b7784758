"""The words of ``format("nsq")``: every option, where it applies and what it means.

Owns the table that options are checked against and the documentation is made
from. Does not read values (``values``, ``options``).

**Source:** Spark reference 5.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from nsq_ha.spark.values import wrong

log: Final = logging.getLogger("nsq_ha.spark")

Mode = Literal["batch", "stream", "write"]
"""What a set of options is for."""


class _Option(NamedTuple):
    where: str  # b: batch read, s: stream read, w: write
    default: str
    meaning: str


_TABLE: Final[Mapping[str, _Option]] = MappingProxyType(
    {
        "lookupd": _Option("bsw", "", "addresses of nsqlookupds, comma separated"),
        "topic": _Option("bsw", "", "topics, comma separated; one to write to, or a column of that name"),
        "subscribe": _Option("bs", "", "the same under Kafka's name"),
        "subscribePattern": _Option("bs", "", "regular expression (Python's) that a topic's whole name matches"),
        "assign": _Option("bs", "", 'only these partitions, JSON as in {"orders": [0, 2]}'),
        "startingOffsets": _Option(
            "bs",
            "earliest in a batch, latest in a stream",
            'or JSON as in {"orders": {"0": 0}}; -2, -1',
        ),
        "startingTimestamp": _Option("bs", "", "the first message not older, milliseconds since the epoch"),
        "startingOffsetsByTimestamp": _Option(
            "bs", "", 'the same by partition, JSON as in {"orders": {"0": 1767225600000}}'
        ),
        "endingOffsets": _Option("b", "latest", "or JSON; -1 is latest"),
        "endingTimestamp": _Option("b", "", "up to the first message not older, milliseconds since the epoch"),
        "endingOffsetsByTimestamp": _Option("b", "", "the same by partition, JSON"),
        "maxOffsetsPerTrigger": _Option("s", "", "most messages of one micro-batch, shared by backlog"),
        "maxBytesPerTrigger": _Option("s", "", "most bytes of the log in one micro-batch, as in 64m"),
        "minOffsetsPerTrigger": _Option("s", "", "wait for so many messages"),
        "maxTriggerDelay": _Option("s", "15m", "but no longer than this"),
        "minPartitions": _Option("bs", "one a partition", "at least so many tasks; large ranges are cut"),
        "maxRecordsPerPartition": _Option("bs", "", "most messages of one task"),
        "failOnDataLoss": _Option("bs", "true", "fail when messages of the range are gone; false reads what is left"),
        "includeHeaders": _Option("bs", "false", "add the column headers"),
        "fetchTimeout": _Option("bs", "5s", "without progress for so long a task opens its channel anew"),
        "fetchRetries": _Option("bs", "10", "how often in a row before the read fails; planning waits as long"),
        "metadataRefresh": _Option("s", "100ms", "how long the ends of the partitions are taken for true"),
        "driverBytes": _Option(
            "s",
            "64k",
            "a micro-batch of at most so many bytes of the log is read by the driver, without tasks in Python",
        ),
        "channel": _Option(
            "bs",
            "",
            "a registered channel, for topics that take no other; one reader at a time. With delivery=ack what is read",
        ),
        "channelPrefix": _Option("bs", "spark-", "how the names of the throw-away channels begin"),
        "reportChannel": _Option("s", "", "a durable channel that is set to what Spark has done, for NSQ's own tools"),
        "rdy": _Option("bs", "2500", "most messages under way in one task"),
        "msgTimeout": _Option("bs", "60s", "of the task's channel"),
        "outputBufferTimeout": _Option("bs", "10ms", "how long the server gathers before it sends"),
        "compression": _Option("bsw", "none", "snappy or deflate, between Spark and the nsqds"),
        "arrowBatchRows": _Option("bs", "8192", "rows of one Arrow batch"),
        "pushdown": _Option(
            "b",
            "false",
            "use filters on topic, partition, offset and timestamp to read less; needs the setting "
            "spark.sql.python.filterPushdown.enabled=true",
        ),
        "delivery": _Option("s", "replay", "ack: for servers without offsets, at least once, through spool files"),
        "spool": _Option("s", "", "of delivery=ack: a folder for this query alone, on storage that all workers share"),
        "maxSpoolBytes": _Option("s", "1g", "of delivery=ack: most bytes that wait there for Spark, before it pauses"),
        "nsqd": _Option("s", "", "host:port of plain nsqds, in the place of lookupd, with delivery=ack"),
        "partitioner": _Option(
            "w", "column", "column (partition, else murmur3 of key, else in turn), murmur3, javahash, roundrobin"
        ),
        "batchMessages": _Option("w", "1000", "most messages of one MPUB"),
        "batchBytes": _Option("w", "1m", "most bytes of one MPUB"),
        "trace": _Option("w", "false", "publish with a trace id that is the same when a task runs again"),
        "traceIdColumn": _Option("w", "", "column with the trace id, in the place of one that is made"),
        "onBadRow": _Option(
            "w",
            "fail",
            "what to do with a row that cannot be published (empty, too large, without a place): fail, drop (and count "
            "it in the log), deadLetter",
        ),
        "deadLetterTopic": _Option("w", "", "with onBadRow=deadLetter: the topic for bad rows, as JSON"),
        "publishTimeout": _Option("w", "60s", "limit for one MPUB with its retries; an election takes 22 s"),
        "authSecret": _Option("bsw", "", "for servers that ask for AUTH"),
        "tls": _Option("bsw", "false", "talk to the nsqds over TLS"),
        "tlsCaFile": _Option("bsw", "the system's", "PEM file of the authorities to trust, on each machine"),
        "tlsCertFile": _Option("bsw", "", "PEM file of a client certificate"),
        "tlsKeyFile": _Option("bsw", "", "PEM file of its key"),
        "tlsVerify": _Option("bsw", "true", "false takes any certificate: only for tests"),
        "tlsServerName": _Option("bsw", "the address", "name to expect in the certificate"),
    }
)

OF_REPLAY: Final = frozenset(
    (
        "assign",
        "channelPrefix",
        "driverBytes",
        "includeHeaders",
        "metadataRefresh",
        "reportChannel",
        "startingOffsets",
        "startingOffsetsByTimestamp",
        "startingTimestamp",
        "subscribePattern",
    )
)
"""Options of a stream that only a server with offsets can fulfil."""

_SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "queryname"))
_WHERE: Final[Mapping[Mode, str]] = {"batch": "b", "stream": "s", "write": "w"}
_MODES: Final = {"b": "batch read", "s": "stream read", "w": "write"}
_SPELLING: Final = {name.lower(): name for name in _TABLE}


def _described(option: _Option) -> str:
    where = "always" if option.where == "bsw" else ", ".join(_MODES[letter] for letter in option.where)
    default = f"; default {option.default}" if option.default else ""
    return f"{option.meaning} ({where}{default})"


KNOWN: Final[Mapping[str, str]] = MappingProxyType({name: _described(option) for name, option in _TABLE.items()})
"""Every option with its meaning, where it applies and its default."""


def spelled(options: Mapping[str, str], mode: Mode) -> dict[str, str]:
    """Return the options that ``mode`` has, by their proper names and stripped; warn about others by name.

    Raises:
        ConfigError: A stream is given an end.
    """
    given: dict[str, str] = {}
    for name, value in options.items():
        known = _SPELLING.get(name.lower())
        if name.lower() in _SPARKS_OWN:
            continue
        if known is None:
            near = difflib.get_close_matches(name.lower(), _SPELLING, n=1)
            hint = f"; did you mean {_SPELLING[near[0]]!r}?" if near else ""
            log.warning("option %r of format 'nsq' is unknown and ignored%s", name, hint)
        elif _WHERE[mode] in _TABLE[known].where:
            given[known] = value.strip()
        elif mode == "stream" and known.startswith("ending"):
            raise wrong(known, "a stream has no end: use spark.read, or the trigger availableNow")
        else:
            log.warning("option %r of format 'nsq' has no meaning in a %s and is ignored", known, _MODES[_WHERE[mode]])
    return given
