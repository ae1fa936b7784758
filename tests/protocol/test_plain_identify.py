"""What upstream's nsqd makes of IDENTIFY."""

import json
from typing import Any

import pytest

from nsq_ha.protocol.server.answers import encode_plain_identity
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.identify import PLAIN_SETTINGS, SessionSettings, read_plain_identify


def settled(before: SessionSettings = PLAIN_SETTINGS, **fields: Any) -> SessionSettings:  # noqa: ANN401 - JSON
    settings = read_plain_identify(json.dumps(fields).encode(), before)
    assert isinstance(settings, SessionSettings)
    return settings


def test_what_is_absent_keeps_the_defaults() -> None:
    assert settled() == PLAIN_SETTINGS
    assert (PLAIN_SETTINGS.output_buffer_size, PLAIN_SETTINGS.output_buffer_timeout) == (16384, 250)


def test_a_second_one_changes_what_it_names() -> None:
    first = settled(msg_timeout=2000, heartbeat_interval=1000, client_id="c", output_buffer_size=64)
    second = settled(first, output_buffer_timeout=30000, hostname="h", user_agent="u")
    assert (second.msg_timeout, second.heartbeat_interval, second.client_id) == (2000, 1000, "")
    assert (second.output_buffer_size, second.output_buffer_timeout) == (64, 30000)


def test_what_is_switched_off() -> None:
    assert settled(heartbeat_interval=-1).heartbeat_interval == 0
    assert settled(output_buffer_timeout=-1).output_buffer_timeout == 0
    unbuffered = settled(output_buffer_size=-1, output_buffer_timeout=100)
    assert (unbuffered.output_buffer_size, unbuffered.output_buffer_timeout) == (1, 0)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"heartbeat_interval": 999}, "heartbeat interval (999)"),
        ({"output_buffer_timeout": 24, "output_buffer_size": 1}, "output buffer timeout (24)"),
        ({"output_buffer_size": 63}, "output buffer size (63)"),
        ({"output_buffer_size": 65537}, "output buffer size (65537)"),
        ({"sample_rate": 100}, "sample rate (100)"),
        ({"msg_timeout": 999}, "msg timeout (999)"),
        ({"msg_timeout": 900001}, "msg timeout (900001)"),
    ],
)
def test_what_is_out_of_range(fields: dict[str, Any], complaint: str) -> None:
    refused = read_plain_identify(json.dumps(fields).encode())
    assert refused == Malformed(b"IDENTIFY", f"E_BAD_BODY IDENTIFY {complaint} is invalid".encode())


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"msg_timeout":"1"}', b"[" * 100_000])
def test_what_is_no_such_object(body: bytes) -> None:
    assert read_plain_identify(body) == Malformed(b"IDENTIFY", b"E_BAD_BODY IDENTIFY failed to decode JSON body")


@pytest.mark.parametrize(
    ("fields", "level"),
    [({}, 6), ({"deflate_level": 3}, 6), ({"deflate": True}, 6), ({"deflate": True, "deflate_level": 3}, 3),
     ({"deflate": True, "deflate_level": 9}, 6)],
)  # fmt: skip
def test_the_level_of_deflate(fields: dict[str, Any], level: int) -> None:
    assert settled(**fields).plain_identity("1", tls=False).deflate_level == level


@pytest.mark.parametrize(("offered", "asked"), [(True, True), (True, False), (False, True)])
def test_tls_needs_both_sides(offered: bool, asked: bool) -> None:
    assert settled(tls_v1=asked).plain_identity("1", tls=offered).tls_v1 is (offered and asked)


def test_the_answer_has_upstreams_fields_in_order() -> None:
    answer = json.loads(encode_plain_identity(settled().plain_identity("1.3.0", tls=False)))
    assert list(answer)[-2:] == ["topology_region", "topology_zone"]
    assert (answer["version"], answer["output_buffer_timeout"], "desired_tag" in answer) == ("1.3.0", 250, False)
