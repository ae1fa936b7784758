"""When a client is healthy, and what it says about itself."""

import pytest

from nsq_ha.policy.health import MOST_NAMED, OK, Trouble, health_of, health_of_parts
from nsq_ha.stats import Health

YOUNG = Trouble("orders-3", "has no leader", 2.0)
OLD = Trouble("orders-3", "orders-3 has no leader now", 12.4)


@pytest.mark.parametrize(
    ("troubles", "notes", "expected"),
    [
        ([], [], Health(is_healthy=True, reason="ok")),
        ([OLD], ["paused"], Health(is_healthy=False, reason="orders-3 has no leader now (for 12 s)")),
        ([YOUNG, OLD], [], Health(is_healthy=False, reason="orders-3 has no leader now (for 12 s)")),
        ([YOUNG], [], Health(is_healthy=True, reason="orders-3 has no leader (for 2 s)")),
        ([YOUNG], ["paused"], Health(is_healthy=True, reason="orders-3 has no leader (for 2 s); paused")),
        ([], ["paused"], Health(is_healthy=True, reason="paused")),
    ],
)
def test_the_table(troubles: list[Trouble], notes: list[str], expected: Health) -> None:
    assert health_of(troubles, notes, 5.0) == expected


def test_trouble_counts_from_the_limit_on() -> None:
    assert not health_of([Trouble("a-0", "x", 5.0)], [], 5.0)
    assert health_of([Trouble("a-0", "x", 4.9)], [], 5.0)
    assert not health_of([Trouble("a-0", "x", 0.0)], [], 0.0)


def test_a_reason_names_the_longest_troubles_and_counts_the_others() -> None:
    troubles = [Trouble(f"a-{number}", "x", 10.0 + number) for number in range(5)]
    assert health_of(troubles, [], 5.0).reason == "a-4: x (for 14 s); a-3: x (for 13 s); a-2: x (for 12 s); and 2 more"
    three = health_of(troubles[:MOST_NAMED], [], 5.0).reason
    assert three == "a-2: x (for 12 s); a-1: x (for 11 s); a-0: x (for 10 s)"


WELL = Health(is_healthy=True, reason=OK)
PAUSED = Health(is_healthy=True, reason="paused")
ILL = Health(is_healthy=False, reason="closed")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], WELL),
        ([WELL, WELL], WELL),
        ([WELL, PAUSED, PAUSED], Health(is_healthy=True, reason="1: paused; 2: paused")),
        ([PAUSED, ILL], Health(is_healthy=False, reason="1: closed")),
        ([ILL] * 5, Health(is_healthy=False, reason="0: closed; 1: closed; 2: closed; and 2 more")),
    ],
)
def test_others_make_up_a_client(parts: list[Health], expected: Health) -> None:
    assert health_of_parts([(str(number), each) for number, each in enumerate(parts)]) == expected


def test_health_is_true_if_it_is_healthy() -> None:
    assert Health(is_healthy=True, reason="paused")
    assert not Health(is_healthy=False, reason="closed")
