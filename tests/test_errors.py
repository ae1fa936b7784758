"""The error tree, and the table of the server's codes held against the recorded ones."""

from typing import Any

import pytest

from nsq_ha.errors import (
    SERVER_ERRORS,
    ChangeIncompleteError,
    ConfigError,
    ConnectError,
    LookupUnavailableError,
    OverloadedError,
    PublishError,
    ResponseTimeoutError,
    ServerError,
    TlsRequiredError,
    server_error,
)
from tests.golden import TCP_FILES, conversations, load

CODES: list[dict[str, Any]] = load("error_codes")["codes"]


def test_an_error_of_many_partitions_names_few() -> None:
    error = ChangeIncompleteError("pausing", tuple((f"partition {n}", "no leader") for n in range(1024)), ("a",) * 1024)
    assert "partition 15: no leader; and 1008 more; done: a, a, " in str(error)
    assert len(str(error)) < 1000
    assert len(error.causes) == len(error.done) == 1024


def test_every_code_of_the_server_has_a_row() -> None:
    assert set(SERVER_ERRORS) == {row["code"] for row in CODES}


@pytest.mark.parametrize("row", CODES, ids=lambda row: str(row["code"]))
def test_a_code_means_what_the_server_means(row: dict[str, Any]) -> None:
    error = server_error(row["code"].encode() + b" why")
    assert type(error) is not ServerError
    assert (error.code, error.detail) == (row["code"], "why")
    assert (error.retriable, error.stale_leader) == (row["retriable"], row["stale_leader"])


def test_every_recorded_error_frame_has_a_class() -> None:
    frames = [
        step.data[8:]
        for conversation in conversations(*TCP_FILES)
        for step in conversation.steps
        if step.fields.get("frame") == "error"
    ]
    assert len(frames) > 100
    for data in frames:
        error = server_error(data)
        assert error.code == data.split(b" ")[0].decode()
        needs_tls = b"(TLS required)" in data
        assert type(error) is (TlsRequiredError if needs_tls else SERVER_ERRORS[error.code])


def test_the_blank_after_a_code_is_no_part_of_it() -> None:
    error = server_error(b"E_TOPIC_NOT_EXIST ")
    assert (error.code, error.detail) == ("E_TOPIC_NOT_EXIST", "")
    assert str(error) == "E_TOPIC_NOT_EXIST: this nsqd has no such topic, or no replica of the partition"


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("E_SUB_ORDER_IS_MUST", "ordered='auto'"),
        ("E_SUB_EXTEND_NEED", "lookupd="),
        ("E_SUB_EXTEND_FORBIDDON", "looked up again"),
        ("E_SUB_CHANNEL_NOT_REGISTERED", "/channel/create"),
    ],
)
def test_a_refused_subscription_says_what_to_change(code: str, hint: str) -> None:
    error = server_error(code.encode() + b" the server's words")
    assert error.detail == "the server's words"
    assert str(error).startswith(f"{code} the server's words: ")
    assert hint in str(error)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            (
                b"E_FIN_FAILED FIN [0 4 0 0 0 0 0 183 0 0 0 0 0 0 0 0] failed ErrType:7 ErrCode:0 :"
                b" Message ID not in flight"
            ),
            (
                "nsqd refused FIN of message id=0x40000000000b7, since it is no longer in flight: it timed out, or was"
                " answered before (E_FIN_FAILED)"
            ),
        ),
        (
            b"E_TOUCH_FAILED TOUCH [0 0 0 0 0 0 0 22 0 0 0 0 0 0 0 0] failed client does not own message : 62 vs 63",
            (
                "nsqd refused TOUCH of message id=0x16, since it has been delivered to another connection, or is"
                " requeued (E_TOUCH_FAILED)"
            ),
        ),
        (
            b"E_REQ_FAILED REQ [0 0 0 0 0 0 0 31 0 0 0 0 0 0 0 0] failed anything new",
            "nsqd refused REQ of message id=0x1f, since anything new (E_REQ_FAILED)",
        ),
        (b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight", None),
    ],
)
def test_a_refused_answer_names_the_message_as_a_number(data: bytes, text: str | None) -> None:
    """The text was a list of bytes."""
    assert str(server_error(data)) == (data.decode() if text is None else text)


