"""What to do with TLS connections of an nsqd that stops writing to them: each row, and properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.tls_renewal import JITTER, WRITES_FOR, Lifetime, Phase

DEFECTIVE = "0.3.7-HA.1.13.0"


@pytest.mark.parametrize(
    ("age", "phase"),
    [(0, Phase.FRESH), (2.9, Phase.FRESH), (3, Phase.DUE), (4, Phase.LATE), (4.75, Phase.STALE), (60, Phase.STALE)],
)
def test_the_ages_of_a_connection(age: float, phase: Phase) -> None:
    assert Lifetime(100, WRITES_FOR, 0).phase(100 + age) is phase


def test_the_next_change_of_a_connection_lies_ahead() -> None:
    lifetime, found = Lifetime(100.0, 10.0, 0.5), [99.0]
    while (change := lifetime.next_phase_at(found[-1])) is not None:
        found.append(change)
    assert found == [99.0, 105.5, 108.0, 109.5]


@given(st.floats(0, 30), st.floats(0, 1))
def test_a_connection_only_grows_older(now: float, chance: float) -> None:
    lifetime = Lifetime.of(DEFECTIVE, 0, lambda: chance)
    assert lifetime is not None
    assert 0 <= lifetime.early <= WRITES_FOR * JITTER
    order = list(Phase)
    before, change = lifetime.phase(now), lifetime.next_phase_at(now)
    assert (now >= lifetime.stale_at) is (before is Phase.STALE)
    if change is None:
        assert lifetime.phase(now + 1e6) is before is Phase.STALE
    else:
        assert change > now
        assert order.index(lifetime.phase(change + 1e-6)) > order.index(before)


def test_chance_replaces_earlier_and_never_later() -> None:
    due = WRITES_FOR * Phase.DUE.value
    latest, earliest = Lifetime.of(DEFECTIVE, 0, lambda: 0.0), Lifetime.of(DEFECTIVE, 0, lambda: 1.0)
    assert latest is not None
    assert earliest is not None
    assert latest.phase(due + 1e-6) is Phase.DUE
    assert earliest.phase(due - WRITES_FOR * JITTER + 1e-6) is Phase.DUE
    assert earliest.phase(due - WRITES_FOR * JITTER - 1e-6) is Phase.FRESH


@pytest.mark.parametrize(
    ("version", "is_limited"),
    [
        (DEFECTIVE, True),
        ("0.3.7-HA.1.9.9", True),
        ("0.3.7-HA.1.5.4.1", True),
        ("0.3.7-HA.1.13.1", False),
        ("0.3.7-HA.2.0.0", False),
        ("1.3.0", False),
        ("", False),
    ],
)
def test_the_version_tells_whether_nsqd_has_the_defect(version: str, is_limited: bool) -> None:
    assert (Lifetime.of(version, 0.0, lambda: 0.5) is not None) is is_limited
