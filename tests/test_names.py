"""Names go into command lines as they stand: nothing may pass that could break out of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import ConfigError
from nsq_ha.names import MAX_PARTITION_ID, check_channel, check_partition, check_topic, is_valid_name

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
