"""Options from environment variables and a TOML file: what they mean, which one wins, and what errors say."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq_ha import (
    Backoff,
    ClientConfig,
    Compression,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    StartFrom,
    TlsConfig,
    sync,
)
from nsq_ha.admin import AdminClient
from nsq_ha.options import FILE_VARIABLE
from nsq_ha.options.environment import config_of, settings_of
from nsq_ha.options.ext_filter import ExtFilter
from nsq_ha.options.types import Backoff as BackoffFields

LOOKUPD = {"NSQ_HA_LOOKUPD": "a:1"}
KINDS = [ProducerConfig, ConsumerConfig]

# The text of a variable, and the value that it means.
CLIENT: dict[str, tuple[str, object]] = {
    "lookupd": ("a:1, https://b:2", ("http://a:1", "https://b:2")),
    "nsqd": ("a:4150,b:4150", ("a:4150", "b:4150")),
    "connect_timeout": ("2.5", 2.5),
    "lookup_timeout": ("3", 3.0),
    "lookup_interval": ("1e1", 10.0),
    "heartbeat_interval": ("30", 30.0),
    "output_buffer_timeout": ("0.5", 0.5),
    "output_buffer_bytes": ("64", 64),
    "close_timeout": ("1", 1.0),
    "max_frame_bytes": ("2048", 2048),
    "compression": ("snappy", Compression.SNAPPY),
    "deflate_level": ("1", 1),
    "auth_secret": (" 12 ", " 12 "),
    "client_id": ("7", "7"),
    "hostname": ("me", "me"),
    "user_agent": ("shop/1 2", "shop/1 2"),
    "topology_region": ("eu-west-1", "eu-west-1"),
    "topology_zone": ("eu-west-1a", "eu-west-1a"),
    "local_addr": ("10.0.0.1", "10.0.0.1"),
}
PRODUCER: dict[str, tuple[str, object]] = {
    "publish_timeout": ("5", 5.0),
    "sharding": ("java", "java"),
    "strategy": ("least_loaded", "least_loaded"),
    "trace": ("orders, letters", frozenset({"orders", "letters"})),
    "on_unreachable": ("fail", "fail"),
    "window": ("5", 5),
    "idle_timeout": ("60", 60.0),
    "connections_per_nsqd": ("3", 3),
    "compress_body": ("lz4", "lz4"),
    "max_message_bytes": ("5000000", 5_000_000),
    "max_batch_bytes": ("6000000", 6_000_000),
}
CONSUMER: dict[str, tuple[str, object]] = {
    "ordered": ("Yes", True),
    "partitions": ("3, 1", (1, 3)),
    "start_from": ("offset:12", StartFrom.offset(12)),
    "max_in_flight": ("10", 10),
    "max_rate": ("2.5", 2.5),
    "max_in_flight_bytes": ("1000", 1000),
    "msg_timeout": ("900", 900.0),
    "auto_touch": ("5.5", 5.5),
    "sample_rate": ("5", 5),
    "tag": ("blue", "blue"),
    "skip_header": ("test", "test"),
    "decompress": ("no", False),
    "max_decompressed_bytes": ("1000", 1000),
    "start_timeout": ("0", 0.0),
    "max_attempts": ("3", 3),
    "on_give_up": ("drop", "drop"),
    "dead_letter_topic": ("dead", "dead"),
}
GROUPS: dict[str, tuple[dict[str, str], object]] = {
    "ext_filter": ({"key": "k", "value": "v"}, ExtFilter.equals("k", "v")),
    "backoff": ({"initial": "0.1", "jitter": "0"}, Backoff(initial=0.1, jitter=0.0)),
    "handler_backoff": ({"maximum": "10"}, Backoff(1.0, 10.0, 2.0, 0.3)),
    "requeue_backoff": ({"maximum": "10"}, dataclasses.replace(ConsumerConfig().requeue_backoff, maximum=10.0)),
    "lookupd_tls": ({"ca_file": "ca.pem"}, TlsConfig(ca_file="ca.pem")),
    "tls": (
        {"ca_file": "ca.pem", "verify": "off", "minimum_version": "1.3", "server_name": ""},
        TlsConfig(ca_file="ca.pem", verify=False, minimum_version="1.3"),
    ),
}
WITHOUT_TEXT = {"on_event"}
SINGLE: list[tuple[type[ClientConfig], str, str, object]] = [
    *((kind, name, *entry) for kind in KINDS for name, entry in CLIENT.items()),
    *((ProducerConfig, name, *entry) for name, entry in PRODUCER.items()),
    *((ConsumerConfig, name, *entry) for name, entry in CONSUMER.items()),
]
START = [
    ("beginning", StartFrom.beginning()),
    ("end", StartFrom.end()),
    ("count:5", StartFrom.count(5)),
    ("2026-01-31T09:00Z", StartFrom.timestamp(datetime(2026, 1, 31, 9, tzinfo=UTC))),
    ("0=end, 3=count:5", {0: StartFrom.end(), 3: StartFrom.count(5)}),
]


def options(kind: type[ClientConfig], environ: Mapping[str, str], toml: str = "") -> dict[str, object]:
    return settings_of(kind, environ, toml, "nsq.toml").options


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NSQ_HA_")]:
        monkeypatch.delenv(name)


# ------------------------------------------------------------ values


def test_the_tables_name_every_option() -> None:
    given = CLIENT.keys() | PRODUCER.keys() | CONSUMER.keys() | GROUPS.keys() | WITHOUT_TEXT
    assert given == {field.name for kind in KINDS for field in dataclasses.fields(kind)}


def test_a_variable() -> None:
    for kind, name, text, value in SINGLE:
        assert options(kind, {f"NSQ_HA_{name.upper()}": text}) == {name: value}


def test_a_key_of_the_file() -> None:
    for kind, name, text, value in SINGLE:
        listed = list(value) if isinstance(value, tuple | frozenset) else value
        quoted = isinstance(value, str | StartFrom | Compression)
        shown = f'"{text}"' if quoted else str(listed).lower().replace("'", '"')
        assert options(kind, {}, f"{name} = {shown}") == {name: value}
        table = {ProducerConfig: "producer", ConsumerConfig: "consumer"}[kind]
        assert options(kind, {}, f"[{table}]\n{name} = {shown}") == {name: value}


@pytest.mark.parametrize("name", GROUPS)
def test_an_option_that_consists_of_several(name: str) -> None:
    parts, value = GROUPS[name]
    assert options(ConsumerConfig, {f"NSQ_HA_{name}_{part}".upper(): text for part, text in parts.items()}) == {
        name: value
    }
    words = {"off": "false", "": '""', "ca.pem": '"ca.pem"', "1.3": '"1.3"', "k": '"k"', "v": '"v"'}
    lines = "\n".join(f"{part} = {words.get(text, text)}" for part, text in parts.items())
    assert options(ConsumerConfig, {}, f"[{name}]\n{lines}") == {name: value}
    assert options(ConsumerConfig, {}, f"[consumer.{name}]\n{lines}") == {name: value}


@pytest.mark.parametrize(
    ("environ", "toml"), [({"NSQ_HA_HANDLER_BACKOFF": "off"}, ""), ({}, "handler_backoff = false")]
)
def test_a_group_with_a_default_can_be_turned_off(environ: dict[str, str], toml: str) -> None:
    assert options(ConsumerConfig, environ, toml) == {"handler_backoff": None}
    assert options(ConsumerConfig, {"NSQ_HA_HANDLER_BACKOFF": ""}, toml) == {"handler_backoff": None}
    assert options(ConsumerConfig, {"NSQ_HA_HANDLER_BACKOFF": "on"}, toml) == {
        "handler_backoff": ConsumerConfig().handler_backoff
    }


@pytest.mark.parametrize(("text", "value"), START)
def test_start_positions(text: str, value: object) -> None:
    assert options(ConsumerConfig, {"NSQ_HA_START_FROM": text}) == {"start_from": value}


def test_start_positions_in_a_file() -> None:
    assert options(ConsumerConfig, {}, "start_from = 2026-01-31T09:00:00Z") == {"start_from": START[3][1]}
    toml = '[consumer.start_from]\n0 = "end"\n3 = "count:5"'
    assert options(ConsumerConfig, {}, toml) == {"start_from": START[4][1]}


@pytest.mark.parametrize("name", ["AUTO_TOUCH", "MAX_IN_FLIGHT", "SKIP_HEADER", "LOOKUPD", "START_FROM", "PARTITIONS"])
def test_a_variable_that_is_not_utf_8_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^NSQ_HA_{name}"):
        options(ConsumerConfig, {f"NSQ_HA_{name}": "1\udcff"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("close_timeout", "500ms", 0.5),
        ("close_timeout", "1.5 S", 1.5),
        ("msg_timeout", "2m", 120.0),
        ("msg_timeout", "1h", 3600.0),
        ("max_frame_bytes", "64k", 65536),
        ("max_in_flight_bytes", "1g", 2**30),
        ("auto_touch", "30s", 30.0),
    ],
)
def test_times_and_sizes_may_have_a_unit(name: str, text: str, value: float) -> None:
    assert options(ConsumerConfig, {f"NSQ_HA_{name.upper()}": text}) == {name: value}


def test_a_float_of_another_library_is_a_number() -> None:
    class Float(float):
        """As numpy's float64."""

    assert ClientConfig(close_timeout=Float(2)).close_timeout == 2


