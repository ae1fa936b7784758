"""Messages that were finished, and come again."""

from __future__ import annotations

from nsq_ha.policy.finished import MOST, REMEMBERED, Finished

ONE = b"0123456789abcdef"


def test_a_message_is_claimed_once() -> None:
    finished = Finished()
    assert not finished.claim(ONE, 7, 0.0)
    finished.remember(ONE, 7, 0.0)
    assert finished.claim(ONE, 7, 1.0)
    assert not finished.claim(ONE, 7, 1.0)


def test_an_id_that_is_used_again_is_another_message() -> None:
    finished = Finished()
    finished.remember(ONE, 7, 0.0)
    assert not finished.claim(ONE, 8, 1.0)
    assert finished.claim(ONE, 7, 1.0)


def test_nothing_is_remembered_for_ever() -> None:
    finished = Finished()
    finished.remember(ONE, 7, 0.0)
    assert not finished.claim(ONE, 7, REMEMBERED)
    finished.remember(ONE, 7, 0.0)
    finished.remember(b"another one.....", 7, REMEMBERED)
    assert len(finished) == 1


def test_the_oldest_are_forgotten_first() -> None:
    finished = Finished()
    for number in range(MOST + 1):
        finished.remember(b"%016d" % number, 1, 0.0)
    finished.remember(b"%016d" % 1, 1, 1.0)  # once more: it is the newest now
    finished.remember(b"%016d" % MOST + b"", 1, 1.0)
    assert len(finished) == MOST
    assert not finished.claim(b"%016d" % 0, 1, 1.0)
    assert finished.claim(b"%016d" % 1, 1, 1.0)
