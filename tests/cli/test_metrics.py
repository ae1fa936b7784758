"""The metrics of a command that runs long, at a port."""

import re
import socket
import urllib.request

import click
from click.testing import CliRunner

from nsq_ha.cli.options import metrics_option
from tests.cli.conftest import Invoke
from tests.support.ports import fixed_ports

LIMIT = 60.0


@click.command()
@metrics_option
@click.pass_context
def long_running(context: click.Context) -> None:
    """Do what a scraper does while the command runs."""
    address = context.obj[0] if context.obj else None
    click.echo("works" if address is None else urllib.request.urlopen(address, timeout=LIMIT).status)  # noqa: S310


def test_without_the_option_nothing_is_served() -> None:
    assert CliRunner().invoke(long_running).output == "works\n"


def test_the_page_is_there_while_the_command_runs() -> None:
    port = fixed_ports()
    address = f"http://127.0.0.1:{port}/metrics"
    result = CliRunner().invoke(long_running, ["--metrics-port", str(port)], obj=[address])
    assert (result.exit_code, result.output) == (0, f"metrics: {address}\n200\n")


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        result = CliRunner().invoke(long_running, ["--metrics-port", str(port)])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: the metrics cannot be served at 127.0.0.1:{port}: ")
    assert result.output.count("\n") == 1


def test_commands_that_run_long_have_it(invoke: Invoke, topic: str) -> None:
    for arguments in (("tail", topic, "--idle", "0.2"), ("pub", topic)):
        result = invoke(*arguments, "--metrics-port", "0", stdin="")
        assert result.exit_code == 0, result.output
        assert re.search(r"^metrics: http://127\.0\.0\.1:\d+/metrics$", result.stderr, re.MULTILINE)