def test_an_empty_text_means_none() -> None:
    names = ["MSG_TIMEOUT", "TAG", "PARTITIONS", "START_FROM", "AUTH_SECRET", "TLS", "ON_GIVE_UP", "MAX_ATTEMPTS"]
    expected = {name.lower(): None for name in names}
    assert options(ConsumerConfig, {f"NSQ_HA_{name}": "" for name in names}) == expected
    assert options(ConsumerConfig, {}, "".join(f'{name.lower()} = ""\n' for name in names)) == expected
    assert options(ConsumerConfig, {"NSQ_HA_LOOKUPD": "", "NSQ_HA_CLIENT_ID": ""}) == {"lookupd": (), "client_id": ""}


def test_tls_may_be_switched() -> None:
    assert options(ProducerConfig, {"NSQ_HA_TLS": "true"}) == {"tls": TlsConfig()}
    assert options(ProducerConfig, {}, "[tls]") == {"tls": TlsConfig()}
    assert options(ProducerConfig, {"NSQ_HA_TLS": "off", "NSQ_HA_TLS_CA_FILE": "a"}) == {"tls": None}
    assert options(ProducerConfig, {"NSQ_HA_TLS": "off"}, '[tls]\nca_file = "a"') == {"tls": None}
    assert options(ProducerConfig, {}, '[tls]\nca_file = "a"\n[producer]\ntls = false') == {"tls": None}
    assert options(ProducerConfig, {"NSQ_HA_TLS_CA_FILE": "a"}, "tls = false") == {"tls": TlsConfig(ca_file="a")}


