"""RDY by the size of bodies: what fits, and how the estimate follows what comes."""

from __future__ import annotations

import pytest

from nsq_ha.policy.ready import BodySize, fitting, paced

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("max_in_flight", "max_bytes", "body_bytes", "fit"),
    [
        (200, 256 * MIB, MIB, 200),
        (2500, 256 * MIB, MIB, 256),
        (2500, 256 * MIB, 100, 2500),
        (200, 16 * MIB, MIB, 16),
        (200, 16 * MIB, MIB + 1, 15),
        (200, MIB, 2 * MIB, 1),
        (0, MIB, 1, 0),
    ],
)
def test_what_fits(max_in_flight: int, max_bytes: int, body_bytes: int, fit: int) -> None:
    assert fitting(max_in_flight, max_bytes, body_bytes) == fit


@pytest.mark.parametrize(
    ("fit", "allowed", "count"), [(200, None, 200), (200, 50, 50), (20, 50, 20), (200, 0, 1), (0, 50, 0), (0, None, 0)]
)
def test_what_the_handlers_speed_allows(fit: int, allowed: int | None, count: int) -> None:
    assert paced(fit, allowed) == count


def test_until_the_first_body_the_largest_is_expected() -> None:
    body = BodySize(MIB)
    assert body.bytes == MIB
    body.seen(100)
    assert body.bytes == 100


def test_a_larger_body_counts_at_once_and_smaller_ones_little_by_little() -> None:
    body = BodySize(MIB)
    body.seen(100)
    body.seen(50_000)
    assert body.bytes == 50_000
    estimates = []
    for _ in range(100):
        body.seen(100)
        estimates.append(body.bytes)
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[0] > 40_000
    assert estimates[-1] == 100
