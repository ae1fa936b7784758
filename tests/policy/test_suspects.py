"""Which nsqds are left alone after a failure, and when they are tried again."""

from nsq_ha.policy.suspects import FIRST_PAUSE, LONGEST_PAUSE, Suspects

A, B = "10.0.0.1:4150", "10.0.0.2:4150"


def test_an_unknown_nsqd_is_no_suspect() -> None:
    suspects = Suspects()
    assert A not in suspects
    assert suspects.may_try(A, 0.0)
    suspects.works(A)
    assert A not in suspects


def test_a_failure_concerns_one_nsqd() -> None:
    suspects = Suspects()
    suspects.failed(A, 0.0)
    assert (A in suspects, B in suspects) == (True, False)


def test_each_failed_try_doubles_the_time_until_the_next() -> None:
    suspects, now, pauses = Suspects(), 100.0, []
    suspects.failed(A, now)
    for _ in range(9):
        began = now
        while not suspects.may_try(A, now):
            now += FIRST_PAUSE / 2
        pauses.append(now - began)
        assert not suspects.may_try(A, now)
        suspects.failed(A, now)
        suspects.failed(A, now)  # another topic's part of the same try
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_a_try_without_an_outcome_is_repeated() -> None:
    suspects = Suspects()
    suspects.failed(A, 0.0)
    assert suspects.may_try(A, 1.0)
    assert not suspects.may_try(A, 1.9)
    assert suspects.may_try(A, 2.0)


def test_a_handshake_ends_the_suspicion() -> None:
    suspects = Suspects()
    for now in (0.0, 1.0):
        suspects.failed(A, now)
        assert suspects.may_try(A, now + 1.0) == (now == 0.0)
    suspects.works(A)
    assert A not in suspects
    suspects.failed(A, 4.0)
    assert suspects.may_try(A, 5.0)


def test_an_nsqd_without_answers_is_tried_every_second() -> None:
    suspects = Suspects()
    for now in range(10):
        suspects.stalled(A, now)
        suspects.stalled(A, now + 0.5)
        assert A in suspects
        assert not suspects.may_try(A, now + 0.9)
        assert suspects.may_try(A, now + 1.0)
        suspects.works(A)


def test_an_nsqd_that_nobody_tries_any_more_is_forgotten() -> None:
    suspects = Suspects()
    suspects.failed(A, 0.0)
    suspects.failed(B, FIRST_PAUSE + 10 * LONGEST_PAUSE)
    assert A in suspects
    suspects.failed(B, FIRST_PAUSE + 10 * LONGEST_PAUSE + 0.1)
    assert (A in suspects, B in suspects) == (False, True)