# ------------------------------------------------------------ which one wins


def test_a_keyword_wins_over_a_variable_and_a_variable_over_the_file() -> None:
    toml = 'lookupd = "file:1"\nwindow = 1\nidle_timeout = 1\nclose_timeout = 1\n[producer]\nidle_timeout = 2'
    environ = {"NSQ_HA_WINDOW": "3", "NSQ_HA_CLOSE_TIMEOUT": "3"}
    found = config_of(ProducerConfig, settings_of(ProducerConfig, environ, toml), {"close_timeout": 4.0})
    assert (found.lookupd, found.idle_timeout, found.window, found.close_timeout) == (("http://file:1",), 2, 3, 4.0)
    assert found.publish_timeout == ProducerConfig().publish_timeout


def test_parts_of_an_option_come_from_both() -> None:
    toml = '[tls]\nca_file = "file"\ncert_file = "file"\n[producer.tls]\ncert_file = "table"'
    found = options(ProducerConfig, {"NSQ_HA_TLS_KEY_FILE": "variable"}, toml)
    assert found == {"tls": TlsConfig(ca_file="file", cert_file="table", key_file="variable")}


@pytest.mark.parametrize(("weak", "strong"), [("lookupd", "nsqd"), ("nsqd", "lookupd")])
def test_an_address_replaces_those_of_the_other_kind(weak: str, strong: str) -> None:
    variables = {f"NSQ_HA_{strong.upper()}": "a:1"}
    assert options(ConsumerConfig, variables, f'{weak} = "b:2"').keys() == {strong}
    assert options(ConsumerConfig, {}, f'{weak} = "b:2"\n[consumer]\n{strong} = "a:1"').keys() == {strong}
    weaker = settings_of(ConsumerConfig, {f"NSQ_HA_{weak.upper()}": "b:2"})
    assert getattr(config_of(ConsumerConfig, weaker, {strong: "a:1"}), weak) == ()


