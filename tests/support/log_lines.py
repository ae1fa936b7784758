"""Check each line that a test has logged, whatever its level: it has its values, and its fields are in its text."""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

import pytest

_USUAL: Final = {*vars(logging.makeLogRecord({})), "message", "asctime"}
_FIELDS: Final = {"topic", "partition", "nsqd", "lookupd"}
_SUBJECT: Final = re.compile(
    r"topic (?P<topic>\w+)\b|(?:found )?nsqlookupd (?P<lookupd>http\S+[^:\s]) |(?P<of>\w+)-(?P<partition>\d+) "
)
"""What a line of the lookups is about."""


class _Checks(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError) as error:
            self.wrong.append(f"{record.msg!r} % {record.args!r}: {error}")
            return
        fields = {name: value for name, value in vars(record).items() if name not in _USUAL}
        if (
            re.search(r"\bNone\b|%(\.\d)?[sdrfg]", text)  # nothing where there should be something
            or not fields.keys() <= _FIELDS
            or any(str(value) not in text for value in fields.values())
        ):
            self.wrong.append(f"{text} {fields}")
        if record.name == "nsq_ha.discovery" and (subject := _SUBJECT.match(text)) is not None:
            wanted = {"topic" if name == "of" else name: value for name, value in subject.groupdict().items() if value}
            if not wanted.items() <= {name: str(value) for name, value in fields.items()}.items():
                self.wrong.append(f"{text} {fields}, not {wanted}")


@contextlib.contextmanager
def whole_log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check the lines of the block; ``caplog`` keeps those that it would keep without this."""
    library, checks = logging.getLogger("nsq_ha"), _Checks()
    # By caplog, which puts levels back: those of the test that uses it, too, and after this block has ended.
    caplog.set_level(logging.WARNING, "nsq_ha.wire")
    caplog.set_level(logging.DEBUG, "nsq_ha")
    caplog.handler.setLevel(logging.WARNING)
    library.addHandler(checks)
    try:
        yield
    finally:
        library.removeHandler(checks)
    assert checks.wrong == []
