"""A producer is what a consumer's ``producer=`` asks for, to type checkers too."""

import pytest

from nsq_ha import ConfigError, Consumer, Producer


def test_a_producer_suits_the_give_up_policies() -> None:
    # mypy reads this file: the call is the test.
    producer = Producer(lookupd="127.0.0.1:4161")
    Consumer(
        "orders",
        "ch",
        lookupd="127.0.0.1:4161",
        max_attempts=3,
        on_give_up="dead_letter",
        dead_letter_topic="dead",
        producer=producer,
    )


def test_anything_else_does_not() -> None:
    with pytest.raises(ConfigError, match=r"producer must be a nsq_ha\.Producer, not builtins\.object"):
        Consumer("orders", "ch", lookupd="127.0.0.1:4161", producer=object())  # type: ignore[arg-type]


class ForThreads:
    """As a producer of ``nsq_ha.sync``, whose publish returns what no event loop can wait for."""

    def __enter__(self) -> None:
        raise AssertionError

    def publish(self) -> None:
        raise AssertionError


def test_a_producer_of_threads_does_not_suit_an_event_loop() -> None:
    with pytest.raises(ConfigError, match=r"a nsq_ha\.Producer, not .*\.ForThreads"):
        Consumer("orders", "ch", lookupd="127.0.0.1:4161", producer=ForThreads())  # type: ignore[arg-type]