def test_options_of_the_other_client_are_left_out() -> None:
    toml = "window = 5\nmax_in_flight = 5\n[producer]\nwindow = 6\n[consumer]\nmax_in_flight = 6"
    environ = {"NSQ_HA_STRATEGY": "round_robin", "NSQ_HA_TAG": "blue"}
    assert options(ProducerConfig, environ, toml) == {"window": 6, "strategy": "round_robin"}
    assert options(ConsumerConfig, environ, toml) == {"max_in_flight": 6, "tag": "blue"}
    assert options(ClientConfig, environ, toml) == {}


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("environ", "toml", "text"),
    [
        ({"NSQ_HA_WINDOW": "many"}, "", r"^NSQ_HA_WINDOW must be a whole number, 1\.\.100000, not 'many'$"),
        ({"NSQ_HA_WINDOW": ""}, "", "^NSQ_HA_WINDOW must be a whole number"),
        (
            {"NSQ_HA_CLOSE_TIMEOUT": "inf"},
            "",
            r"^NSQ_HA_CLOSE_TIMEOUT must be 0\.001\.\.86400 seconds, such as 5s or 500ms, not 'inf'$",
        ),
        ({"NSQ_HA_LOOKUPD": "two words:1"}, "", "^NSQ_HA_LOOKUPD: lookupd address 'two words:1'"),
        ({"NSQ_HA_COMPRESSION": "zip"}, "", "^NSQ_HA_COMPRESSION must be 'none', 'snappy' or 'deflate', not 'zip'$"),
        ({"NSQ_HA_ON_EVENT": "f"}, "", "^NSQ_HA_ON_EVENT must be a function or None, not 'f'$"),
        ({"NSQ_HA_BACKOFF": "1"}, "", "^NSQ_HA_BACKOFF has no value of its own: set NSQ_HA_BACKOFF_INITIAL, "),
        (
            {"NSQ_HA_BACKOFF_INITIAL": "x"},
            "",
            "^NSQ_HA_BACKOFF_INITIAL must be above 0 and up to [0-9]+ seconds, such as 5s or 500ms, not 'x'$",
        ),
        ({"NSQ_HA_TLS": "maybe"}, "", "^NSQ_HA_TLS has no value .* NSQ_HA_TLS_CA_FILE, .*, or true or false$"),
        ({"NSQ_HA_TLS_VERIFY": "maybe"}, "", "^NSQ_HA_TLS_VERIFY must be true or false, not 'maybe'$"),
        ({"NSQ_HA_TLS_KEY_FILE": "k"}, "[tls]", "^NSQ_HA_TLS_KEY_FILE: key_file needs cert_file"),
        ({}, "window = 0", r"^window in nsq\.toml must be a whole number, 1\.\.100000, not 0$"),
        ({}, 'window = "5"', r"^window in nsq\.toml must be a whole number, 1\.\.100000, not '5'$"),
        ({}, "[producer]\nwindow = 0", r"^producer\.window in nsq\.toml must be"),
        ({}, "backoff = 1", r"^backoff in nsq\.toml must be a table with any of initial, "),
        (
            {},
            "[backoff]\ninitial = -1",
            r"^backoff\.initial in nsq\.toml must be above 0 and up to [0-9]+ seconds, not -1$",
        ),
        ({}, "producer = 1", r"^producer in nsq\.toml must be a table, as in \[producer\], not int$"),
        ({}, "windou = 1", r"^unknown option 'windou' in nsq\.toml: did you mean 'window'\?$"),
        ({}, 'lookupd_http_addresses = ["a"]', r"^unknown option .* in nsq\.toml: did you mean 'lookupd'\?$"),
        ({}, "[tls]\nca_fil = 1", r"^unknown option 'tls\.ca_fil' in nsq\.toml: did you mean 'tls\.ca_file'"),
        ({}, "[producer]\nmax_in_flight = 1", r"^unknown option 'producer\.max_in_flight' in nsq\.toml"),
        ({}, "[consumer]\nwindow = 1", r"^unknown option 'consumer\.window' in nsq\.toml"),
        ({}, "[xyz]", r"^unknown option 'xyz' in nsq\.toml; known are: auth_secret, "),
        ({}, "[producr]\nwindow = 3", r"^unknown option 'producr' in nsq\.toml: did you mean 'producer'\?$"),
        ({}, "window =", r"^nsq\.toml is not TOML: Invalid value \(at "),
        ({}, "window = " + "9" * 5000, r"^nsq\.toml is not TOML: "),
        ({}, "window = 0x" + "f" * 5000, r"^window in nsq\.toml must be a whole number"),
        ({}, "[backoff]\ninitial = 0x" + "f" * 5000, r"^backoff\.initial in nsq\.toml must be above 0"),
        ({}, "window = " + "[" * 20000, r"^nsq\.toml is not TOML: "),
    ],
)
def test_an_error_names_its_place(environ: dict[str, str], toml: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        settings_of(ProducerConfig, environ, toml, "nsq.toml")


def test_options_that_do_not_fit_each_other_are_all_named() -> None:
    found = settings_of(ConsumerConfig, {**LOOKUPD, "NSQ_HA_ON_GIVE_UP": "drop"}, 'tag = "a"', "nsq.toml")
    with pytest.raises(ConfigError, match=r"needs max_attempts.*also set: tag in nsq\.toml, NSQ_HA_.*NSQ_HA_ON_GIVE"):
        config_of(ConsumerConfig, found, {})
    with pytest.raises(ConfigError, match=r"^unknown option 'tagg': did you mean 'tag'\?$"):
        config_of(ConsumerConfig, found, {"tagg": "a"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NSQ_HA_LOOKUP", "NSQ_HA_LOOKUPD"),
        ("NSQ_HA_WINDOU", "NSQ_HA_WINDOW"),
        ("NSQ_HA_TLS_CAFILE", "NSQ_HA_TLS_CA_FILE"),
        ("NSQ_HA_MAX_INFLIGHT", "NSQ_HA_MAX_IN_FLIGHT"),
        ("NSQ_HA_CONFIGS", "NSQ_HA_CONFIG"),
    ],
)
@pytest.mark.parametrize("kind", [*KINDS, ClientConfig])
def test_a_misspelt_variable(kind: type[ClientConfig], name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"^unknown environment variable {name}: did you mean {meant}"):
        settings_of(kind, {name: "1"})


OF_A_SERVICE = ("PORT", "PORT_4161_TCP", "PORT_4161_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP")
"""What Kubernetes appends to the name of a service for the variables of each container."""


@pytest.mark.parametrize(
    "name",
    [
        *("NSQ_HA_FULL", "NSQ_HA_TEST_LOOKUPD", "NSQ_HA_TEST_TLS_CA", "NSQ_HA_HOME", "NSQ_HA_", "LOOKUP", "PATH"),
        *(f"{name}_{ending}" for name in ("NSQ_HA", "NSQ_HA_LOOKUPD", "NSQ_HA_NSQD") for ending in OF_A_SERVICE),
    ],
)
def test_variables_of_others_are_ignored(name: str) -> None:
    assert options(ProducerConfig, {name: "x"}) == {}


@pytest.mark.parametrize(
    ("environ", "toml"),
    [
        ({"NSQ_HA_AUTH_SECRET": "hidden" * 20000}, ""),
        ({"NSQ_HA_AUTH_SECRET": "hidden\udcff"}, ""),
        ({"NSQ_HA_TLS_KEY_PASSWORD": "hidden"}, ""),
        ({"NSQ_HA_TLS": "hidden"}, ""),
        ({"NSQ_HA_AUTH_SECRT": "hidden"}, ""),
        ({"NSQ_HA_LOOKUPD": "http://user:hidden@host:1"}, ""),
        ({}, 'auth_secret = ["hidden"]'),
        ({}, 'auth_secert = "hidden"'),
        ({}, 'auth_secret = "hidden'),
        ({}, "auth_secret = hidden"),
        ({}, 'tls = "hidden"'),
        ({}, '[tls]\nkey_password = "hidden"'),
    ],
)
def test_no_error_shows_a_secret(environ: dict[str, str], toml: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(ProducerConfig, environ, toml, "nsq.toml")
    shown = repr(caught.getrepr(style="native")) + str(caught.value)
    assert "hidden" not in shown
    assert caught.value.__cause__ is None


def test_no_secret_is_shown() -> None:
    found = settings_of(ProducerConfig, {**LOOKUPD, "NSQ_HA_AUTH_SECRET": "hidden"})
    assert "hidden" not in repr(found)
    assert "hidden" not in repr(config_of(ProducerConfig, found, {}))


# ------------------------------------------------------------ anything

NAMES = [f"NSQ_HA_{name.upper()}" for name in (*CLIENT, *PRODUCER, *CONSUMER, *WITHOUT_TEXT, "tls")] + [
    f"NSQ_HA_{group}_{part}".upper()
    for group, kind in (("backoff", BackoffFields), ("tls", TlsConfig))
    for part in (field.name for field in dataclasses.fields(kind))
]
TEXTS = st.one_of(
    st.text(),
    st.sampled_from([text for _, _, text, _ in SINGLE] + [text for text, _ in START] + ["1=end", "nan", "=", ",", ":"]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
)
HUGE = "0x" + "f" * 5000
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
    st.sampled_from(
        ['"beginning"', '"1"', HUGE, "2026-01-31", "2026-01-31T09:00:00", "09:00:00", "[[]]", "{a = 1}", "{}"]
    ),
    st.text().map(lambda text: '"' + "".join(f"\\U{ord(c):08x}" for c in text if not 0xD800 <= ord(c) < 0xE000) + '"'),
)
KEYS = st.sampled_from([name.removeprefix("NSQ_HA_").lower() for name in NAMES] + ["tls.ca_file", "start_from.0"])
LINES = st.dictionaries(KEYS, SCALARS, max_size=4).map(
    lambda lines: "\n".join(f"{key} = {str(value).lower()}" for key, value in lines.items())
)
DOCUMENTS = st.one_of(
    st.text(),
    st.tuples(LINES, LINES, LINES).map(lambda parts: f"{parts[0]}\n[producer]\n{parts[1]}\n[consumer]\n{parts[2]}"),
)


@settings(max_examples=2 * settings.get_profile("nsq_ha").max_examples)
@given(
    kind=st.sampled_from([*KINDS, ClientConfig]),
    environ=st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text().map("NSQ_HA_".__add__)), TEXTS, max_size=5),
    toml=DOCUMENTS,
    file=st.text(),
)
def test_anything_gives_options_or_a_config_error(
    kind: type[ClientConfig], environ: dict[str, str], toml: str, file: str
) -> None:
    try:
        config_of(kind, settings_of(kind, environ, toml, file), {})
    except ConfigError as error:
        str(error).encode()


