"""What to do with TLS connections of an nsqd that stops writing to them: each row, and properties."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.tls_renewal import (
    ACTS,
    JITTER,
    RENEWED,
    VERDICTS,
    WRITES_FOR,
    Evidence,
    Lifetime,
    Phase,
    Renewal,
    Use,
    Verdict,
    evidence,
    first_verdict,
)

limits = st.floats(0.1, 10.0)


def test_every_use_at_every_age_has_its_act() -> None:
    assert set(ACTS) == set(itertools.product(Use, Phase))


def test_every_verdict_takes_every_evidence() -> None:
    assert set(VERDICTS) == set(itertools.product(Verdict, Evidence))


def test_nothing_that_has_an_answer_is_asked_when_it_is_late() -> None:
    for use, phase in ACTS:
        if phase in (Phase.LATE, Phase.STALE):
            assert ACTS[use, phase] not in (Renewal.USE, Renewal.REPLACE)


def test_what_came_over_a_connection_can_be_answered_at_any_age() -> None:
    assert all(ACTS[Use.FINISHING, phase] is Renewal.KEEP for phase in Phase)


def test_what_is_used_is_replaced_in_time_and_what_is_not_used_is_closed() -> None:
    assert ACTS[Use.IN_USE, Phase.FRESH] is Renewal.USE
    assert ACTS[Use.IN_USE, Phase.DUE] is Renewal.REPLACE
    assert ACTS[Use.UNUSED, Phase.DUE] is Renewal.CLOSE


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


@given(st.floats(0, 30), limits, st.floats(0, 1))
def test_a_connection_only_grows_older(now: float, limit: float, chance: float) -> None:
    lifetime = Lifetime.of(0, limit, lambda: chance)
    assert 0 <= lifetime.early <= limit * JITTER
    order = list(Phase)
    before, change = lifetime.phase(now), lifetime.next_phase_at(now)
    assert (now >= lifetime.stale_at) is (before is Phase.STALE)
    if change is None:
        assert lifetime.phase(now + 1e6) is before is Phase.STALE
    else:
        assert change > now
        assert order.index(lifetime.phase(change + 1e-6)) > order.index(before)


@given(limits)
def test_chance_replaces_earlier_and_never_later(limit: float) -> None:
    due, always = limit * Phase.DUE.value, Lifetime.of(0, limit, lambda: 1.0)
    assert Lifetime.of(0, limit, lambda: 0.0).phase(due + 1e-6) is Phase.DUE
    assert always.phase(due - limit * JITTER + 1e-6) is Phase.DUE
    assert always.phase(due - limit * JITTER - 1e-6) is Phase.FRESH


def test_the_partitioned_nsqd_is_suspected_and_any_other_is_trusted() -> None:
    assert first_verdict("0.3.7-HA.1.13.0") is Verdict.SUSPECTED
    assert first_verdict("1.3.0") is first_verdict("") is Verdict.TRUSTED
    assert first_verdict("0.3.7-HA.1.13.0") in RENEWED
    assert Verdict.TRUSTED not in RENEWED


def test_only_silence_on_a_replaced_connection_makes_an_nsqd_defective() -> None:
    """One silence, which can have many causes, is no proof of the defect."""
    silenced = VERDICTS[Verdict.TRUSTED, Evidence.SILENT]
    assert silenced is Verdict.SUSPECTED
    assert VERDICTS[silenced, Evidence.SILENT] is Verdict.DEFECTIVE


def test_whoever_is_heard_beyond_the_limit_is_left_alone() -> None:
    for verdict in (Verdict.TRUSTED, Verdict.SUSPECTED, Verdict.SOUND):
        assert VERDICTS[verdict, Evidence.HEARD] not in RENEWED


@pytest.mark.parametrize(
    ("now", "last_received", "seen"),
    [
        (4.9, 4.0, None),  # too early
        (8.9, 4.9, None),  # one heartbeat may still be under way
        (9.1, 4.9, Evidence.SILENT),
        (9.1, 4.0, Evidence.SILENT),
        (9.1, 5.2, None),  # written in time and read a little late
        (9.3, 5.2, Evidence.SILENT),
        (9.1, 6.9, None),
        (9.1, 7.1, Evidence.HEARD),
        (9.1, 0.5, None),  # it was silent long before: that is another trouble
        (9.1, 1.0, None),
        (7.5, 7.0, None),  # exactly at a limit nothing is proved
        (9.0, 5.0, None),
        (500.0, 499.0, Evidence.HEARD),
    ],
)
def test_what_the_times_of_a_connection_show(now: float, last_received: float, seen: Evidence | None) -> None:
    assert evidence(now, last_received, 0, 5.0, 2.0) is seen
