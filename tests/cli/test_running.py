import asyncio
import errno
import io
import logging
import os
import signal

import click
import pytest

from nsq_ha.cli.running import log_to_stderr, run
from nsq_ha.errors import ConfigError, ConnectError
from tests.support.waiting import turn


async def fail(error: BaseException) -> None:
    raise error


async def send_and_wait(number: int, closed: list[str]) -> int:
    os.kill(os.getpid(), number)
    try:
        await asyncio.Event().wait()
    finally:
        await turn()
        closed.append("closed")
    return 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConnectError("cannot connect"), "cannot connect"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (ConfigError("two\nlines \x1b[31m"), "two\\nlines \\x1b[31m"),
        (ExceptionGroup("g", [ExceptionGroup("h", [ConnectError("inside")]), ConnectError("second")]), "inside"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_what_the_outside_causes_is_one_line(error: Exception, line: str) -> None:
    with pytest.raises(click.ClickException) as caught:
        run(fail(error))
    assert caught.value.message == line
    assert caught.value.exit_code == 1


def test_warnings_that_differ_only_in_numbers_are_shown_once(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("nsq_ha.consumer")
    log_to_stderr(logging.WARNING)
    for number in range(4):
        log.warning("orders-%d at nsqd 127.0.0.1:415%d: no TLS; trying after %d s", number, number, number)
    log.warning("orders-0: gone")
    shown = capfd.readouterr().err.splitlines()
    assert shown == [
        "warning: consumer: orders-0 at nsqd 127.0.0.1:4150: no TLS; trying after 0 s",
        "warning: the same for other partitions or nsqds, or again; -v shows each",
        "warning: consumer: orders-0: gone",
    ]
    log_to_stderr(logging.INFO)
    for number in range(2):
        log.warning("orders-%d: gone", number)
    assert capfd.readouterr().err.count("gone") == 2


def test_a_log_line_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to raise in the background task of the client that logged it."""
    tried: list[str] = []

    class Full(io.StringIO):
        def write(self, text: str, /) -> int:
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    log_to_stderr(logging.WARNING)
    monkeypatch.setattr("sys.stderr", Full())
    for number in range(2):
        logging.getLogger("nsq_ha.consumer").warning("orders-%d: gone", number)
    assert len([*filter(None, tried)]) == 2  # click tries what kind of stream it is


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(fail(ZeroDivisionError()))
    with pytest.raises(ExceptionGroup):
        run(fail(ExceptionGroup("g", [ConnectError("outside"), ZeroDivisionError()])))


def test_a_reader_that_has_gone_is_left_to_the_group() -> None:
    with pytest.raises(BrokenPipeError):
        run(fail(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        run(fail(ExceptionGroup("g", [BrokenPipeError()])))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_command_close_and_is_a_failure_unless_it_is_the_ordinary_end(number: int) -> None:
    closed: list[str] = []
    assert run(send_and_wait(number, closed), stopped=0) == 0
    for stopped, has_end in ((None, False), (0, True)):
        with pytest.raises(click.exceptions.Exit) as caught:
            run(send_and_wait(number, closed), stopped=stopped, has_end=has_end)
        assert caught.value.exit_code == 128 + number
    assert closed == ["closed"] * 3


def test_a_second_sigterm_does_not_interrupt_the_close() -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await send_and_wait(signal.SIGTERM, closed)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await turn(10)
            closed.append("all")

    with pytest.raises(click.exceptions.Exit) as caught:
        run(work())
    assert (caught.value.exit_code, closed) == (143, ["closed", "all"])


def test_log_lines_go_to_standard_error_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(logging.WARNING)
    log_to_stderr(logging.INFO)
    logging.getLogger("nsq_ha.consumer").info("partition %d\nmoved", 3)
    logging.getLogger("nsq_ha.consumer").debug("not shown")
    assert capsys.readouterr().err == "info: consumer: partition 3\\nmoved\n"


def test_advice_names_the_options_of_commands_and_what_the_command_reports_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(logging.WARNING)
    logging.getLogger("nsq_ha.consumer").error("orders-0: a:1 requires AUTH: set auth_secret")
    logging.getLogger("nsq_ha.producer").error("a:1 requires AUTH: set auth_secret")
    assert capsys.readouterr().err == "error: producer: a:1 requires AUTH: give --auth-secret-file\n"
    with pytest.raises(click.ClickException, match=r"a certificate of your own, give --tls-ca with its PEM file$"):
        run(fail(ConnectError("for a certificate of your own, give lookupd_tls=TlsConfig(ca_file=...)")))
    with pytest.raises(click.ClickException, match=r"messages; `nsq-ha channel empty` drops those that wait$"):
        run(fail(ConfigError("plain nsqd keeps no finished messages; empty_channel drops those that wait")))
