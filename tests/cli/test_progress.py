"""Progress on a terminal: what is printed meanwhile, and what is left at the end."""

import io
import re
from contextlib import redirect_stderr

import click
import pytest

from nsq_ha.cli.running import Progress
from tests.support.terminal import WIDTH, Terminal, at


def test_a_wait_is_shown_and_nothing_of_it_is_left(terminal: Terminal) -> None:
    with at(terminal), Progress("creating [orders]", counts=False):
        click.echo("to stderr", err=True)
    text = terminal.getvalue()
    assert "creating [orders]" in text
    assert "to stderr" in text
    assert text.rstrip("\n").endswith("\x1b[2K")


def test_a_wait_shows_nothing_in_a_file() -> None:
    with redirect_stderr(io.StringIO()) as written, Progress("creating orders", counts=False):
        pass
    assert written.getvalue() == ""


def test_lines_stand_above_it_and_nothing_of_it_is_left(terminal: Terminal) -> None:
    long = "x" * 3 * WIDTH
    with at(terminal), Progress("copied", 10) as progress:
        progress.advance(3)
        click.echo("to stdout")
        click.echo("to stderr", err=True)
        click.echo(long)
        print("no end", end="")  # noqa: T201 - what a library may do
    text = terminal.getvalue()
    for line in ("to stdout", "to stderr", long):
        assert f"\r\x1b[2K{line}\n" in text
    assert "3 of 10" in text
    bars = [line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)) if "copied" in line]
    # The terminal shows ^C behind the bar: with it on another line, the bar would stay.
    assert bars
    assert max(map(len, bars)) <= WIDTH - 2
    assert text.endswith("\x1b[2Kno end\n")


def test_elsewhere_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("copied", 10) as progress:
        progress.advance(3)
        click.echo("to stdout")
    assert capsys.readouterr() == ("to stdout\n", "")