def test_a_server_that_takes_tls_alone_says_what_to_give() -> None:
    """It was an InvalidCommandError, which is documented as a bug of ours."""
    error = server_error(b"E_INVALID cannot SUB in current state (TLS required)")
    assert type(error) is TlsRequiredError
    assert "give tls=" in str(error)
    assert not error.retriable


def test_a_partitioned_server_asked_for_no_partition_says_what_to_give() -> None:
    error = server_error(b"E_BAD_PARTITION topic partition is not valid for multi partition: -1")
    assert type(error) is SERVER_ERRORS["E_BAD_PARTITION"]
    assert "give lookupd=" in str(error)


def test_an_unknown_code_is_a_plain_server_error() -> None:
    error = server_error(b"E_BRAND_NEW thing")
    assert type(error) is ServerError
    assert (error.code, error.detail, error.retriable) == ("E_BRAND_NEW", "thing", False)


def test_a_code_is_compared_whole() -> None:
    assert type(server_error(b"E_FAILED_ON_NOT_LEADERS x")) is ServerError


def test_binary_in_a_text_is_replaced() -> None:
    assert server_error(b"E_INVALID could not parse \xff\x00").detail == "could not parse \ufffd\x00"


def test_too_many_connections_has_no_code() -> None:
    error = server_error(b"too much client connections")
    assert isinstance(error, OverloadedError)
    assert (error.code, error.retriable) == ("", True)


def test_two_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(ResponseTimeoutError, TimeoutError)


def test_an_unavailable_lookup_names_each_server() -> None:
    error = LookupUnavailableError("nobody answers", (("http://a:1", "refused"), ("http://b:2", "timed out")))
    assert str(error) == "nobody answers (http://a:1: refused; http://b:2: timed out)"
    assert error.causes[1] == ("http://b:2", "timed out")
    assert str(LookupUnavailableError("none is configured")) == "none is configured"


@pytest.mark.parametrize(
    ("partition", "maybe_stored", "text"),
    [
        (3, False, "publish to orders-3 failed (not stored, attempts: 2): why"),
        (None, True, "publish to orders failed (may be stored, attempts: 2): why"),
    ],
)
def test_a_publish_error_tells_what_is_known(partition: int | None, maybe_stored: bool, text: str) -> None:
    error = PublishError("why", topic="orders", partition=partition, attempts=2, maybe_stored=maybe_stored)
    assert str(error) == text
    assert (error.topic, error.partition, error.attempts, error.maybe_stored) == ("orders", partition, 2, maybe_stored)


def test_a_publish_error_names_the_nsqd_once() -> None:
    def text(message: str) -> str:
        error = PublishError(message, topic="orders", partition=3, attempts=1, maybe_stored=False, nsqd="10.0.0.1:4150")
        assert error.nsqd == "10.0.0.1:4150"
        return str(error)

    assert text("why") == "publish to orders-3 at 10.0.0.1:4150 failed (not stored, attempts: 1): why"
    assert text("10.0.0.1:4150 hung up") == (
        "publish to orders-3 failed (not stored, attempts: 1): 10.0.0.1:4150 hung up"
    )


def test_what_a_server_says_forges_no_log_line_and_is_compared_as_it_came() -> None:
    error = server_error("E_PUB_FAILED a\nERROR forged \x1b[2J \u009b \u202e".encode())
    assert str(error) == r"E_PUB_FAILED a\nERROR forged \x1b[2J \x9b \u202e"
    assert (error.code, error.detail) == ("E_PUB_FAILED", "a\nERROR forged \x1b[2J \u009b \u202e")
    assert str(server_error(b"E_BAD_TOPIC bad \xc3\xbc")) == "E_BAD_TOPIC bad \u00fc"


@pytest.mark.parametrize(
    ("maybe_stored", "cause", "is_retriable"),
    [
        (False, ConnectError("refused"), True),
        (True, ConnectError("refused"), False),
        (False, ConfigError("too large"), False),
        (False, OSError("refused"), False),
        (False, None, False),
    ],
)
def test_a_publish_that_is_not_stored_may_be_repeated_if_its_cause_passes(
    maybe_stored: bool, cause: Exception | None, is_retriable: bool
) -> None:
    error = PublishError("why", topic="orders", partition=1, attempts=1, maybe_stored=maybe_stored)
    error.__cause__ = cause
    assert error.retriable is is_retriable
