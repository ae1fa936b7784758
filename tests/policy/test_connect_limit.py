"""How often a client connects to an nsqd, by what it knows of it."""

import pytest

from nsq_ha.policy.connect_limit import GAP, PROOF, SETTLED, ConnectLimit


def begun(limit: ConnectLimit, now: float) -> int:
    """Begin as many as may begin now, 100 at most; return how many."""
    count = 0
    while count < 100 and limit.wait(now) == 0:
        limit.begin(now)
        count += 1
    return count


def test_nothing_delays_attempts_at_one_that_works() -> None:
    limit = ConnectLimit()
    assert begun(limit, 0.0) == 100
    limit.opened(0.0)
    limit.failed(SETTLED)
    assert begun(limit, 1.0) == 100


def test_attempts_at_one_that_fails_are_rare() -> None:
    limit = ConnectLimit()
    limit.failed(0.0)
    assert begun(limit, 0.0) == 3
    count, now = 0, 0.0
    while now < 20.0:
        now += limit.wait(now)
        count += begun(limit, now)
        limit.failed(0.0)
    assert count == pytest.approx(20.0 / GAP, abs=1)


@pytest.mark.parametrize(("lasted", "proof"), [(0.0, PROOF), (0.1, PROOF), (1.0, 2.0), (4.0, 8.0)])
def test_it_works_again_when_it_has_been_connected_to_for_longer_than_before(lasted: float, proof: float) -> None:
    limit = ConnectLimit()
    limit.failed(lasted)
    assert begun(limit, 1.0) == 3
    limit.opened(1.0)
    limit.opened(1.2)  # another connection to it
    assert limit.wait(1.0 + proof - 0.01) == pytest.approx(max(0.0, GAP - proof + 0.01))
    begun(limit, 1.0 + proof - 0.01)
    assert begun(limit, 1.0 + proof) == 100


def test_a_fault_begins_the_proof_again() -> None:
    limit = ConnectLimit()
    limit.failed(0.0)
    limit.opened(1.0)
    limit.failed(0.1)
    assert begun(limit, 1.0 + PROOF) == 3
    limit.opened(2.0)
    assert begun(limit, 2.0 + PROOF) == 100
