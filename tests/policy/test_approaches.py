"""How many connections a client opens to an address, by what it knows of it."""

import pytest

from nsq_ha.policy.approaches import (
    BURST,
    FEW,
    FEW_ALTOGETHER,
    MOST_ADDRESSES,
    PROOFS,
    RATE,
    SETTLED,
    Approaches,
    Attempt,
    Trust,
)

HOST = "10.0.0.1"
A = f"{HOST}:4150"


def began(approaches: Approaches, now: float, name: str = A, host: str = HOST) -> list[Attempt]:
    """Begin as many as may begin now, 1,024 at most."""
    attempts: list[Attempt] = []
    while len(attempts) < 1024 and approaches.wait(name, host, now) == 0:
        attempts.append(approaches.begin(name, host, now))
    return attempts


def doubted(approaches: Approaches, now: float, name: str = A) -> None:
    """Fail once, as nothing else runs."""
    approaches.ended(approaches.begin(name, HOST, now), now, is_fault=True)


def test_few_begin_at_an_address_that_never_answered() -> None:
    approaches = Approaches()
    attempts = began(approaches, 0.0)
    assert len(attempts) == FEW
    assert approaches.wait(A, HOST, 1.0) is None
    assert approaches.wait(f"{HOST}:9", HOST, 1.0) is None  # another port of the same stranger
    assert approaches.wait("b:1", "b", 1.0) == 0
    for attempt in attempts:
        approaches.ended(attempt, 5.0, is_fault=True)
    assert approaches.trust(A) is Trust.DOUBTED
    assert approaches.wait(f"{HOST}:9", HOST, 5.0) == 0


def test_few_begin_at_many_unknown_hosts() -> None:
    approaches = Approaches()
    begun = 0
    for host in (f"h{number}" for number in range(100)):
        if approaches.wait(f"{host}:1", host, 0.0) == 0:
            approaches.begin(f"{host}:1", host, 0.0)
            begun += 1
    assert begun == FEW_ALTOGETHER


def test_all_begin_at_an_address_that_answers() -> None:
    approaches = Approaches()
    attempts = began(approaches, 0.0)
    assert approaches.opened(attempts[0], 0.1) is None
    assert approaches.trust(A) is Trust.GOOD
    assert len(began(approaches, 0.1)) == 1024
    assert approaches.opened(attempts[1], 0.2) is None
    approaches.ended(attempts[0], 0.2 + SETTLED, is_fault=True)
    assert approaches.trust(A) is Trust.GOOD


def test_what_the_client_ends_counts_for_nothing() -> None:
    approaches = Approaches()
    attempt = approaches.begin(A, HOST, 0.0)
    approaches.ended(attempt, 0.0, is_fault=False)
    assert approaches.trust(A) is Trust.UNKNOWN
    attempt = approaches.begin(A, HOST, 0.0)
    approaches.opened(attempt, 0.0)
    approaches.ended(attempt, 1.0, is_fault=False)
    assert approaches.trust(A) is Trust.GOOD


def test_attempts_at_a_doubted_address_are_rare() -> None:
    approaches = Approaches()
    doubted(approaches, 0.0)
    count = 0
    now = 0.0
    while now < 20.0:
        for attempt in began(approaches, now):
            count += 1
            approaches.ended(attempt, now, is_fault=True)
        wait = approaches.wait(A, HOST, now)
        assert wait is not None
        now += wait
    assert count == pytest.approx(BURST + 20.0 * RATE, abs=1)
    assert count <= 2 * 20


def test_doubted_addresses_share_their_attempts() -> None:
    approaches = Approaches()
    doubted(approaches, 0.0)
    doubted(approaches, 0.0, f"{HOST}:2")
    assert len(began(approaches, 0.0)) == BURST
    assert approaches.wait(f"{HOST}:2", HOST, 0.0) == pytest.approx(1 / RATE)


def test_one_that_is_good_again_lets_others_be_tried() -> None:
    approaches = Approaches()
    other = f"{HOST}:2"
    doubted(approaches, 0.0)
    doubted(approaches, 0.0, other)
    attempt = began(approaches, 0.0)[0]
    approaches.opened(attempt, 0.1)
    assert approaches.wait(other, HOST, 0.4) != 0
    assert approaches.proven(attempt, 0.4) is None
    for _ in range(BURST):
        assert approaches.wait(other, HOST, 0.4) == 0
        approaches.begin(other, HOST, 0.4)
    assert approaches.wait(other, HOST, 0.4) == pytest.approx(1 / RATE)


