"""Options: what is accepted, what is refused with which message, and that no secret is shown."""

import dataclasses
import functools
import math
import re
import ssl
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nsq_ha import (
    Backoff,
    ClientConfig,
    Compression,
    ConfigError,
    Consumer,
    ConsumerConfig,
    LookupClient,
    Producer,
    ProducerConfig,
    StartFrom,
    TlsConfig,
    sync,
)
from nsq_ha.admin import AdminClient
from nsq_ha.engine.tls import ssl_context

CERTIFICATE = Path(__file__).parent / "certificates" / "server.pem"

# ------------------------------------------------------------ defaults


def test_the_defaults_are_those_of_the_docs() -> None:
    client = ClientConfig()
    assert (client.heartbeat_interval, client.connect_timeout, client.lookup_timeout) == (2.0, 1.0, 1.0)
    assert (client.lookup_interval, client.output_buffer_timeout, client.close_timeout) == (5.0, None, 5.0)
    producer = ProducerConfig()
    assert (producer.publish_timeout, producer.sharding, producer.strategy) == (30.0, "murmur3", "round_robin")
    assert (producer.on_unreachable, producer.trace, producer.idle_timeout) == ("retry", False, 600.0)
    consumer = ConsumerConfig()
    assert (consumer.ordered, consumer.max_in_flight, consumer.partitions) == ("auto", 200, None)
    assert (consumer.max_attempts, consumer.msg_timeout) == (None, None)
    assert consumer.handler_backoff == Backoff(1.0, 4.0, 2.0, 0.3)
    assert consumer.requeue_backoff == Backoff(10.0, 900.0)
    assert consumer.requeue_backoff.initial > consumer.handler_backoff.maximum  # what fails is not the next test


# ------------------------------------------------------------ ranges


async def later(_: object) -> None:
    raise AssertionError


class Later:
    async def __call__(self, _: object) -> None:
        raise AssertionError


CLIENT: dict[str, tuple[object, ...]] = {
    "connect_timeout": (0, -1.0, math.nan, math.inf, "1", None, True, 86401),
    "lookup_timeout": (0, -1.0, math.nan, "1"),
    "lookup_interval": (0, math.inf),
    "close_timeout": (0, -1),
    "heartbeat_interval": (0.9, 86401, 0, -1),
    "output_buffer_timeout": (0.0009, 3601, 0, "1"),
    "output_buffer_bytes": (63, 2**31, 100.5),
    "max_frame_bytes": (1023, 2**31, 4096.5),
    "deflate_level": (0, 10, 5.5),
    "compression": ("zstd", 7, None),
    "backoff": (1.0, None, {"initial": 1.0}),
    "lookupd_tls": (True, "ca.pem"),
    "tls": (True, "ca.pem", TlsConfig, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)),
    "auth_secret": (7, b"bytes", "", "x" * 65537),
    "client_id": (7, None, "a\nb", "a\ud800", "a" * 256),
    "hostname": (7, None, "a\x1b[2J", "a\ud800", "a" * 256),
    "user_agent": (7, None, "a\tb", "a\ud800", "\u00e4" * 128),
    "topology_region": (7, None, "a\tb"),
    "topology_zone": (7, None, "a\tb"),
    "local_addr": (7, "", "a b", "[::1]", "127.0.0.1:0", ("a", 4150), ("a",), ("a", False), (7, 0)),
    "on_event": (5, "log", later, Later()),
    "lookupd": (7, None, [7], "two words:1", "::1"),
    "nsqd": (7, None, [7], "no-port", "::1:4150"),
}
PRODUCER: dict[str, tuple[object, ...]] = {
    "publish_timeout": (0, -1, math.nan, "30"),
    "sharding": ("crc32", None, 7),
    "strategy": ("random", None),
    "trace": (7, [7], ["bad topic"]),
    "on_unreachable": ("wait", None),
    "window": (0, 100_001, 1.5),
    "idle_timeout": (0.5, 86401),
    "connections_per_nsqd": (-1, 1.5),
    "max_message_bytes": (0, 2**31, 1e6, "1m"),
    "max_batch_bytes": (63, 2**31, None),
}
CONSUMER: dict[str, tuple[object, ...]] = {
    "ordered": ("yes", None, 1, 0, []),
    "partitions": (3, ["0"], [0, "a"], [-1], [1024], [True], [0.0]),
    "start_from": ("beginning", 0, {0: "beginning"}, {"0": StartFrom.end()}, {}),
    "max_in_flight": (-1, 1_000_001, 2.5, True),
    "msg_timeout": (0.5, 864_001, 0),
    "auto_touch": (0, 0.05, 864_000, None, "on", math.nan),
    "sample_rate": (-1, 100, 5.5),
    "tag": (7, b"blue", "", "x" * 101),
    "requeue_backoff": (1.0, None),
    "handler_backoff": (1.0, True, "off"),
    "start_timeout": (-1, math.nan),
    "max_attempts": (0, 4001, 1.5),
    "on_give_up": ("forget", 3),
    "dead_letter_topic": ("bad topic", 7),
}


