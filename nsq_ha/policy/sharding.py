"""Map sharding keys to partitions: one function for each rule that the server's clients use.

The three existing clients put the same key into different partitions. All
publishers of a topic must use one rule; the default is that of the Go users.

The invariant: the number of partitions is always ``meta.partition_num`` of a
lookup, never the number of partitions that happen to be listed.

Source: vectors in ``tests/vectors/sharding.json``, made by running the clients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import mmh3

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nsq_ha.options.config import Sharding

Key = str | bytes | int
"""A sharding key: ``str`` counts as its UTF-8 bytes."""

_MOST_BITS: Final = 14_000
"""Of an int key: Python prints none of more than 4,300 digits."""


class JavaInt(int):
    """An int key that Java publishers hash as ``Integer``; a plain ``int`` is hashed as ``Long``."""

    __slots__ = ()


def murmur3(key: Key) -> int:
    """Hash as the Go users do: MurmurHash3 x86 32 bit, seed 0, unsigned. An int is hashed as its decimal text.

    Raises:
        ConfigError: ``key`` has another type, or is an int of more than 14,000 bits.
    """
    if isinstance(key, bool):
        raise ConfigError("a sharding key must be str, bytes or int, not bool")
    if isinstance(key, int):
        key = str(printable(key))
    if isinstance(key, str):
        try:
            key = key.encode()  # mmh3 5.3 crashes the process on a str that has no UTF-8 form
        except UnicodeEncodeError as error:
            raise ConfigError(f"a sharding key must be encodable as UTF-8: {error}") from error
    elif not isinstance(key, bytes):
        raise ConfigError(f"a sharding key must be str, bytes or int, not {type(key).__name__}")
    return mmh3.hash(key, 0, signed=False)


def java(key: Key) -> int:
    """Hash as the Java client does: ``abs(hashCode())``, so that ``% n`` gives its ``abs(hashCode() % n)``.

    String: over UTF-16 units; int: ``Long``; :class:`JavaInt`: ``Integer``.

    Raises:
        ConfigError: ``key`` is bytes (Java hashes an array by identity, so
            there is no partition to agree on), of another type, or an int
            beyond 64 bits (32 for JavaInt).
    """
    return abs(java_hash_code(key))


def java_hash_code(key: Key) -> int:
    """Return Java's ``hashCode()`` as a signed 32-bit number.

    Raises:
        ConfigError: As for :func:`java`.
    """
    if isinstance(key, str):
        value = 0
        units = key.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
        return _signed32(value)
    if isinstance(key, bool) or not isinstance(key, int):
        raise ConfigError(
            f"sharding 'java' takes str or int keys, not {type(key).__name__}: Java hashes arrays by identity"
        )
    if isinstance(key, JavaInt):
        if _signed32(key & 0xFFFFFFFF) != key:
            raise ConfigError(f"JavaInt key {shown(key)} does not fit 32 bits")
        return int(key)
    unsigned = key & 0xFFFFFFFFFFFFFFFF
    if key != unsigned - (unsigned >> 63 << 64):
        raise ConfigError(f"sharding 'java' hashes an int as a Long: {shown(key)} does not fit 64 bits")
    return _signed32((unsigned ^ unsigned >> 32) & 0xFFFFFFFF)


def modulo(key: Key) -> int:
    """Return a non-negative int unchanged (the PHP client's rule).

    Raises:
        ConfigError: ``key`` is not an int, is negative (PHP refuses that, too), or has more than 14,000 bits.
    """
    if isinstance(key, bool) or not isinstance(key, int) or key < 0:
        raise ConfigError(f"sharding 'modulo' takes ints of 0 or more, not {shown(key)}")
    return printable(key)


NO_KEY: Final = object()
"""The lane key of all messages that have a partition but no key."""

_RULES: Final[dict[str, Callable[[Key], int]]] = {"murmur3": murmur3, "java": java, "modulo": modulo}


def hasher(sharding: Sharding) -> Callable[[Any], int]:
    """Return the hash function for an option value; one of the application raises ConfigError for a wrong result.

    Raises:
        ConfigError: The name is unknown.
    """
    if callable(sharding):
        return partial(_checked, sharding)
    try:
        return _RULES[sharding]
    except KeyError:
        raise ConfigError(f"sharding must be one of {', '.join(_RULES)} or a function, not {shown(sharding)}") from None


def partition_for(key: Key, partition_num: int, sharding: Sharding = "murmur3") -> int:
    """Return the partition of ``key`` on a topic with ``partition_num`` partitions.

    Raises:
        ConfigError: The rule does not accept the key, ``partition_num`` is not
            positive, or a custom function did not return an int of 0 or more.
    """
    if partition_num < 1:
        raise ConfigError(f"partition_num must be positive, not {partition_num}: take it from the lookup's meta")
    return hasher(sharding)(key) % partition_num


def _checked(function: Callable[[Any], object], key: Key) -> int:
    number = function(key)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ConfigError(f"sharding function must return an int of 0 or more, not {shown(number)}")
    return number


def printable(key: int) -> int:
    """Return an int key, which also orders publishes, as text.

    Raises:
        ConfigError: It has more than 14,000 bits.
    """
    if key.bit_length() > _MOST_BITS:
        raise ConfigError(f"an int must have at most {_MOST_BITS} bits as a sharding key, not {key.bit_length()}")
    return int(key)


def _signed32(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def lane_key(key: Key | None) -> Hashable:
    """Return the key that orders publishes in a lane; equal for all forms of one key.

    Raises:
        ConfigError: It is an int that Python does not print.
    """
    if key is None:
        return NO_KEY
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    return str(printable(key)).encode() if isinstance(key, int) else key