def test_an_address_is_good_again_when_a_connection_lasts() -> None:
    approaches = Approaches()
    doubted(approaches, 0.0)
    probe = approaches.begin(A, HOST, 1.0)
    assert approaches.opened(probe, 1.0) == PROOFS[0]
    assert approaches.trust(A) is Trust.DOUBTED
    approaches.proven(probe, 1.0 + PROOFS[0])
    approaches.proven(probe, 1.0 + PROOFS[0])
    assert len(began(approaches, 1.0 + PROOFS[0])) == 1024


def test_one_that_is_bad_again_must_last_longer() -> None:
    approaches, now = Approaches(), 0.0
    doubted(approaches, now)
    for proof in (*PROOFS, SETTLED):
        now += 1.0
        probe = approaches.begin(A, HOST, now)
        assert approaches.opened(probe, now) == proof
        now += proof
        approaches.proven(probe, now)
        approaches.ended(probe, now, is_fault=False)
        doubted(approaches, now)
    now += SETTLED  # it has been good for long
    probe = approaches.begin(A, HOST, now)
    approaches.opened(probe, now)
    assert approaches.proven(probe, now) == PROOFS[-1]
    assert approaches.proven(probe, now + PROOFS[-1]) is None
    later = now + PROOFS[-1] + SETTLED
    doubted(approaches, later)
    assert approaches.opened(approaches.begin(A, HOST, later), later) == PROOFS[0]


def relapsed(approaches: Approaches) -> float:
    """Let an address relapse until its proof is the longest; return the time."""
    now = 0.0
    for proof in PROOFS:
        doubted(approaches, now)
        if proof is not PROOFS[-1]:
            probe = approaches.begin(A, HOST, now)
            approaches.opened(probe, now)
            now += proof
            approaches.proven(probe, now)
            approaches.ended(probe, now, is_fault=False)
    return now


def test_connections_in_turn_prove_what_none_of_them_lives_for() -> None:
    approaches = Approaches()
    began_at = now = relapsed(approaches) + SETTLED
    proofs = []
    while approaches.trust(A) is Trust.DOUBTED and now < began_at + 2 * SETTLED:
        probe = approaches.begin(A, HOST, now)
        proof = approaches.opened(probe, now)
        assert proof is not None
        proofs.append(proof)
        if proof < 3.0:
            approaches.proven(probe, now + proof)
        now += 3.0  # a TLS connection is replaced
        approaches.ended(probe, now, is_fault=False)
    assert proofs == [SETTLED, SETTLED - 3.0, SETTLED - 6.0, SETTLED - 9.0]
    assert approaches.trust(A) is Trust.GOOD


def test_a_fault_between_connections_begins_the_proof_again() -> None:
    approaches = Approaches()
    now = relapsed(approaches) + SETTLED
    first = approaches.begin(A, HOST, now)
    approaches.opened(first, now)
    approaches.ended(first, now + 3.0, is_fault=False)
    second = approaches.begin(A, HOST, now + 3.0)
    assert approaches.opened(second, now + 3.0) == SETTLED - 3.0
    doubted(approaches, now + 4.0)
    assert approaches.proven(second, now + SETTLED) == 3.0
    assert approaches.trust(A) is Trust.DOUBTED
    assert approaches.proven(second, now + SETTLED + 3.0) is None
    assert approaches.trust(A) is Trust.GOOD


def test_what_is_remembered_is_bounded() -> None:
    approaches = Approaches()
    kept = approaches.begin(A, HOST, 0.0)
    for number in range(MOST_ADDRESSES + 5):
        approaches.ended(approaches.begin(f"h:{number}", "h", 0.0), 0.0, is_fault=True)
    assert len(approaches) == MOST_ADDRESSES
    assert approaches.trust("h:0") is Trust.UNKNOWN
    assert approaches.opened(kept, 0.0) is None
    assert approaches.trust(A) is Trust.GOOD
    busy = Approaches()
    for number in range(MOST_ADDRESSES + 1):
        busy.begin(f"h:{number}", "h", 0.0)
    assert len(busy) == MOST_ADDRESSES + 1  # nothing that runs is forgotten