def is_refused(kind: type[ClientConfig], name: str, value: object) -> bool:
    try:
        kind.of({name: value})
    except ConfigError as error:
        return name in str(error)
    return False


@pytest.mark.parametrize(("kind", "own"), [(ProducerConfig, PRODUCER), (ConsumerConfig, CONSUMER)])
def test_a_wrong_option_of_both(kind: type[ClientConfig], own: dict[str, tuple[object, ...]]) -> None:
    wrong = [(name, value) for name, values in (CLIENT | own).items() for value in values]
    assert [each for each in wrong if not is_refused(kind, *each)] == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ClientConfig, {"connect_timeout": 0.001, "heartbeat_interval": 1}),
        (ClientConfig, {"heartbeat_interval": 300, "output_buffer_bytes": 2**20, "deflate_level": 9}),
        (ProducerConfig, {"window": 1, "connections_per_nsqd": 1, "max_message_bytes": 5_000_000}),
        (ProducerConfig, {"sharding": len, "strategy": "least_loaded", "trace": ["a", "b"]}),
        (ConsumerConfig, {"max_in_flight": 0, "sample_rate": 99, "max_attempts": 1}),
        (ConsumerConfig, {"start_from": {0: StartFrom.end()}, "msg_timeout": 7200}),
        (ConsumerConfig, {"max_attempts": 4000, "on_give_up": print}),
        (ConsumerConfig, {"max_attempts": 1, "on_give_up": "dead_letter", "dead_letter_topic": "dead"}),
    ],
)
def test_the_edges_are_legal(kind: type[ClientConfig], options: dict[str, object]) -> None:
    config = kind.of(options)
    for name in options:
        assert hasattr(config, name)


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (ConsumerConfig, {"max_inflight": 5}, "unknown option 'max_inflight': did you mean 'max_in_flight'"),
        (ProducerConfig, {"max_in_flight": 5}, "unknown option 'max_in_flight': it is an option of consumers"),
        (ConsumerConfig, {"window": 5}, "unknown option 'window': it is an option of producers"),
        (ConsumerConfig, {"attempts": 5}, "did you mean 'max_attempts'"),
        (ConsumerConfig, {"message_handler": print}, r"'message_handler': it is no option but an argument: give it to"),
        (ConsumerConfig, {"concurrency": 4}, "'concurrency': it is no option but an argument: give it to run"),
        (ConsumerConfig, {"install_signal_handlers": True}, r"but an argument: give it to run\(\)$"),
        (ProducerConfig, {"concurrency": 4}, "unknown option 'concurrency'; known are: "),
        (
            ConsumerConfig,
            {"lookupd": None},
            "such as 'http://127.0.0.1:4161', or several, not None: is the setting or variable",
        ),
        (ProducerConfig, {"nsqd": None}, "such as '127.0.0.1:4150', or several, not None: is the setting or variable"),
        (ProducerConfig, {"sharding": "murmur"}, r"not 'murmur': did you mean 'murmur3'\?"),
        (ProducerConfig, {"strategy": "Round-Robin"}, "not 'Round-Robin': did you mean 'round_robin'"),
        (
            ConsumerConfig,
            {"on_give_up": "deadletter"},
            "a function, or None, not 'deadletter': did you mean 'dead_letter'",
        ),
        (ConsumerConfig, {"compression": "snapy"}, "'none', 'snappy' or 'deflate', not 'snapy': did you mean 'snappy'"),
        (ConsumerConfig, {"compression": 7}, "'none', 'snappy' or 'deflate', not 7$"),
    ],
)
def test_a_wrong_option_gets_a_hint(kind: type[ClientConfig], options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        kind.of(options)
    assert "as documented" not in str(caught.value)


def test_times_have_a_unit_in_errors() -> None:
    for options in ({"connect_timeout": 0}, {"heartbeat_interval": 0}, {"msg_timeout": 0.5}, {"start_timeout": -1}):
        with pytest.raises(ConfigError, match=r"must be [0-9.]+\.\.[0-9]+ seconds(, or None)?, not "):
            ConsumerConfig.of(options)
    with pytest.raises(ConfigError, match="seconds"):
        Backoff(initial=-1.0)


@pytest.mark.parametrize(
    "value",
    [10**5000, [0] * 10_000, type("Mute", (), {"__repr__": lambda _: 1 / 0})()],
    ids=["long int", "long list", "no repr"],
)
@pytest.mark.parametrize("name", ["connect_timeout", "max_in_flight", "on_give_up", "start_from", "partitions"])
def test_values_that_cannot_be_shown_are_refused_as_others(name: str, value: object) -> None:
    """Python prints no int of more than 4300 digits: the error used to be its ValueError."""
    if name == "partitions" and isinstance(value, list):
        return
    with pytest.raises(ConfigError, match=name) as caught:
        ConsumerConfig.of({name: value})
    assert len(str(caught.value)) < 300


# ------------------------------------------------------------ options that do not fit together


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dead_letter_topic": "dead", "max_attempts": 3}, "dead_letter_topic needs on_give_up='dead_letter'"),
        ({"dead_letter_topic": "dead"}, "dead_letter_topic needs on_give_up='dead_letter'"),
        (
            {"dead_letter_topic": "dead", "max_attempts": 3, "on_give_up": "republish"},
            "needs on_give_up='dead_letter', not 'republish'",
        ),
        ({"on_give_up": "dead_letter", "max_attempts": 3}, "needs dead_letter_topic"),
        ({"on_give_up": "dead_letter", "dead_letter_topic": "dead"}, "on_give_up='dead_letter' needs max_attempts"),
        ({"on_give_up": "drop"}, "on_give_up='drop' needs max_attempts"),
        ({"on_give_up": "republish"}, "on_give_up='republish' needs max_attempts"),
        ({"on_give_up": print}, "on_give_up=<built-in function print> needs max_attempts"),
        ({"start_from": {5: StartFrom.end()}, "partitions": [0, 1]}, r"does not read \(5\)"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ConsumerConfig.of(options)


@pytest.mark.parametrize("policy", ["dead_letter", "republish"])
def test_a_policy_that_publishes_needs_a_producer(policy: str) -> None:
    options: dict[str, Any] = {"max_attempts": 3, "on_give_up": policy}
    if policy == "dead_letter":
        options["dead_letter_topic"] = "dead"
    with pytest.raises(ConfigError, match="give producer="):
        Consumer("t", "ch", lookupd="a", **options)
    wrong_one: Any = Producer
    with pytest.raises(
        ConfigError, match=r"producer is the class Producer: give an object, as in `async with Producer"
    ):
        Consumer("t", "ch", lookupd="a", producer=wrong_one, **options)


def test_a_producer_that_nobody_would_use_is_refused() -> None:
    """With the default policy, "drop", messages used to be lost although a producer was given."""
    with pytest.raises(ConfigError, match="producer= would not be used"):
        Consumer("t", "ch", lookupd="a", max_attempts=3, producer=Producer(lookupd="a"))


def test_the_own_topic_is_no_place_for_dead_letters() -> None:
    options: dict[str, Any] = {"max_attempts": 3, "on_give_up": "dead_letter", "dead_letter_topic": "t"}
    with pytest.raises(ConfigError, match=r"'t' is the consumer's own topic.*name another topic"):
        Consumer("t", "ch", lookupd="a", producer=Producer(lookupd="a"), **options)


def test_a_config_or_options_but_not_both() -> None:
    config = ProducerConfig(lookupd=("http://127.0.0.1:4161",))
    assert Producer(config=config).config is config
    with pytest.raises(ConfigError, match="either config= or options"):
        Producer(config=config, window=5)
    with pytest.raises(ConfigError, match="either config= or options"):
        Consumer("t", "ch", config=ConsumerConfig(lookupd=("a",)), lookupd="b")
    for kind, other in (("ProducerConfig", ConsumerConfig), ("ConsumerConfig", ProducerConfig)):
        make: Any = Producer if kind == "ProducerConfig" else lambda **options: Consumer("t", "ch", **options)
        wrong_ones: tuple[object, ...] = ("x", {}, other(lookupd=("a",)))
        for wrong_one in wrong_ones:
            with pytest.raises(ConfigError, match=f"config must be a {kind}, not "):
                make(config=wrong_one)
    with pytest.raises(ConfigError, match="lookupd"):
        Producer()
    with pytest.raises(ConfigError, match="not both"):
        Producer(lookupd="a", nsqd="b:1")


# ------------------------------------------------------------ values that are brought into form


def test_compression_may_be_named_by_its_word() -> None:
    assert ClientConfig.of({"compression": "snappy"}).compression is Compression.SNAPPY
    assert ClientConfig.of({"compression": Compression.DEFLATE}).compression is Compression.DEFLATE


def test_one_topic_to_trace_is_no_set_of_letters() -> None:
    assert ProducerConfig.of({"trace": "orders"}).trace == frozenset({"orders"})
    assert ProducerConfig.of({"trace": ["a", "b", "a"]}).trace == frozenset({"a", "b"})
    producer = Producer(lookupd="a", trace=True)
    assert producer.trace is True
    producer.trace = "orders"
    assert producer.trace == frozenset({"orders"})
    producer.trace = iter(["a", "b"])
    assert producer.trace == frozenset({"a", "b"})
    producer.trace = False
    assert producer.trace is False


def test_nsqds_that_are_named_take_no_start_positions() -> None:
    with pytest.raises(ConfigError, match="remove start_from=: it needs the partitioned server"):
        ConsumerConfig.of({"nsqd": "a:4150", "start_from": StartFrom.beginning()})


@pytest.mark.parametrize("producer", [5, "producer", object()])
def test_what_cannot_publish_is_no_producer(producer: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises(ConfigError, match=r"producer must be a nsq_ha\.Producer"):
        Consumer("t", "ch", lookupd="a", producer=producer)


def test_partitions_are_sorted_and_named_once() -> None:
    assert ConsumerConfig.of({"partitions": [3, 1]}).partitions == (1, 3)
    with pytest.raises(ConfigError, match="partitions names partition 3 twice: name each one once"):
        ConsumerConfig.of({"partitions": [3, 1, 3]})
    assert ConsumerConfig.of({"partitions": range(2)}).partitions == (0, 1)
    assert ConsumerConfig.of({"partitions": ()}).partitions == ()


def test_the_source_address_has_no_port_of_its_own() -> None:
    for given, host in {
        "10.0.0.1": "10.0.0.1",
        ("10.0.0.1", 0): "10.0.0.1",
        "::1": "::1",
        "me.example": "me.example",
    }.items():
        assert ProducerConfig.of({"local_addr": given}).local_addr == host
    with pytest.raises(ConfigError, match="local_addr must have port 0, since each connection needs one of its own"):
        ProducerConfig.of({"local_addr": ("10.0.0.1", 4150)})


# ------------------------------------------------------------ secrets


def test_a_secret_is_never_shown() -> None:
    config = ProducerConfig(lookupd=("a",), auth_secret="open sesame")
    assert "open sesame" not in repr(config)
    assert "open sesame" not in str(Producer(config=config).__dict__)
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.of({"auth_secret": b"open sesame"})
    assert "open sesame" not in str(caught.value)


def test_the_secret_may_come_from_a_function_without_arguments() -> None:
    config = ProducerConfig(lookupd=("a",), auth_secret=lambda: "open sesame")
    assert callable(config.auth_secret)
    assert "lambda" not in repr(config)
    ProducerConfig(auth_secret=dict)  # type: ignore[arg-type]  # it has no signature
    wrong_one: Any = lambda topic: topic  # noqa: E731
    with pytest.raises(ConfigError, match=r"^auth_secret must be text, or a function without arguments$"):
        ProducerConfig(auth_secret=wrong_one)


def test_tls_verifies_by_default() -> None:
    assert TlsConfig().verify is True


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file", "key_password", "server_name", "verify"])
def test_tls_of_wrong_types_is_refused(name: str) -> None:
    wrong_one: dict[str, Any] = {name: 5}
    with pytest.raises(ConfigError, match=f"{name} must be (a str|True or False), not "):
        TlsConfig(**wrong_one)


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file", "key_password", "server_name"])
def test_empty_texts_of_tls_are_refused(name: str) -> None:
    """An empty ``ca_file``, as from an unset variable, used to mean the system's authorities."""
    wrong_one: dict[str, Any] = {name: ""}
    with pytest.raises(ConfigError, match=name):
        TlsConfig(**wrong_one)


def test_a_key_without_its_certificate_is_refused() -> None:
    """It used to be ignored: the server refused the connection, or took it without a client certificate."""
    with pytest.raises(ConfigError, match="key_file needs cert_file"):
        TlsConfig(key_file="client.key")
    with pytest.raises(ConfigError, match="key_password needs cert_file"):
        TlsConfig(key_password="hush")


ENCRYPTED = str(CERTIFICATE.with_name("encrypted.key"))


@pytest.mark.parametrize(
    ("password", "problem"),
    [(None, "its key is encrypted: give key_password$"), ("not-the-one", "its key does not open with key_password$")],
)
def test_an_encrypted_key_needs_its_password(password: str | None, problem: str) -> None:
    """Without a password, OpenSSL used to ask for it at the terminal, and the program waited."""
    tls = TlsConfig(cert_file=str(CERTIFICATE), key_file=ENCRYPTED, key_password=password)
    with pytest.raises(ConfigError, match=rf"^tls: key_file {re.escape(repr(ENCRYPTED))} cannot be used: {problem}"):
        Producer(lookupd="a", tls=tls)
    Producer(lookupd="a", tls=dataclasses.replace(tls, key_password="xyzzy-key"))


def test_a_password_of_a_key_is_never_shown() -> None:
    tls = TlsConfig(cert_file=str(CERTIFICATE), key_file=ENCRYPTED, key_password="not-the-one")
    with pytest.raises(ConfigError) as caught:
        Producer(lookupd="a", tls=tls)
    shown = "".join(
        [*traceback.format_exception(caught.value), repr(tls), repr(ProducerConfig(lookupd=("a",), tls=tls))]
    )
    assert "not-the-one" not in shown
    for wrong_one in ("", "p" * 1025, b"bytes-of-it"):
        with pytest.raises(ConfigError, match="key_password must") as caught:
            TlsConfig(cert_file="c", key_password=wrong_one)  # type: ignore[arg-type]
        assert "pp" not in str(caught.value)
        assert "bytes-of-it" not in str(caught.value)


def test_the_oldest_version_of_tls_is_1_2_unless_another_is_given() -> None:
    assert ssl_context(TlsConfig()).minimum_version >= ssl.TLSVersion.TLSv1_2
    assert ssl_context(TlsConfig(minimum_version="1.3")).minimum_version is ssl.TLSVersion.TLSv1_3
    wrong_one: Any
    for wrong_one in ("1.1", 1.2, None):
        with pytest.raises(ConfigError, match=r"^minimum_version must be '1.2' or '1.3'"):
            TlsConfig(minimum_version=wrong_one)


def test_tls_of_nsqlookupd_needs_an_address_that_uses_it() -> None:
    """The user would believe that lookups are encrypted."""
    tls = TlsConfig(ca_file=str(CERTIFICATE))
    assert ProducerConfig(lookupd=("http://a", "https://b"), lookupd_tls=tls).lookupd_tls is tls
    addresses: list[dict[str, Any]] = [{"lookupd": ("http://a:4161",)}, {"nsqd": ("a:4150",)}, {}]
    for each in addresses:
        with pytest.raises(ConfigError, match=r"^lookupd_tls needs an address with https:// in lookupd"):
            ProducerConfig(**each, lookupd_tls=tls)
    for client in (AdminClient, sync.AdminClient, LookupClient):
        with pytest.raises(ConfigError, match=r"^lookupd_tls needs an address with https:// in lookupd"):
            client("http://a", lookupd_tls=tls)
        wrong_one: Any = True
        with pytest.raises(ConfigError, match=r"^lookupd_tls must be a TlsConfig, or an ssl.SSLContext"):
            client("https://a", lookupd_tls=wrong_one)


def test_a_file_for_nsqlookupd_that_cannot_be_used_is_named() -> None:
    tls = TlsConfig(ca_file="/nowhere/ca.pem")
    for client in (Producer, sync.Producer, AdminClient, sync.AdminClient, LookupClient):
        with pytest.raises(ConfigError, match=r"^lookupd_tls: ca_file '/nowhere/ca.pem' cannot be used: No such file"):
            client(lookupd="https://a", lookupd_tls=tls)


def test_a_context_is_used_as_it_is() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    assert ProducerConfig(tls=context).tls is context
    assert ssl_context(context) is context
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
    Producer(lookupd="a", tls=context)


def test_a_file_of_tls_may_be_a_path(tmp_path: Path) -> None:
    path: Any = tmp_path / "ca.pem"
    assert TlsConfig(ca_file=path).ca_file == str(path)


@pytest.mark.parametrize(("name", "reason"), [("missing.pem", "No such file"), ("no\0name", "null (byte|character)")])
@pytest.mark.parametrize("option", ["ca_file", "cert_file", "key_file"])
def test_a_tls_file_that_cannot_be_opened_is_named(option: str, name: str, reason: str) -> None:
    files: dict[str, Any] = {option: name} | ({"cert_file": str(CERTIFICATE)} if option == "key_file" else {})
    with pytest.raises(ConfigError, match=rf"tls: {option} {re.escape(repr(name))} cannot be used: .*{reason}"):
        Producer(lookupd="a", tls=TlsConfig(**files))


def test_a_certificate_without_its_key_is_said_to_lack_it() -> None:
    with pytest.raises(ConfigError, match=r"tls: cert_file .* cannot be used: .*private key"):
        Producer(lookupd="a", tls=TlsConfig(cert_file=str(CERTIFICATE)))
    Producer(lookupd="a", tls=TlsConfig(cert_file=str(CERTIFICATE), key_file=str(CERTIFICATE.with_suffix(".key"))))


# ------------------------------------------------------------ values


@pytest.mark.parametrize(
    "options",
    [
        {"initial": 0.0},
        {"initial": -1.0},
        {"initial": 2.0, "maximum": 1.0},
        {"maximum": math.inf},
        {"initial": 1e13, "maximum": 1e13},
        {"maximum": math.nan},
        {"factor": 0.9},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"initial": "1"},
        {"factor": None},
    ],
)
def test_a_back_off_that_is_none(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(options))} must be "):
        Backoff(**options)


def test_start_positions_have_the_wire_form() -> None:
    assert str(StartFrom.beginning()) == "virtual_queue:0"
    assert str(StartFrom.end()) == "special:-1"
    assert str(StartFrom.timestamp(1700000000.9)) == "timestamp:1700000000"
    assert str(StartFrom.timestamp(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))) == "timestamp:1700000000"
    assert str(StartFrom.timestamp(0)) == "timestamp:0"
    assert str(StartFrom.offset(66)) == "virtual_queue:66"
    assert str(StartFrom.count(6)) == "msgcount:6"
    assert StartFrom.offset(0) == StartFrom.beginning()
    assert str(StartFrom.offset(2**63 - 1)) == f"virtual_queue:{2**63 - 1}"
    assert str(StartFrom.timestamp(9223372036)) == "timestamp:9223372036"


