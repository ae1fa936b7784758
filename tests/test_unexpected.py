"""An error that nobody foresaw is logged with its traceback once, then counted."""

import logging

import pytest

from nsq_ha.base import unexpected

log = logging.getLogger("nsq_ha.test")


def test_the_traceback_comes_once_and_then_the_number_when_it_doubles(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        unexpected.report_unexpected(log, "orders-3", ValueError("odd"))
    unexpected.report_unexpected(log, "orders-3", KeyError("odd"))
    unexpected.report_unexpected(log, "orders-4", ValueError("odd"))
    texts = [record.getMessage() for record in caplog.records]
    assert [text.split("so far")[0].split()[-2] for text in texts if "so far" in text] == [
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
    ]
    assert [record.exc_info is not None for record in caplog.records].count(True) == 3
    assert all(text.startswith("orders-") for text in texts)


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(unexpected, "MAX_PLACES", 10)
    for number in range(50):
        unexpected.report_unexpected(log, f"orders-{number}", ValueError("odd"))
    assert len(unexpected._counts) == 10


def fail() -> None:
    raise KeyError("first")


def fail_again() -> None:
    try:
        fail()
    except KeyError as error:
        raise ValueError("second") from error


def fail_for_good() -> None:
    try:
        fail_again()
    except ValueError:
        raise TypeError("third")  # noqa: B904 - its context is what is looked at


def test_an_error_that_is_kept_holds_no_frames() -> None:
    with pytest.raises(TypeError) as caught:
        fail_for_good()
    third = unexpected.without_frames(caught.value)
    second = third.__context__
    assert second is not None
    assert [type(error) for error in (third, second, second.__cause__)] == [TypeError, ValueError, KeyError]
    assert all(error and error.__traceback__ is None for error in (third, second, second.__cause__))
    second.__context__ = third  # a circle
    assert unexpected.without_frames(third) is third
