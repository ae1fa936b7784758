"""Names and addresses are checked before use: no name may break out of a command line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import ConfigError
from nsq_ha.admin import AdminClient
from nsq_ha.options.checks import (
    MAX_PARTITION_ID,
    check_channel,
    check_partition,
    check_topic,
    is_valid_name,
    lookupd_urls,
    nsqd_addresses,
)

LEGAL = ["a", "A-b_c.d9", "x" * 64, "t#ephemeral", "x" * 54 + "#ephemeral", ".", "-"]
ILLEGAL = [
    "",
    "x" * 65,
    "x" * 55 + "#ephemeral",
    "#ephemeral",
    "two words",
    "line\nbreak",
    "end\n",
    "\ttab",
    "a/b",
    "a#b",
    "t#ephemeral#ephemeral",
    "t#Ephemeral",
    "größe",
    "٣",
    "\0",
    "a\ud800",
]


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_name(name: str) -> None:
    assert is_valid_name(name)
    assert check_topic(name) is name
    assert check_channel(name) is name


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_name(name: str) -> None:
    assert not is_valid_name(name)
    with pytest.raises(ConfigError, match="topic"):
        check_topic(name)
    with pytest.raises(ConfigError, match="channel"):
        check_channel(name)


def test_an_error_does_not_repeat_a_megabyte() -> None:
    with pytest.raises(ConfigError) as caught:
        check_topic("x" * 1_000_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", [None, 7, b"bytes", ["a"], object()])
def test_what_is_no_text(name: object) -> None:
    with pytest.raises(ConfigError, match="must be a str"):
        check_topic(name)


@given(st.text(max_size=70))
def test_what_is_legal_stays_one_word_of_a_line(name: str) -> None:
    if is_valid_name(name):
        line = f"PUB {name} 0\n".encode("ascii")
        assert line.split() == [b"PUB", name.encode(), b"0"]
        assert line.count(b"\n") == 1


@pytest.mark.parametrize("partition", [0, 1, 254, MAX_PARTITION_ID])
def test_a_legal_partition(partition: int) -> None:
    assert check_partition(partition) == partition


@pytest.mark.parametrize("partition", [-1, -2, MAX_PARTITION_ID + 1, 10_000, True, False, "0", 1.0, None])
def test_an_illegal_partition(partition: object) -> None:
    with pytest.raises(ConfigError, match="partition"):
        check_partition(partition)


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ("localhost", ["http://localhost:4161"]),
        ("localhost:5161", ["http://localhost:5161"]),
        ("http://localhost:5161/", ["http://localhost:5161"]),
        (" http://a:1 , b:2 ", ["http://a:1", "http://b:2"]),
        (["a:1", "http://a:1", "b"], ["http://a:1", "http://b:4161"]),
        ("https://lookup.example", ["https://lookup.example"]),
        ("http://[::1]:4161", ["http://[::1]:4161"]),
        ("http://[fe80::1%25eth0]:4161, [fe80::1%lo]:1", ["http://[fe80::1%eth0]:4161", "http://[fe80::1%lo]:1"]),
        ("HTTP://a:1, Https://b:2", ["http://a:1", "https://b:2"]),
        ("[::1]", ["http://[::1]:4161"]),
        ((), []),
    ],
)
def test_addresses_of_nsqlookupds(given: Any, urls: list[str]) -> None:  # noqa: ANN401 - both forms of the option
    assert lookupd_urls(given) == tuple(urls)


@pytest.mark.parametrize(
    "address",
    ["", " ", ",", "a:", ":1", "a:0", "a:65536", "a:1x", "a:-1", "a:1/path", "ftp://a:1", "http://", "a b:1", "a\n:1",
     "http://user@a:1", "http://a:1?x=1", "a:\N{FULLWIDTH DIGIT ONE}", "::1", "::1:4161", "[::1", "[::1]x:1", "[::1]1",
     "[]:1", "[a]:1", "a]:1", "http://::1:4161", "a:0000012345678", "a:000004161"],
)  # fmt: skip
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="lookupd address"):
        lookupd_urls(address)


@pytest.mark.parametrize(
    ("address", "wrong"), [("http://:4161", "no host"), ("a:http", "no legal port"), ("::1:4161", "in brackets, as in")]
)
def test_an_address_says_which_part_of_it_is_wrong(address: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        lookupd_urls(address)


@pytest.mark.parametrize("given", [None, 4161])
def test_what_is_no_address_says_what_to_give(given: Any) -> None:  # noqa: ANN401 - what a setting may be by mistake
    with pytest.raises(ConfigError, match=r"such as 'http://127\.0\.0\.1:4161', or several, not "):
        lookupd_urls(given)
    with pytest.raises(ConfigError, match=rf"lookupd must be the HTTP address of an nsqlookupd.*not {given}"):
        AdminClient(given)


def test_addresses_of_nsqds() -> None:
    assert nsqd_addresses("a:1, [::1]:2 ,a:1") == ("a:1", "[::1]:2")
    for wrong_one in (
        "a",
        "a:",
        ":1",
        "a:0",
        "a:70000",
        "http://a:1",
        "::1:4150",
        "[::1]",
        "[::1:2",
        "a:0000012345678",
    ):
        with pytest.raises(ConfigError, match="nsqd address"):
            nsqd_addresses(wrong_one)