@pytest.mark.parametrize(
    "make",
    [
        lambda: StartFrom.offset(-1),
        lambda: StartFrom.count(-1),
        lambda: StartFrom.timestamp(-1),
        lambda: StartFrom("special", 0),
        lambda: StartFrom("somewhere", 0),  # type: ignore[arg-type]
        lambda: StartFrom.offset(1.5),  # type: ignore[arg-type]
        lambda: StartFrom.offset("7"),  # type: ignore[arg-type]
        lambda: StartFrom.count(True),
        lambda: StartFrom.offset(2**63),
        lambda: StartFrom.count(10**5000),
        lambda: StartFrom.timestamp(1e300),
        lambda: StartFrom.timestamp(10**400),
        lambda: StartFrom.timestamp(253402214400),
        lambda: StartFrom.timestamp(datetime.max.replace(tzinfo=UTC)),
        lambda: StartFrom.timestamp(math.nan),
        lambda: StartFrom.timestamp(math.inf),
        lambda: StartFrom.timestamp("now"),  # type: ignore[arg-type]
        lambda: StartFrom.timestamp(datetime(2023, 1, 1) + timedelta(0)),  # noqa: DTZ001 - without a zone on purpose
    ],
)
def test_a_start_position_that_is_none(make: Any) -> None:  # noqa: ANN401 - a maker
    with pytest.raises(ConfigError):
        make()


