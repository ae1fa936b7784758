"""Which messages are finished unhandled."""

import pytest

from nsq_ha import ExtFilter
from nsq_ha.policy.skipping import Skipping, skipping_of

FILTERED = "it does not match ext_filter, which nsqd did not apply"


def test_without_options_nothing_is_looked_at() -> None:
    assert skipping_of(None, None) is None
    assert skipping_of("test", None) is not None


@pytest.mark.parametrize(
    ("header", "is_skipped"),
    [
        (b'{"test":null}', True),
        (b'{"test":false,"a":1}', True),
        (b'{"other":"test"}', False),
        (b"{}", False),
        (b"[]", False),
        (b'"test"', False),
        (b'{"test":', False),
        (b"[" * 100_000, False),
        (b"\xff", False),
        (None, False),
    ],
)
def test_the_name_of_a_header(header: bytes | None, is_skipped: bool) -> None:
    why = Skipping("test", None).why(header)
    assert why == ("it has the header 'test' of skip_header" if is_skipped else None)


@pytest.mark.parametrize(
    ("header", "is_skipped"),
    [
        (b'{"test":true}', True),
        (b'{"test":1}', False),
        (b'{"test":"true"}', False),
        (b'{"env":"dev","test":false}', True),
        (b'{"env":null}', False),
        (b'{"n":1.0}', True),
        (b'{"n":true}', False),
        (b'{"none":null}', True),
        (b"{}", False),
    ],
)
def test_names_and_values(header: bytes, is_skipped: bool) -> None:
    skipping = Skipping({"test": True, "env": "dev", "n": 1, "none": None}, None)
    assert (skipping.why(header) is not None) is is_skipped


def test_a_filter_that_nsqd_did_not_apply() -> None:
    skipping = Skipping(None, ExtFilter.equals("k", "v"))
    assert skipping.why(b'{"k":"v"}') is None
    assert (skipping.why(b'{"k":"w"}'), skipping.why(None)) == (FILTERED, FILTERED)
    both = Skipping("test", ExtFilter.equals("k", "v", inverse=True))
    assert both.why(b'{"test":1}') == "it has the header 'test' of skip_header"
    assert (both.why(b'{"k":"v"}'), both.why(None)) == (FILTERED, None)


def test_globs_of_other_text_are_left_to_nsqd() -> None:
    skipping = Skipping(None, ExtFilter.glob("k", "a?"))
    assert (skipping.why(b'{"k":"b"}'), skipping.why(None)) == (FILTERED, FILTERED)
    for header in ('{"k":"é"}'.encode(), b'{"k":"\\u00e9"}', b'{"k":"ab"}'):
        assert skipping.why(header) is None


def test_a_pattern_that_takes_long_is_left_to_nsqd() -> None:
    skipping = Skipping(None, ExtFilter.regexp("k", "a{900}b"))
    assert skipping.why(b'{"k":"' + b"a" * 50 + b'"}') == FILTERED
    assert skipping.why(b'{"k":"' + b"a" * 2000 + b'"}') is None
