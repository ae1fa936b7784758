"""IDENTIFY as the server reads it, beside what the recorded answers show."""

import json
from typing import Any

import pytest

from nsq_ha.protocol.ext_filter import FilterRule, Pair
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.identify import SessionSettings, read_identify


def read(**fields: Any) -> SessionSettings:  # noqa: ANN401 - JSON
    settings = read_identify(json.dumps(fields).encode())
    assert isinstance(settings, SessionSettings)
    return settings


def test_an_empty_object_changes_nothing() -> None:
    assert read() == SessionSettings()


def test_null_counts_as_absent() -> None:
    assert read(heartbeat_interval=None, snappy=None, desired_tag=None) == SessionSettings()
    assert read_identify(b"null") == SessionSettings()


def test_names_may_come_in_any_case_and_texts_in_any_bytes() -> None:
    found = read_identify(b'{"HeartBeat_Interval":5000,"client_id":"\xff"}')
    assert found == SessionSettings(heartbeat_interval=5000, client_id="\ufffd")


def test_old_names_stand_in() -> None:
    assert (read(short_id="s", long_id="l").client_id, read(short_id="s", long_id="l").hostname) == ("s", "l")
    both = read(short_id="s", client_id="c", long_id="l", hostname="h")
    assert (both.client_id, both.hostname) == ("c", "h")


def test_minus_one_switches_off() -> None:
    found = read(heartbeat_interval=-1, output_buffer_size=-1, output_buffer_timeout=-1)
    assert (found.heartbeat_interval, found.output_buffer_size, found.output_buffer_timeout) == (0, 1, 0)


def test_large_buffers_are_clamped_and_short_waits_raised() -> None:
    assert read(output_buffer_size=10**6).output_buffer_size == 65536
    assert read(output_buffer_size=64).output_buffer_size == 64
    assert [read(output_buffer_timeout=wait).output_buffer_timeout for wait in (1, 3, 10, 11)] == [10, 10, 10, 11]


def test_zero_keeps_the_default() -> None:
    assert read(heartbeat_interval=0, output_buffer_size=0, output_buffer_timeout=0, msg_timeout=0) == SessionSettings()


def test_a_second_identify_keeps_what_it_does_not_name() -> None:
    first = read(heartbeat_interval=5000, msg_timeout=9000, desired_tag="blue", extend_support=True, sample_rate=7)
    second = read_identify(b'{"extend_support":false,"output_buffer_size":100}', first)
    assert isinstance(second, SessionSettings)
    assert (second.heartbeat_interval, second.msg_timeout, second.desired_tag) == (5000, 9000, "blue")
    assert (second.extend_support, second.sample_rate, second.output_buffer_size) == (True, 0, 100)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"heartbeat_interval": 999}, "heartbeat interval (999) is invalid"),
        ({"heartbeat_interval": 60001}, "heartbeat interval (60001) is invalid"),
        ({"output_buffer_size": 63}, "output buffer size (63) is invalid"),
        ({"output_buffer_size": 1}, "output buffer size (1) is invalid"),
        ({"output_buffer_size": -2}, "output buffer size (-2) is invalid"),
        ({"output_buffer_timeout": -2}, "output buffer timeout (-2) is invalid"),
        ({"heartbeat_interval": -2}, "heartbeat interval (-2) is invalid"),
        ({"sample_rate": 100}, "sample rate (100) is invalid"),
        ({"msg_timeout": 1}, "msg timeout (1) is invalid"),
        ({"msg_timeout": 999}, "msg timeout (999) is invalid"),
        ({"output_buffer_timeout": 1001}, "output buffer timeout (1001) is invalid"),
        ({"sample_rate": -1}, "sample rate (-1) is invalid"),
        ({"msg_timeout": -1}, "msg timeout (-1) is invalid"),
        ({"desired_tag": "é" * 51}, "invalid tag len 102, exceed limit 100"),
        # The first in the server's order is told.
        ({"msg_timeout": 1, "heartbeat_interval": 1}, "heartbeat interval (1) is invalid"),
    ],
)
def test_what_is_out_of_range_is_refused(fields: dict[str, Any], text: str) -> None:
    answer = read_identify(json.dumps(fields).encode())
    assert answer == Malformed(b"IDENTIFY", f"E_BAD_BODY IDENTIFY {text}".encode())


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{",
        b'{"snappy":1}',
        b'{"heartbeat_interval":"5"}',
        b'{"ext_filter":[]}',
        b'{"ext_filter":{"type":"1"}}',
        b'{"sample_rate":3000000000}',
        b'{"msg_timeout":1e3}',
        b'{"msg_timeout":9223372036854775808}',
        b"[" * 100_000,
        b"\xff",
    ],
    ids=range(11),
)
def test_what_is_not_the_json_it_should_be_is_refused(data: bytes) -> None:
    answer = read_identify(data)
    assert answer == Malformed(b"IDENTIFY", b"E_BAD_BODY IDENTIFY failed to decode JSON body")


def test_the_answer_has_what_both_sides_can_do() -> None:
    plain = read(tls_v1=True, snappy=True, msg_timeout=9000).identity("1.2", tls=False)
    assert (plain.version, plain.tls_v1, plain.snappy, plain.deflate_level, plain.msg_timeout) == (
        "1.2",
        False,
        True,
        0,
        9000,
    )
    packed = read(tls_v1=True, deflate=True, deflate_level=9).identity("1.2", tls=True)
    assert (packed.tls_v1, packed.deflate, packed.deflate_level, packed.max_deflate_level) == (True, True, 6, 6)
    assert read(deflate=True, deflate_level=-3).identity("1.2", tls=True).deflate_level == 0


def test_the_answer_repeats_the_settings() -> None:
    settings = read(
        sample_rate=7, output_buffer_size=100, output_buffer_timeout=50, desired_tag="blue", deflate_level=5
    )
    answer = settings.identity("1.2", tls=False)
    assert (answer.sample_rate, answer.output_buffer_size, answer.output_buffer_timeout) == (7, 100, 50)
    assert (answer.desired_tag, answer.deflate, answer.deflate_level) == ("blue", False, 0)


def test_a_filter_is_read_with_names_in_any_case() -> None:
    found = read(
        ext_filter={"Type": 4, "FILTER_EXT_KEY": "any", "inverse": True, "filter_data_list": [{"Filter_Data": "v"}]}
    )
    assert found.ext_filter == FilterRule(4, True, "any", None, [Pair(None, "v")])
    assert read(ext_filter=None).ext_filter is None


def test_what_is_just_within_range_is_taken() -> None:
    found = read(output_buffer_timeout=1000, desired_tag="é" * 50, ext_filter={"type": 1})
    assert (found.output_buffer_timeout, found.desired_tag, found.ext_filter) == (1000, "é" * 50, FilterRule(1))
