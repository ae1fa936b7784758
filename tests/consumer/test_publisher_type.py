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
    with pytest.raises(ConfigError, match="producer must be a Producer, not object"):
        Consumer("orders", "ch", lookupd="127.0.0.1:4161", producer=object())  # type: ignore[arg-type]