# ------------------------------------------------------------ the process

Make = "Callable[[], Any]"
FROM_ENV: dict[str, Callable[..., Any]] = {
    "Producer": Producer.from_env,
    "Consumer": lambda **options: Consumer.from_env("t", "c", **options),
    "sync.Producer": sync.Producer.from_env,
    "sync.Consumer": lambda **options: sync.Consumer.from_env("t", "c", **options),
}


@pytest.mark.parametrize("name", FROM_ENV)
def test_a_client_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make = FROM_ENV[name]
    with pytest.raises(ConfigError, match="set NSQ_HA_LOOKUPD, or lookupd in the file that NSQ_HA_CONFIG names"):
        make()
    file = tmp_path / "nsq.toml"
    file.write_text('\ufefflookupd = ["a:1"]\nclose_timeout = 1\nconnect_timeout = 1\n', "utf-8")
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    monkeypatch.setenv("NSQ_HA_CONNECT_TIMEOUT", "2")
    config = make(lookup_timeout=3).config
    assert config.lookupd == ("http://a:1",)
    assert (config.close_timeout, config.connect_timeout, config.lookup_timeout) == (1, 2, 3)
    with pytest.raises(ConfigError, match="did you mean 'lookupd'"):
        make(lookup="a:1")
    with pytest.raises(ConfigError, match="close_timeout must be"):
        make(close_timeout=0)


@pytest.mark.parametrize("client", [AdminClient, sync.AdminClient])
def test_an_admin_client_from_the_environment(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="set NSQ_HA_LOOKUPD"):
        client.from_env()
    assert isinstance(client.from_env(lookupd="a:1", question_timeout=1.0), client)
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "a:1,b:2")
    assert isinstance(client.from_env(), client)
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "two words")
    with pytest.raises(ConfigError, match="NSQ_HA_LOOKUPD: lookupd address"):
        client.from_env()


def test_a_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'client_id = "\xe9"')
    for file, reason in [
        (str(tmp_path / "none.toml"), "No such file"),
        (str(tmp_path), "directory"),
        (str(latin), "not encoded as UTF-8"),
    ]:
        monkeypatch.setenv(FILE_VARIABLE, file)
        with pytest.raises(ConfigError, match=f"NSQ_HA_CONFIG names the file '.*', which cannot be read: .*{reason}"):
            Producer.from_env()
