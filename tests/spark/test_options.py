"""Options: read on the driver, refused there by name."""

import json
import logging

import pytest

from nsq_ha.errors import ConfigError
from nsq_ha.spark.options import KNOWN, ReadOptions, WriteOptions
from nsq_ha.spark.options.names import Mode
from nsq_ha.spark.options.values import EARLIEST, LATEST

LEAST = {"lookupd": "127.0.0.1:4161", "topic": "flights"}


def test_defaults() -> None:
    options = ReadOptions.parse(LEAST)
    assert options == ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",), fetch="bulk")
    assert (options.starting_offsets, options.ending_offsets) == ("earliest", "latest")
    assert (options.fetch_timeout, options.fetch_retries) == (5.0, 10)
    assert options.fail_on_data_loss
    assert not options.include_headers


def test_everything_at_once_and_in_any_case() -> None:
    options = ReadOptions.parse(
        {
            "LOOKUPD": "one:4161, two",
            "subscribe": "flights,orders",
            "startingoffsets": '{"flights": {"0": 240, "1": -2}}',
            "endingOffsets": '{"orders": {"3": -1}}',
            "fetchtimeout": "250ms",
            "fetchRetries": "0",
            "FailOnDataLoss": "FALSE",
            "includeHeaders": " true ",
        }
    )
    assert options.lookupd == ("http://one:4161", "http://two:4161")
    assert options.topics == ("flights", "orders")
    assert options.starting_offsets == {"flights": {0: 240, 1: EARLIEST}}
    assert options.ending_offsets == {"orders": {3: LATEST}}
    assert (options.fetch_timeout, options.fetch_retries) == (0.25, 0)
    assert not options.fail_on_data_loss
    assert options.include_headers


