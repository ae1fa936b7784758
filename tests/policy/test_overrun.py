"""A server that delivers more than it was granted: what is tolerated, and from when on it is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.overrun import LEAST_MARGIN, MARGIN_BYTES, Granted


def limit_of(*grants: int) -> int:
    granted = Granted(0.0, 60.0)
    for ready in grants:
        granted.grant(ready)
    return granted.ceiling


def test_the_limit_follows_the_most_that_was_ever_granted() -> None:
    assert limit_of() == LEAST_MARGIN
    assert limit_of(1) == 1 + LEAST_MARGIN
    assert limit_of(200) == 250
    assert limit_of(200, 5, 0) == 250
    assert limit_of(2500) == 3125
    assert limit_of(203) == 253
    assert isinstance(limit_of(203), int)


def test_up_to_the_limit_is_no_overrun_and_beyond_it_is() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(200)
    assert not granted.is_overrun(1.0, 0, 250)
    assert granted.is_overrun(2.0, 250, 251)


def test_what_stays_within_the_limit_makes_no_room_for_more() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(200)
    assert not granted.is_overrun(60.0, 200, 250)
    assert granted.is_overrun(61.0, 0, 251)


def test_messages_that_timed_out_at_the_server_make_room_for_others() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(200)
    assert not granted.is_overrun(0.0, 0, 200)
    # The handlers are stuck: after the timeout each message comes again, and nobody answers the old copies.
    for minute in range(1, 20):
        held = 200 * minute
        assert not granted.is_overrun(60.0 * minute, held, held + 100)
        assert not granted.is_overrun(60.0 * minute + 1, held + 100, held + 200)
    held = 200 * 20
    assert granted.is_overrun(60.0 * 19 + 2, held, held + 51)


def test_a_timeout_that_the_server_claims_to_be_short_excuses_little() -> None:
    granted = Granted(0.0, 0.001)
    granted.grant(10)
    assert not granted.is_overrun(0.1, 0, 26)
    assert granted.is_overrun(0.9, 26, 27)


@given(
    grants=st.lists(st.integers(0, 2500), min_size=1),
    reads=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200), st.integers(0, 100))),
)
def test_an_honest_server_is_never_accused(grants: list[int], reads: list[tuple[float, int, int]]) -> None:
    """It has at most the largest RDY in flight, and takes messages back after two seconds."""
    granted, most = Granted(0.0, 2.0), max(grants)
    for ready in grants:
        granted.grant(ready)
    now, here = 0.0, 0
    there: list[float] = []  # when each message that the server counts was delivered
    for pause, wanted, answered in reads:
        now += pause
        there = [at for at in there if now - at < 2.0]
        answers = min(answered, len(there))
        del there[:answers]
        here -= min(answers, here)
        delivered = min(wanted, most - len(there))
        before = here
        here += delivered
        there += [now] * delivered
        if here > granted.ceiling:
            assert not granted.is_overrun(now, before, here)


@given(ready=st.integers(0, 2500), step=st.integers(1, 500), every=st.floats(0, 0.01))
def test_a_flood_is_seen_within_one_read(ready: int, step: int, every: float) -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(ready)
    now, here = 0.0, 0
    while not (here > granted.ceiling and granted.is_overrun(now, here - step, here)):
        here += step
        now += every
        assert here <= ready + max(LEAST_MARGIN, ready // 4) + step


# ------------------------------------------------------------ large bodies

MEBI = 1024 * 1024


def test_what_comes_beyond_a_lowered_rdy_is_weighed() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(2500)
    granted.grant(256)
    assert not granted.is_outweighed(1.0, 0, 256, 256 * MEBI)
    assert not granted.is_outweighed(1.0, 256, 320, MARGIN_BYTES)
    assert granted.is_outweighed(1.0, 320, 321, 1)


def test_the_weight_is_forgotten_once_rdy_holds_again() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(10)
    for _ in range(5):
        assert not granted.is_outweighed(1.0, 10, 11, MARGIN_BYTES)
    assert not granted.is_outweighed(1.0, 11, 11, 0)
    assert granted.is_outweighed(1.0, 11, 12, 1)


def test_large_messages_within_rdy_make_no_room_for_more() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(10)
    assert not granted.is_outweighed(60.0, 5, 10, MEBI)
    assert granted.is_outweighed(61.0, 0, 11, MARGIN_BYTES + 1)


def test_room_for_what_timed_out_is_given_once_in_a_timeout() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(100)
    assert not granted.is_outweighed(60.0, 100, 150, MEBI)
    assert not granted.is_outweighed(120.0, 190, 190, 0)
    assert granted.is_outweighed(121.0, 50, 201, MARGIN_BYTES + 1)


def test_large_messages_that_timed_out_at_the_server_come_again() -> None:
    granted = Granted(0.0, 60.0)
    granted.grant(100)
    assert not granted.is_outweighed(1.0, 0, 100, 100 * MEBI)
    for minute in range(1, 5):
        held = 100 * minute
        assert not granted.is_outweighed(60.0 * minute + 1, held, held + 100, 100 * MEBI)
    assert granted.is_outweighed(60.0 * 4 + 2, 500, 600, 100 * MEBI)


@given(
    ready=st.integers(0, 300),
    reads=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 100), st.integers(0, 100))),
    on_its_way=st.integers(0, 16),
)
def test_an_honest_server_of_large_bodies_is_never_accused(
    ready: int, reads: list[tuple[float, int, int]], on_its_way: int
) -> None:
    """It had a few large messages on their way when RDY was lowered, and takes messages back after two seconds."""
    granted = Granted(0.0, 2.0)
    granted.grant(2500)
    granted.grant(ready)
    now, here = 0.0, ready + on_its_way
    assert not granted.is_outweighed(now, ready, here, on_its_way * MEBI)
    there = [now] * here
    for pause, wanted, answered in reads:
        now += pause
        there = [at for at in there if now - at < 2.0]
        answers = min(answered, len(there))
        del there[:answers]
        here -= min(answers, here)
        delivered = max(min(wanted, ready - len(there)), 0)
        before = here
        here += delivered
        there += [now] * delivered
        if delivered and here > granted.ready:
            assert not granted.is_outweighed(now, before, here, delivered * MEBI)
