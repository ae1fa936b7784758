"""Back-off, RDY, routing and batches: small rules with properties of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.config import Backoff
from nsq_ha.errors import ConfigError
from nsq_ha.policy.backoff import delay_after
from nsq_ha.policy.batching import chunks
from nsq_ha.policy.ready import Plan, changes, plan, share
from nsq_ha.policy.routing import least_loaded, round_robin
from nsq_ha.policy.topology import tcp_address


def never() -> float:
    return 0.0


def always() -> float:
    return 1.0


def test_delays_grow_to_their_ceiling() -> None:
    backoff = Backoff(initial=0.1, maximum=1.0, factor=2.0, jitter=0.5)
    assert [delay_after(backoff, n, never) for n in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert delay_after(backoff, 6, always) == 0.5


@given(failures=st.integers(0, 10**9), chance=st.floats(0, 1))
def test_a_delay_never_exceeds_its_maximum(failures: int, chance: float) -> None:
    backoff = Backoff()
    assert 0 <= delay_after(backoff, failures, lambda: chance) <= backoff.maximum


@pytest.mark.parametrize("factor", [1e300, 10**300, 10**9])
@pytest.mark.parametrize("failures", [2, 3, 10, 65, 10**9])
def test_a_factor_however_large_overflows_nothing(factor: float, failures: int) -> None:
    assert delay_after(Backoff(initial=0.1, maximum=1.0, factor=factor, jitter=0.0), failures, never) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"initial": 0}, {"initial": 2, "maximum": 1}, {"factor": 0.5}, {"jitter": 2}, {"maximum": float("inf")}]
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Backoff(**wrong)


@given(
    max_in_flight=st.integers(0, 300),
    ceilings=st.dictionaries(st.integers(0, 40), st.integers(0, 50)),
    turn=st.integers(0, 100),
    needs=st.none() | st.dictionaries(st.integers(0, 40), st.integers(1, 64)),
)
def test_ready_is_shared_exactly(
    max_in_flight: int, ceilings: dict[int, int], turn: int, needs: dict[int, int] | None
) -> None:
    granted = share(max_in_flight, ceilings, turn, needs)
    assert granted.keys() == ceilings.keys()
    assert sum(granted.values()) == min(max_in_flight, sum(ceilings.values()))
    assert all(0 <= granted[partition] <= ceilings[partition] for partition in ceilings)
    served = [partition for partition in ceilings if ceilings[partition]]
    if max_in_flight >= len(served):
        assert all(granted[partition] for partition in served)


@given(partitions=st.integers(1, 40), max_in_flight=st.integers(1, 40))
def test_everyone_gets_a_turn(partitions: int, max_in_flight: int) -> None:
    ceilings = dict.fromkeys(range(partitions), 1)
    served: set[int] = set()
    for turn in range(0, partitions * max_in_flight, max_in_flight):
        served |= {partition for partition, count in share(max_in_flight, ceilings, turn).items() if count}
    assert served == set(ceilings)


def test_no_partitions_get_nothing() -> None:
    assert share(10, {}, 3) == {}


def test_what_is_lowered_is_told_apart_from_what_is_raised() -> None:
    assert changes({0: 5, 1: 2}, {0: 3, 1: 4, 2: 1}) == ({0: 3}, {1: 4, 2: 1})
    assert changes({0: 5}, {0: 5}) == ({}, {})


def test_a_limit_that_fell_takes_back_what_is_granted_and_not_used() -> None:
    """Partition 0 has the whole new limit unanswered: partition 1 may get nothing until some of it is answered."""
    assert plan(10, {0: 10, 1: 10}, {0: 10, 1: 0}, {0: 5, 1: 5}) == Plan({0: 5, 1: 0}, {}, is_raise_due=True)


def test_round_robin_goes_round() -> None:
    assert [round_robin([3, 5, 7], turn) for turn in range(5)] == [3, 5, 7, 3, 5]


def test_least_loaded_looks_at_two_neighbours() -> None:
    loads = {0: 5, 1: 1, 2: 0}
    assert [least_loaded([0, 1, 2], turn, loads.__getitem__) for turn in range(3)] == [1, 2, 2]
    assert least_loaded([4], 9, {4: 3}.__getitem__) == 4


@given(sizes=st.lists(st.integers(1, 50), max_size=60), max_bytes=st.integers(1, 120), max_count=st.integers(1, 20))
def test_chunks_hold_everything_in_order_within_the_limits(sizes: list[int], max_bytes: int, max_count: int) -> None:
    cut = list(chunks(sizes, max_bytes, max_count))
    assert [position for part in cut for position in part] == list(range(len(sizes)))
    for part in cut:
        assert 1 <= len(part) <= max_count
        assert len(part) == 1 or sum(sizes[position] for position in part) <= max_bytes


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("10.0.0.1:4250:4150:7", "10.0.0.1:4150"),
        ("fe80::1:4250:4150:7", "[fe80::1]:4150"),
        ("[::1]:4150", ""),
        ("10.0.0.1:4150", ""),
        ("10.0.0.1:x:4150:7", ""),
        ("", ""),
    ],
)
def test_the_tcp_address_in_the_clusters_name_of_a_node(name: str, address: str) -> None:
    assert tcp_address(name) == address