@pytest.mark.parametrize(
    ("mode", "name", "values"),
    [
        ("batch", "lookupd", ("", "ftp://host")),
        ("batch", "topic", ("a b", "flights,")),
        ("batch", "subscribe", ("orders",)),
        ("batch", "startingOffsets", ("latest", "nonsense", "[" * 100_000, '{"orders": {}}')),
        ("batch", "startingOffsets", ('{"flights": {"-1": 0}}', '{"flights": {"1024": 0}}', '{"flights": {"0": -1}}')),
        ("batch", "startingOffsets", ('{"flights": {"0": 1.5}}', '{"flights": {"0": 9223372036854775808}}')),
        ("batch", "endingOffsets", ("earliest", '{"flights": {"0": -2}}')),
        ("stream", "startingOffsets", ("newest",)),
        ("stream", "reportChannel", ("progress#ephemeral",)),
        ("batch", "startingTimestamp", ("yesterday", "9223372036854775807")),
        ("batch", "startingOffsetsByTimestamp", ('{"flights": {"0": -1}}', '{"orders": {"0": 1}}')),
        ("batch", "endingTimestamp", ("1.5",)),
        ("batch", "channel", ("no channel",)),
        ("batch", "channelPrefix", ("x" * 40,)),
        ("batch", "assign", ('{"flights": [0]}',)),
        ("write", "topic", ("a,b",)),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(mode: Mode, name: str, values: tuple[str, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"^option '{name}'"):
            parsed(mode, {**LEAST, name: value})


@pytest.mark.parametrize("missing", ["lookupd", "topic"])
def test_a_missing_option_is_asked_for_by_name(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^option '{missing}': is missing"):
        ReadOptions.parse({name: value for name, value in LEAST.items() if name != missing})


@pytest.mark.parametrize("mode", ["batch", "stream", "write"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("startingOfsets", "is unknown: did you mean 'startingOffsets'?"),
        ("startingoffset", "is unknown: did you mean 'startingOffsets'?"),
        ("maxOffsetPerTrigger", "is unknown: did you mean 'maxOffsetsPerTrigger'?"),
        ("lookup", "is unknown: did you mean 'lookupd'?"),
        ("zzz", "is unknown: format 'nsq' has no such option, remove it"),
        ("kafka.bootstrap.servers", "is unknown: format 'nsq' has no such option, remove it"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(mode: Mode, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(mode, {**LEAST, name: "latest"})
    assert str(caught.value) == f"option '{name}': {said}"


@pytest.mark.parametrize("mode", ["batch", "stream", "write"])
@pytest.mark.parametrize(
    "name",
    [
        *("path", "paths", "checkpointLocation", "queryName", "outputMode", "asyncProgressTrackingEnabled"),
        *("_asyncProgressTrackingOverrideSinkSupportCheck", "__v1_save_as_table_overwrite", "spark.sql.shuffle.x"),
    ],
)
def test_options_of_spark_itself_are_left_alone(mode: Mode, name: str, caplog: pytest.LogCaptureFixture) -> None:
    for each in (name, name.lower()):
        assert parsed(mode, {**LEAST, each: "x"}) == parsed(mode, LEAST)
    assert not caplog.records


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (1_795_460_000, "is 1970-01-21T18:44:20, and looks like seconds: give milliseconds, 1795460000000"),
        (1, "is 1970-01-01T00:00:00.001000, before any message: give milliseconds since 1970"),
        (99_999_999_999, "is 1973-03-03T09:46:39.999000, and looks like seconds: give milliseconds, 99999999999000"),
        (1_795_460_000_000_000, "looks like microseconds: give milliseconds, 1795460000000"),
        (1_795_460_000_000_000_000, "looks like nanoseconds: give milliseconds, 1795460000000"),
        (253_402_300_800_000, "looks like microseconds: give milliseconds, 253402300800"),
    ],
)
def test_a_time_in_another_unit_is_refused(milliseconds: int, said: str) -> None:
    for name in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(ConfigError) as caught:
            ReadOptions.parse({**LEAST, name: str(milliseconds)})
        assert str(caught.value) == f"option '{name}': {milliseconds} {said}"
    for name in ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError) as caught:
            ReadOptions.parse({**LEAST, name: f'{{"flights": {{"1": {milliseconds}}}}}'})
        assert str(caught.value) == f"option '{name}': of flights-1 {milliseconds} {said}"


def test_a_time_that_is_none_in_any_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"of flights-1 1000000000000000000000 is after the year 9999: give milli"):
        ReadOptions.parse({**LEAST, "startingOffsetsByTimestamp": f'{{"flights": {{"1": {10**21}}}}}'})


@pytest.mark.parametrize("milliseconds", [0, 100_000_000_000, 1_795_460_000_000, 253_402_300_799_999])
def test_a_time_that_can_be_is_taken(milliseconds: int) -> None:
    assert ReadOptions.parse({**LEAST, "startingTimestamp": str(milliseconds)}).starting_times == milliseconds


EXAMPLES = {
    "lookupd": "127.0.0.1:4161",
    "topic": "flights",
    "subscribe": "flights",
    "subscribePattern": "fl.*",
    "assign": '{"flights": [0, 2]}',
    "startingOffsets": "earliest",
    "startingTimestamp": "1767225600000",
    "startingOffsetsByTimestamp": '{"flights": {"0": 1767225600000}}',
    "startingOffsetsByTimestampStrategy": "error",
    "endingOffsets": "latest",
    "endingTimestamp": "1767225600000",
    "endingOffsetsByTimestamp": '{"flights": {"0": 1767225600000}}',
    "maxOffsetsPerTrigger": "1000",
    "maxBytesPerTrigger": "64m",
    "maxTimePerTrigger": "10m",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "1m",
    "minPartitions": "4",
    "maxRecordsPerPartition": "1000",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "headersAs": "array",
    "fetch": "subscribe",
    "bulkWithoutTls": "true",
    "fetchTimeout": "2s",
    "fetchRetries": "3",
    "metadataRefresh": "50ms",
    "driverBytes": "0",
    "channel": "registered",
    "channelPrefix": "mine-",
    "reportChannel": "progress",
    "rdy": "100",
    "msgTimeout": "30s",
    "outputBufferTimeout": "20ms",
    "maxFrameBytes": "32m",
    "compression": "snappy",
    "arrowBatchRows": "100",
    "delivery": "ack",
    "spool": "/tmp/spool",
    "maxSpoolBytes": "64m",
    "nsqd": "127.0.0.1:4150",
    "partitioner": "murmur3",
    "batchMessages": "10",
    "batchBytes": "64k",
    "maxMessageBytes": "5000000",
    "trace": "true",
    "traceIdColumn": "number",
    "writeId": "daily",
    "publishTimeout": "5s",
    "onBadRow": "drop",
    "deadLetterTopic": "dead",
    "authSecret": "secret",
    "tls": "true",
    "tlsCaFile": "ca.pem",
    "tlsCertFile": "cert.pem",
    "tlsKeyFile": "key.pem",
    "tlsVerify": "false",
    "tlsServerName": "nsqd",
    "tlsKeyPassword": "hush",
    "tlsMinimumVersion": "1.3",
}
ACK = {"delivery": "ack", "channel": "c", "spool": "/tmp/x"}
# What an option cannot be without.
COMPANIONS = {
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "1767225600000"},
    "deadLetterTopic": {"onBadRow": "deadLetter"},
    "writeId": {"trace": "true"},
    "headersAs": {"includeHeaders": "true"},
    "delivery": {"spool": "/tmp/spool", "channel": "registered"},
    "nsqd": {"delivery": "ack", "spool": "/tmp/spool", "channel": "registered"},
    "spool": {"delivery": "ack", "channel": "registered"},
    "maxSpoolBytes": {"delivery": "ack", "spool": "/tmp/spool", "channel": "registered"},
    **{name: {"tls": "true"} for name in EXAMPLES if name.startswith("tls") and name != "tls"},
    "tlsKeyFile": {"tls": "true", "tlsCertFile": "cert.pem"},
    "tlsKeyPassword": {"tls": "true", "tlsCertFile": "cert.pem"},
}


def parsed(mode: Mode, given: dict[str, str]) -> ReadOptions | WriteOptions:
    return WriteOptions.parse(given) if mode == "write" else ReadOptions.parse(given, mode)


@pytest.mark.parametrize("name", KNOWN)
def test_every_option_is_taken_where_it_applies_and_named_where_not(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    modes: tuple[Mode, ...] = ("batch", "stream", "write")
    for mode in modes:
        least = {} if name in ("subscribePattern", "assign") and mode != "write" else {"topic": "flights"}
        lookupd = {} if name == "nsqd" and mode == "stream" else {"lookupd": "127.0.0.1:4161"}
        given = {**lookupd, **least, **COMPANIONS.get(name, {}), name: EXAMPLES[name]}
        caplog.clear()
        if mode == "stream" and name.startswith("ending"):
            with pytest.raises(ConfigError, match=f"^option '{name}': a stream has no end"):
                parsed(mode, given)
            continue
        taken = parsed(mode, given)
        said = [record.getMessage() for record in caplog.records]
        applies = mode in KNOWN[name].modes
        assert any(repr(name) in each for each in said) is not applies
        plain = {**given}
        del plain[name]
        if applies and name not in ("lookupd", "topic", "subscribe", "startingOffsets", "endingOffsets", *COMPANIONS):
            plain |= {} if least or mode == "write" else {"topic": "other"}
            assert taken != parsed(mode, plain), "it changes something"


@pytest.mark.parametrize(
    ("mode", "name", "value", "problem"),
    [
        ("batch", "rdy", "0", "must be a whole number, 1..1000000, not '0'"),
        ("batch", "fetchTimeout", "soon", "must be 0.05..600 seconds, such as 5s or 500ms, not 'soon'"),
        (
            "stream",
            "driverBytes",
            "1g",
            "must be a whole number of bytes, 0..16777216, such as 1000000, 512k or 64m, not '1g'",
        ),
        ("batch", "compression", "{zip}", "must be 'none', 'snappy' or 'deflate', not '{zip}'"),
        ("batch", "startingOffsets", "latest", "cannot be latest (-1) in a batch read, which would have no rows"),
        ("batch", "tlsCaFile", "ca.pem", "needs tls=true"),
        ("batch", "authSecret", "", "must not be empty: leave it out for servers that do not ask for AUTH"),
        ("write", "authSecret", "ß" * 40_000, "must have at most 65536 bytes, not 80000"),
        ("write", "deadLetterTopic", "bad", "needs onBadRow=deadLetter"),
    ],
)
def test_an_error_says_what_a_value_must_be(mode: Mode, name: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(mode, {**LEAST, name: value})
    assert str(caught.value) == f"option '{name}': {problem}"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tlsKeyFile": "key.pem"}, "'tlsKeyFile': needs tlsCertFile, the client certificate that the key belongs to"),
        ({"tlsCertFile": ""}, "'tlsCertFile': must not be empty: leave it out for no file"),
        ({"tlsServerName": "http://h"}, "'tlsServerName': 'http://h' is not valid"),
    ],
)
def test_errors_about_tls_have_the_names_of_the_options(given: dict[str, str], error: str) -> None:
    """They used to name the Python client's, such as key_file."""
    with pytest.raises(ConfigError, match=f"^option {error}"):
        ReadOptions.parse({**LEAST, "tls": "true", **given})


@pytest.mark.parametrize(
    "value", ["[]", "{}", '{"flights": []}', '{"flights": [-1]}', '{"flights": [true]}', '{"a b": [0]}']
)
def test_a_bad_assignment_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^option 'assign'"):
        ReadOptions.parse({"lookupd": "127.0.0.1:4161", "assign": value})


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"subscribePattern": "x"}, "subscribePattern"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "error"}, "startingOffsetsByTimestampStrategy"),
        ({"headersAs": "array"}, "headersAs"),
        ({"channel": "c", "minPartitions": "3"}, "minPartitions"),
        ({"channel": "c", "maxRecordsPerPartition": "3"}, "maxRecordsPerPartition"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger"),
        ({"delivery": "ack", "channel": "c"}, "spool"),
        ({"delivery": "ack", "spool": "/tmp/x"}, "channel"),
        ({"nsqd": "127.0.0.1:4150"}, "nsqd"),
        ({"nsqd": "localhost", "delivery": "ack"}, "nsqd"),
        ({"spool": "/tmp/x"}, "spool"),
        ({"maxSpoolBytes": "1g"}, "maxSpoolBytes"),
        ({**ACK, "nsqd": "127.0.0.1:4150"}, "nsqd"),
        ({**ACK, "spool": "relative"}, "spool"),
        ({**ACK, "spool": "s3://bucket/x"}, "spool"),
        ({**ACK, "maxSpoolBytes": "1k"}, "maxSpoolBytes"),
        ({**ACK, "startingOffsets": "earliest"}, "startingOffsets"),
        ({**ACK, "includeHeaders": "true"}, "includeHeaders"),
        ({**ACK, "reportChannel": "c"}, "reportChannel"),
        ({**ACK, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^option '{name}'"):
        ReadOptions.parse({**LEAST, **more}, "stream")


def test_ack_takes_its_servers_and_folder_in_either_form() -> None:
    plain = {"topic": "t", "channel": "c", "delivery": "ack"}
    given = ReadOptions.parse({**plain, "nsqd": "a:4150, [::1]:4150", "spool": "file:///var/spool/x"}, "stream")
    assert (given.lookupd, given.nsqd, given.spool) == ((), ("a:4150", "[::1]:4150"), "/var/spool/x")
    cut = ReadOptions.parse({**LEAST, **ACK, "minPartitions": "4", "maxRecordsPerPartition": "10"}, "stream")
    assert (cut.min_partitions, cut.max_records_per_partition, cut.channel) == (4, 10, "c")


@pytest.mark.parametrize("pattern", ["(", "(" * 5000, "a{99999999999}", "/[["])
def test_a_pattern_must_be_one(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"^option 'subscribePattern': is not a regular expression"):
        ReadOptions.parse({"lookupd": "127.0.0.1:4161", "subscribePattern": pattern})


@pytest.mark.parametrize("number", ["0000099999", "0" * 5000, "00000" + "1" * 5000])
def test_zeros_hide_no_number_of_a_partition(number: str) -> None:
    with pytest.raises(ConfigError, match=r"^option 'startingOffsets': of topic 't' has partition '0000"):
        ReadOptions.parse({**LEAST, "startingOffsets": json.dumps({"t": {number: 5}})})


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(ReadOptions.parse({**LEAST, "authSecret": "hidden"}))


def test_what_is_neither_a_word_nor_json_is_shown_with_what_it_must_be() -> None:
    with pytest.raises(ConfigError) as found:
        ReadOptions.parse({"lookupd": "127.0.0.1:4161", "topic": "orders", "startingOffsets": "earlist"})
    assert "'startingOffsets': must be 'earliest' or 'latest' or JSON such as" in str(found.value)
    assert str(found.value).endswith(", not 'earlist'")
    assert "char 0" not in str(found.value)
    with pytest.raises(ConfigError, match=r"^option 'assign': is not JSON: Expecting property name") as found:
        ReadOptions.parse({"lookupd": "127.0.0.1:4161", "assign": "{" * 1000})
    assert len(str(found.value)) < 300


# ---------------------------------------------------------------- fetch


@pytest.mark.parametrize("protection", [{"authSecret": "hush"}, {"tls": "true"}])
def test_bulk_reads_go_around_protection_only_if_that_is_said(protection: dict[str, str]) -> None:
    given = {**LEAST, **protection, "fetch": "Bulk"}
    with pytest.raises(
        ConfigError, match=f"^option 'fetch': bulk .* {next(iter(protection))!r} is set.* fetch=subscribe"
    ):
        ReadOptions.parse(given)
    assert ReadOptions.parse({**given, "bulkWithoutTls": "true"}).fetch == "bulk"
    for fetch in ({}, {"fetch": "auto"}, {"fetch": "subscribe"}):
        assert ReadOptions.parse({**LEAST, **protection, **fetch}).fetch == "subscribe"


def test_a_read_copies_unless_it_is_protected_or_has_a_channel(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nsq_ha.spark"):
        assert ReadOptions.parse(LEAST).fetch == "bulk"
        assert ReadOptions.parse({**LEAST, "tls": "true", "bulkWithoutTls": "true"}).fetch == "bulk"
        assert not caplog.messages
        assert ReadOptions.parse({**LEAST, "channel": "mine"}).fetch == "subscribe"
        assert ReadOptions.parse({**LEAST, "tls": "true"}).fetch == "subscribe"
    advice = "'flights': reading by subscription; where Spark may reach the --rpc-port of the nsqds, fetch=bulk"
    assert caplog.messages == [f"{advice}{more} is faster" for more in ("", " with bulkWithoutTls=true")]


@pytest.mark.parametrize("name", ["fetch", "bulkWithoutTls"])
def test_servers_without_offsets_have_no_bulk_reads(name: str) -> None:
    value = {"fetch": "bulk", "bulkWithoutTls": "true"}[name]
    with pytest.raises(ConfigError, match=f"^option '{name}': cannot be combined with delivery=ack"):
        ReadOptions.parse({**LEAST, **ACK, name: value}, "stream")
