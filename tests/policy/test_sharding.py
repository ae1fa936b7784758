"""Key to partition: the vectors that were made by running the other clients."""

import json
from pathlib import Path
from typing import Any

import pytest

from nsq_ha.errors import ConfigError
from nsq_ha.options.config import Sharding
from nsq_ha.policy.sharding import (
    NO_KEY,
    JavaInt,
    Key,
    hasher,
    java,
    java_hash_code,
    lane_key,
    modulo,
    murmur3,
    partition_for,
)

NO_UTF8 = (
    "a sharding key must be encodable as UTF-8: "
    "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"
)

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "sharding.json").read_text(encoding="utf-8"))


def _java_key(vector: dict[str, Any]) -> str | int:
    if vector["type"] == "string":
        return bytes.fromhex(vector["key_utf8_hex"]).decode()
    return JavaInt(vector["key"]) if vector["type"] == "int" else int(vector["key"])


@pytest.mark.parametrize("vector", VECTORS["go_murmur3_32"]["vectors"], ids=lambda v: v["key_hex"][:24] or "empty")
def test_murmur3_agrees_with_the_go_client(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["key_hex"])
    assert murmur3(key) == vector["hash_u32"]
    assert {n: partition_for(key, int(n)) for n in vector["partition"]} == vector["partition"]


@pytest.mark.parametrize(
    # Keys in hexadecimal: mutmut does not find tests with escape sequences in their names.
    "vector",
    VECTORS["java_hashcode"]["vectors"],
    ids=lambda v: f"{v['type']}-{v.get('key_utf8_hex', v['key'])!s:.24}",
)
def test_java_agrees_with_the_java_client(vector: dict[str, Any]) -> None:
    key = _java_key(vector)
    assert java_hash_code(key) == vector["hash_i32"]
    assert {n: partition_for(key, int(n), "java") for n in vector["partition"]} == vector["partition"]


@pytest.mark.parametrize("vector", VECTORS["php_modulo"]["vectors"], ids=lambda v: str(v["key"]))
def test_modulo_agrees_with_the_php_client(vector: dict[str, Any]) -> None:
    assert {n: partition_for(vector["key"], int(n), "modulo") for n in vector["partition"]} == vector["partition"]


def test_the_vectors_are_all_there() -> None:
    counts = {rule: len(VECTORS[rule]["vectors"]) for rule in ("go_murmur3_32", "java_hashcode", "php_modulo")}
    assert all(count >= 10 for count in counts.values()), counts


def test_an_int_is_its_decimal_text_for_murmur3_and_str_is_utf8() -> None:
    assert murmur3(12345) == murmur3("12345") == murmur3(b"12345") == 329585043
    assert murmur3("订单42") == murmur3("订单42".encode()) == 2828926490


def test_a_function_of_ones_own_is_taken() -> None:
    assert partition_for("abc", 2, len) == 1
    assert hasher(len)("abc") == 3


@pytest.mark.parametrize(
    ("rule", "key", "text"),
    [
        ("murmur3", True, "a sharding key must be str, bytes or int, not bool"),
        ("murmur3", 1.5, "a sharding key must be str, bytes or int, not float"),
        ("murmur3", "\ud800", NO_UTF8),
        ("java", b"x", "sharding 'java' takes str or int keys, not bytes: Java hashes arrays by identity"),
        ("java", True, "sharding 'java' takes str or int keys, not bool: Java hashes arrays by identity"),
        ("java", 2**63, f"sharding 'java' hashes an int as a Long: {2**63} does not fit 64 bits"),
        ("java", -(2**63) - 1, f"sharding 'java' hashes an int as a Long: {-(2**63) - 1} does not fit 64 bits"),
        ("java", JavaInt(2**31), f"JavaInt key {2**31} does not fit 32 bits"),
        ("java", JavaInt(-(2**31) - 1), f"JavaInt key {-(2**31) - 1} does not fit 32 bits"),
        ("modulo", -1, "sharding 'modulo' takes ints of 0 or more, not -1"),
        ("modulo", "1", "sharding 'modulo' takes ints of 0 or more, not '1'"),
        ("modulo", True, "sharding 'modulo' takes ints of 0 or more, not True"),
    ],
)
def test_keys_that_do_not_suit_a_rule_are_refused(rule: Sharding, key: Key, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        partition_for(key, 4, rule)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("murmur3", 2**14_000),
        ("murmur3", -(2**50_000)),
        ("java", 2**50_000),
        ("java", JavaInt(2**50_000)),
        ("modulo", 2**14_000),
        ("modulo", -(2**50_000)),
        (lambda _: -(2**50_000), "key"),
    ],
    ids=range(7),
)
def test_ints_that_python_does_not_print_are_refused(rule: Sharding, key: Key) -> None:
    """Their error used to be the ValueError of Python."""
    with pytest.raises(ConfigError):
        partition_for(key, 4, rule)
    assert partition_for(2**14_000 - 1, 4, "modulo") == 3
    assert partition_for(2**14_000 - 1, 4) in range(4)


@pytest.mark.parametrize("wrong", [-1, True, "1", None])
def test_a_function_that_returns_no_count_is_refused(wrong: int) -> None:
    with pytest.raises(ConfigError, match="sharding function must return"):
        partition_for("key", 4, lambda _: wrong)


def test_an_unknown_rule_and_no_partitions_are_refused() -> None:
    with pytest.raises(ConfigError, match="murmur3, java, modulo"):
        hasher("md5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="partition_num must be positive"):
        partition_for("key", 0)


def test_java_takes_the_smallest_hash_there_is() -> None:
    assert java(JavaInt(-(2**31))) == 2**31
    assert modulo(7) == 7


def test_java_hashes_half_of_a_pair_as_the_unit_that_it_is() -> None:
    assert java("\ud800") == 0xD800


@pytest.mark.parametrize(
    ("key", "of_lane"), [(None, NO_KEY), ("k", b"k"), (b"k", b"k"), (7, b"7"), ("7", b"7"), ("\ud800", b"\xed\xa0\x80")]
)
def test_all_forms_of_a_key_are_ordered_as_one(key: Key | None, of_lane: object) -> None:
    assert lane_key(key) == of_lane
