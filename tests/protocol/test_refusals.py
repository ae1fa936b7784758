"""A refusal because of a limit names the setting on either side."""

import re

import pytest

from nsq_ha.errors import MessageRefusedError, ServerError, server_error
from nsq_ha.protocol import refusals
from nsq_ha.protocol.refusals import read_error
from tests.examples import ROOT

MESSAGE = (
    "split the message, or start nsqd with a larger --max-msg-size; with max_message_bytes=1048576 the client refuses"
    " such messages before it sends them"
)
BATCH = "set max_batch_bytes=500 for smaller batches, or start nsqd with a larger --max-body-size"
REFUSALS = {
    # The first of each pair is the partitioned server's.
    "E_BAD_MESSAGE message too big 3000000 > 1048576": MESSAGE,
    "E_BAD_MESSAGE PUB message too big 3000000 > 1048576": MESSAGE,
    "E_BAD_MESSAGE DPUB message too big 3000000 > 1048576": MESSAGE,
    "E_BAD_MESSAGE MPUB message too big 3000000 > 1048576": MESSAGE,
    "E_BAD_BODY body too big 501 > 500": BATCH,
    "E_BAD_BODY MPUB body too big 501 > 500": BATCH,
    "E_INVALID DPUB timeout 7200000 out of range 0-3600000": (
        "nsqd delays a message by at most 3600 s: lower defer, or start nsqd with a larger --max-req-timeout"
    ),
    "E_INVALID RDY count 2500 out of range 0-100": (
        "set max_in_flight=100, or start nsqd with a larger --max-rdy-count"
    ),
    "E_BAD_BODY IDENTIFY heartbeat interval (300000) is invalid": (
        "nsqd does not accept this value of the option heartbeat_interval; change it, or nsqd's"
        " --max-heartbeat-interval"
    ),
    "E_BAD_BODY IDENTIFY output buffer timeout (10) is invalid": (
        "nsqd does not accept this value of the option output_buffer_timeout; change it, or nsqd's"
        " --max-output-buffer-timeout (or --min-output-buffer-timeout)"
    ),
    "E_BAD_BODY IDENTIFY output buffer size (100000) is invalid": (
        "nsqd does not accept this value of the option output_buffer_bytes; change it, or nsqd's"
        " --max-output-buffer-size"
    ),
    "E_BAD_BODY IDENTIFY msg timeout (7200000) is invalid": (
        "nsqd does not accept this value of the option msg_timeout; change it, or nsqd's --max-msg-timeout"
    ),
    "E_BAD_BODY IDENTIFY sample rate (100) is invalid": "nsqd does not accept this value of the option sample_rate",
}
OTHERS = (
    "E_BAD_MESSAGE PUB invalid message body size 0",
    "E_BAD_MESSAGE x message too big 3 > 2",
    "E_BAD_BODY IDENTIFY body too big 6000000 > 5242880",
    "E_BAD_BODY IDENTIFY failed to decode JSON body",
    "E_BAD_BODY IDENTIFY colour (7) is invalid",
    "E_BAD_BODY MPUB invalid message count 0",
    "E_INVALID RDY could not parse count many",
    "E_INVALID cannot RDY in current state",
    "E_PUB_FAILED message too big 3 > 2",
    "E_FAILED_ON_NOT_LEADER ",
)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_names_the_setting_on_either_side(text: str) -> None:
    plain, advised = server_error(text.encode()), read_error(text.encode())
    assert (type(advised), advised.code) == (type(plain), plain.code)
    assert advised.detail == f"{plain.detail}: {REFUSALS[text]}"
    assert text in str(advised)


@pytest.mark.parametrize("text", OTHERS)
def test_another_refusal_stays_as_it_is(text: str) -> None:
    error = server_error(text.encode())
    assert refusals.with_advice(error) is error


def test_the_class_of_an_error_stays() -> None:
    for kind in (MessageRefusedError, ServerError):
        advised = refusals.with_advice(kind("E_BAD_BODY", "body too big 2 > 1"))
        assert type(advised) is kind


def test_the_table_names_all_that_is_advised() -> None:
    table = refusals.__doc__ or ""
    for text, advice in REFUSALS.items():
        words = [word.strip(",;()") for word in advice.replace("'s", " ").split()]
        named = [word for word in words if word.startswith("--max")] or ["sample_rate"]
        assert all(word in table for word in named), text


def test_the_page_of_errors_has_the_table() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8").partition("because of a limit")[2]
    rows = [line.split(" | ") for line in page.partition("```")[0].splitlines() if line.startswith("| `")]
    assert len(rows) == 8
    for text, option, flag in rows:
        said = re.sub(r"\.\.\.", "7", text.strip("| `")).replace("> 7", "> 5").replace("range 7", "range 0-5")
        error = read_error(said.encode())
        assert error.detail != server_error(said.encode()).detail, said
        for setting in (option.split("`")[1], flag.split("`")[1]):
            assert setting in str(error)


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("E_BAD_BODY IDENTIFY heartbeat interval (100) is invalid", "heartbeat_interval"),
        ("E_BAD_BODY IDENTIFY output buffer size (100000) is invalid", "output_buffer_bytes"),
        ("E_BAD_BODY IDENTIFY colour (7) is invalid", None),
        ("E_BAD_BODY IDENTIFY failed to decode JSON body", None),
    ],
)
def test_a_refused_identify_names_the_option(text: str, option: str | None) -> None:
    assert refusals.refused_option(server_error(text.encode())) == option


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("E_INVALID REQ timeout 7200000000000 out of range 0-3600000000000", 3600.0),
        ("E_INVALID RDY count 5000 out of range 0-2500", None),
        ("E_REQ_FAILED REQ timeout 1 out of range 0-1", None),
    ],
)
def test_a_refused_requeue_names_the_longest_delay(text: str, seconds: float | None) -> None:
    assert refusals.longest_delay(server_error(text.encode())) == seconds