BAD_HOSTS = ["a..b", ".a", "a" * 64, "a." * 127 + "a", "a\x00b", "a\x1bb", "\ud800", "\u00fc" * 64, ".", "a.."]


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_host_that_no_resolver_takes_is_refused_where_it_is_given(host: str) -> None:
    for option in ("nsqd", "lookupd"):
        with pytest.raises(ConfigError, match="address"):
            ClientConfig.of({option: f"{host}:4150"})
    with pytest.raises(ConfigError, match="server_name"):
        TlsConfig(server_name=host)


@pytest.mark.parametrize("option", ["client_id", "auth_secret", "tag"])
def test_text_that_utf_8_cannot_carry_is_refused_and_not_shown(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be text that UTF-8 can encode") as caught:
        ConsumerConfig.of({option: "pass\udc80word"})
    assert "word" not in str(caught.value)


def test_a_tag_has_a_longest_size() -> None:
    assert ConsumerConfig(tag="\u00fc" * 50).tag
    with pytest.raises(ConfigError, match="tag must have at most 100 bytes"):
        ConsumerConfig(tag="\u00fc" * 51)


@pytest.mark.parametrize("option", ["nsqd", "lookupd"])
@pytest.mark.parametrize(
    "address", ["me:hunter2@host:4150", "http://me:hunter2@[host", "me:hunter2%40host:1", "host:1/?password=hunter2"]
)
def test_a_password_in_an_address_is_refused_and_not_shown(option: str, address: str) -> None:
    with pytest.raises(ConfigError, match="not shown here") as caught:
        ClientConfig.of({option: address})
    assert "hunter2" not in str(caught.value)


def none() -> None: ...


def two(one: object, other: object) -> None: ...


def generator(event: object) -> Iterator[object]:
    yield event


class Sink:
    def __call__(self, event: object, more: object) -> None: ...

    def take(self, event: object, more: object = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (none, r"^on_event must take one argument, the event; none\(\) -> .* does not: too many positional arguments$"),
        (
            two,
            r"^on_event must take one argument, the event; two\(one: .* does not: missing a required argument: 'other'",
        ),
        (Sink(), r"^on_event must take one argument, the event; Sink\(event.* does not: missing a required argument"),
        (generator, "^on_event must be a plain function, not a generator, which would never run$"),
    ],
)
def test_on_event_takes_one_argument(function: Any, text: str) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(ConfigError, match=text):
        ProducerConfig(on_event=function)


@pytest.mark.parametrize(
    "function", [print, [].append, Sink().take, lambda *events: events, dict, functools.partial(two, 1)]
)
def test_on_event_may_take_more_than_is_given(function: Any) -> None:  # noqa: ANN401 - of any kind
    assert ConsumerConfig(on_event=function).on_event is function
