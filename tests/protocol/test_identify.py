"""What we offer, what was agreed, and the order of upgrades."""

import json
from typing import Any

import pytest

from nsq_ha import ExtFilter
from nsq_ha.errors import ConfigError, RemoteProtocolError
from nsq_ha.options.config import ClientConfig, ConsumerConfig
from nsq_ha.options.types import Compression, TlsConfig
from nsq_ha.protocol import Identity, Offer
from nsq_ha.protocol.identify import decode_identity, upgrades
from nsq_ha.protocol.server.identify import SessionSettings, read_identify


def offered(config: ClientConfig, *, extend_support: bool = False) -> Offer:
    return Offer.of(config, hostname="host", user_agent="nsq_ha/1", extend_support=extend_support)


def fields(offer: Offer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(offer.command().body)
    return found


def test_an_offer_comes_from_the_options() -> None:
    config = ConsumerConfig(
        heartbeat_interval=1.5,
        output_buffer_timeout=0.1,
        output_buffer_bytes=4096,
        msg_timeout=10.0,
        sample_rate=20,
        tag="blue",
        compression=Compression.DEFLATE,
        deflate_level=3,
        tls=TlsConfig(),
        client_id="me",
        topology_region="eu",
        topology_zone="eu-a",
    )
    assert fields(offered(config, extend_support=True)) == {
        "topology_region": "eu",
        "topology_zone": "eu-a",
        "client_id": "me",
        "hostname": "host",
        "user_agent": "nsq_ha/1",
        "feature_negotiation": True,
        "heartbeat_interval": 1500,
        "output_buffer_size": 4096,
        "output_buffer_timeout": 100,
        "sample_rate": 20,
        "msg_timeout": 10000,
        "tls_v1": True,
        "snappy": False,
        "deflate": True,
        "deflate_level": 3,
        "extend_support": True,
        "desired_tag": "blue",
    }


@pytest.mark.parametrize(
    ("options", "is_plain", "asked"),
    [
        ({}, False, 10),
        ({}, True, 25),
        ({"output_buffer_timeout": 0.01}, True, 10),
        ({"output_buffer_timeout": 1}, False, 1000),
    ],
)
def test_the_least_gathering_that_the_servers_take_unless_it_is_set(
    options: dict[str, Any], *, is_plain: bool, asked: int
) -> None:
    offer = Offer.of(ConsumerConfig.of(options), hostname="host", user_agent="agent", is_plain=is_plain)
    assert fields(offer)["output_buffer_timeout"] == asked


def test_a_producers_offer_says_nothing_of_messages() -> None:
    found = fields(offered(ClientConfig(compression=Compression.SNAPPY)))
    assert (found["sample_rate"], found["msg_timeout"], found["extend_support"]) == (0, 0, False)
    assert (found["client_id"], found["snappy"], found["deflate"]) == ("host", True, False)
    assert "desired_tag" not in found


def test_a_consumer_without_wishes_takes_the_servers_defaults() -> None:
    found = fields(offered(ConsumerConfig()))
    assert (found["msg_timeout"], found["sample_rate"]) == (0, 0)
    assert "desired_tag" not in found


def test_a_filter_is_passed_on() -> None:
    found = fields(offered(ConsumerConfig(ext_filter=ExtFilter.equals("k", "v"))))
    assert found["ext_filter"] == {"type": 1, "filter_ext_key": "k", "filter_data": "v"}
    assert "ext_filter" not in fields(offered(ConsumerConfig()))


def test_a_tag_has_at_most_100_bytes() -> None:
    assert offered(ConsumerConfig(tag="é" * 50)).desired_tag == "é" * 50
    with pytest.raises(ConfigError, match="at most 100 bytes"):
        offered(ConsumerConfig(tag="é" * 51))


def test_the_server_reads_an_offer_as_it_was_meant() -> None:
    config = ConsumerConfig(msg_timeout=2.0, sample_rate=5, tag="t", compression=Compression.SNAPPY)
    assert read_identify(offered(config, extend_support=True).command().body) == SessionSettings(
        client_id="host",
        hostname="host",
        user_agent="nsq_ha/1",
        feature_negotiation=True,
        heartbeat_interval=2000,
        output_buffer_size=16384,
        output_buffer_timeout=10,
        sample_rate=5,
        msg_timeout=2000,
        snappy=True,
        deflate_level=6,
        desired_tag="t",
        extend_support=True,
    )


def test_a_plain_ok_is_an_old_server() -> None:
    identity = decode_identity(b"OK")
    assert (identity.max_rdy_count, identity.msg_timeout, identity.auth_required) == (2500, 60000, False)
    assert upgrades(identity) == ()


def test_a_message_timeout_of_zero_is_the_default() -> None:
    """nsqd 0.2.29 and 0.2.30 say 0 if the client asked for their default."""
    assert decode_identity(b'{"version":"0.2.30","msg_timeout":0}').msg_timeout == 60000


@pytest.mark.parametrize(
    ("version", "is_too_old", "counts_down"),
    [
        ("0.1.9", True, False),
        ("0.2.2", True, True),
        ("0.2.19", True, True),
        ("0.2.22", True, True),
        ("0.2.22-alpha", True, True),
        ("0.2.23", False, True),
        ("0.2.31", False, True),
        ("0.3.0", False, False),
        ("0.3.7-HA.1.9.8", False, False),
        ("0.20.1", False, False),
        ("1.3.0", False, False),
        ("", False, False),
        ("fake", False, False),
    ],
)
def test_what_old_servers_need(version: str, is_too_old: bool, counts_down: bool) -> None:
    identity = Identity(version=version)
    assert (identity.is_too_old, identity.counts_ready_down) == (is_too_old, counts_down)


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults() -> None:
    identity = decode_identity(b'{"max_rdy_count":10,"multiplexing":[{}],"auth_required":true}')
    assert (identity.max_rdy_count, identity.auth_required, identity.max_msg_timeout) == (10, True, 900000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"KO",
        b"{",
        b'{"max_rdy_count":2500',
        b"[]",
        b"null",
        b'"OK"',
        b"{\xff}",
        b'{"version":"\xff\xfe"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"max_rdy_count":0}',
        b'{"max_rdy_count":-1}',
        b'{"max_rdy_count":"2500"}',
        b'{"max_rdy_count":null}',
        b'{"msg_timeout":-1}',
        b'{"max_msg_timeout":0}',
        b'{"tls_v1":1}',
        b'{"sample_rate":100}',
        b'{"snappy":true,"deflate":true}',
        b'{"version":7}',
        b'{"msg_timeout":1' + b"0" * 400 + b"}",
        b'{"version":"' + b"x" * 257 + b'"}',
        b'{"desired_tag":"' + b"x" * 257 + b'"}',
    ],
    ids=range(24),
)
def test_what_makes_no_sense_is_no_identity(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="answer to IDENTIFY"):
        decode_identity(data)


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (Identity(), ()),
        (Identity(tls_v1=True), ("tls",)),
        (Identity(snappy=True), ("snappy",)),
        (Identity(deflate=True), ("deflate",)),
        (Identity(tls_v1=True, snappy=True), ("tls", "snappy")),
        (Identity(tls_v1=True, deflate=True), ("tls", "deflate")),
    ],
)
def test_tls_comes_before_compression(identity: Identity, expected: tuple[str, ...]) -> None:
    assert upgrades(identity) == expected


@pytest.mark.parametrize(
    ("identity", "offer"),
    [
        (Identity(tls_v1=True), Offer()),
        (Identity(snappy=True), Offer(compression=Compression.DEFLATE)),
        (Identity(deflate=True), Offer(tls=True)),
    ],
)
def test_what_was_not_offered_is_not_switched_on(identity: Identity, offer: Offer) -> None:
    with pytest.raises(RemoteProtocolError, match="which was not offered"):
        upgrades(identity, offer)
