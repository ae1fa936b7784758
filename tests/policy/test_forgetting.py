"""Topics that nobody publishes to are forgotten."""

import pytest

from nsq_ha.policy.forgetting import UNKNOWN_KEPT, is_forgotten


@pytest.mark.parametrize(
    ("unused_for", "is_known", "is_needed", "expected"),
    [
        (1e9, True, True, False),
        (1e9, False, True, False),
        (600.0, True, False, False),
        (600.1, True, False, True),
        (UNKNOWN_KEPT, False, False, False),
        (UNKNOWN_KEPT + 0.1, False, False, True),
    ],
)
def test_the_rows_of_the_table(unused_for: float, is_known: bool, is_needed: bool, expected: bool) -> None:
    assert is_forgotten(unused_for, is_known=is_known, is_needed=is_needed, idle_timeout=600.0) is expected


def test_an_unknown_topic_is_never_kept_longer_than_a_known_one() -> None:
    assert is_forgotten(2.0, is_known=False, is_needed=False, idle_timeout=1.0)
