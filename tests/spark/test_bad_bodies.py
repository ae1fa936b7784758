"""Bodies that are no JSON are set apart as dead letters, with where they came from."""

import datetime
import json
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from nsq_ha.dead_letters import DeadLetter
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.spark.functions import decode_json, row_id, split_bad
from tests.spark.logs import Source

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WHEN: Final = datetime.datetime(2013, 1, 1, 5, 15, 0, 123_456, tzinfo=datetime.UTC)
ID: Final = (5 << 50 | 9).to_bytes(8, "big") + (2**64 - 7).to_bytes(8, "big")
SCHEMA: Final = "id bigint, carrier string"
BODIES: Final[list[bytes | None]] = [
    b'{"id": 1, "carrier": "UA", "more": true}',
    b'{"id": 2}',
    b"no JSON",
    b'{"id": "three", "carrier": "AA"}',
    b'{"carrier": "B6"}',
    b"[1]",
    '{"carrier": "\u00e4"'.encode(),
    b"",
    None,
    b"\xff\xfe",
]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    columns = "number int, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    return spark.createDataFrame(
        [(n, body, "flights", 5, n * 40, WHEN, ID, -7, 1) for n, body in enumerate(BODIES)],
        f"{columns} message_id binary, trace_id bigint, attempts smallint",
    )


def errors(frame: DataFrame) -> list[str | None]:
    return [row.error for row in frame.orderBy("number").collect()]


def letter(row: Row) -> DeadLetter:
    """Read a row as a consumer would read it after the sink published it."""
    headers = row.asDict().get("headers")
    ext = headers and json.dumps({name: text for name, text in headers.items() if text is not None}).encode()
    return DeadLetter.of(Message(bytes(16), bytes(row.value), 1, 1, Source(), 0, 40, ext))


def test_bodies_are_decoded_or_have_a_reason(rows: DataFrame) -> None:
    whole = decode_json(rows, SCHEMA, required=["id"])
    wrong = "the body is not a JSON object, or a field of id, carrier has another type"
    expected: list[str | None] = [None, None, wrong, wrong, "field id is missing or null", wrong, wrong, wrong]
    assert errors(whole) == [*expected, "there is no body", wrong]
    assert whole.schema["data"].dataType.simpleString() == "struct<id:bigint,carrier:string>"
    data = [row.data for row in whole.orderBy("number").collect()]
    assert [tuple(each) for each in data[:2]] == [(1, "UA"), (2, None)]
    assert data[2:] == [None] * 8


def test_a_filter_on_the_error_parses_no_body_again(rows: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    split_bad(decode_json(rows, SCHEMA, required=["id", "carrier"])).good.explain()
    assert capsys.readouterr().out.count("from_json(") == 1


def test_a_schema_may_be_a_struct_type_and_names_can_be_chosen(rows: DataFrame) -> None:
    schema = StructType([StructField("id", LongType()), StructField("carrier", StringType())])
    whole = decode_json(rows.withColumnRenamed("value", "body"), schema, column="body", into="flight", error="why")
    assert whole.columns[-2:] == ["flight", "why"]
    assert whole.where("why is null").count() == 3
    with pytest.raises(ConfigError, match=r"requires the field 'tail', which is not in the schema: id, carrier"):
        decode_json(rows, SCHEMA, required=["id", "tail"])


@pytest.mark.few(1)
@pytest.mark.parametrize("envelope", [False, True])
def test_bad_rows_become_dead_letters(rows: DataFrame, *, envelope: bool) -> None:
    named = rows.withColumn("row", row_id("number"))
    split = split_bad(decode_json(named, SCHEMA, required=["id"]), envelope=envelope, keep=["row"])
    assert sorted(row.number for row in split.good.collect()) == [0, 1]
    assert "error" not in split.good.columns
    assert split.bad.columns == ["key", "value", *["headers"] * (not envelope), "row"]
    found = split.bad.collect()
    assert {row.row for row in found} == {f'{{"number":{number}}}' for number in range(2, 10)}
    letters = [letter(row) for row in found]
    assert {bytes(row.key) for row in found} == {b"flights-5"}
    assert {each.body for each in letters} == {body or b"" for body in BODIES[2:]}
    origin = letters[0].provenance
    assert (origin.topic, origin.partition, origin.channel, origin.id, origin.attempts) == (
        "flights",
        5,
        "spark",
        ID,
        1,
    )
    assert origin.trace_id == 2**64 - 7
    assert origin.timestamp_ns == int(WHEN.timestamp()) * 10**9 + 123_456_000
    assert (origin.reason, origin.error_type) == ("failed", "BadRow")
    assert {str(each.provenance.error) for each in letters} > {"field id is missing or null", "there is no body"}
    assert abs((origin.given_up_at - datetime.datetime.now(datetime.UTC)).total_seconds()) < 600


def test_bad_rows_of_a_plain_nsqd_become_dead_letters(rows: DataFrame) -> None:
    plain = rows.where("number = 2").withColumns(
        {"partition": f.lit(None).cast("int"), "trace_id": f.lit(None).cast("bigint")}
    )
    (row,) = split_bad(decode_json(plain, SCHEMA)).bad.collect()
    origin = letter(row).provenance
    assert (origin.partition, origin.trace_id, origin.id) == (None, 0, ID)


def test_missing_columns_are_named(rows: DataFrame) -> None:
    whole: Any = decode_json(rows, SCHEMA)
    with pytest.raises(ConfigError, match=r"needs the column 'message_id' of format"):
        split_bad(whole.drop("message_id"))
    with pytest.raises(ConfigError, match=r"needs the column 'id'"):
        split_bad(whole, keep=["id"])
    with pytest.raises(ConfigError, match=r"needs the column 'why'"):
        split_bad(whole, error="why")
