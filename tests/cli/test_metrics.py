"""The metrics of a command that runs long, at a port."""

import os
import re
import signal
import socket
import threading
import time
import urllib.request

import click
import pytest
from click.testing import CliRunner

from nsq_ha import prometheus
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


class Scraper:
    """Reads the page of a command's metrics until it shows a figure, and then lets the command end.

    Args:
        figure: The name of a metric; the command works when its value is above 0.
    """

    def __init__(self, figure: str) -> None:
        self.page: str = ""
        self.seen: threading.Event = threading.Event()
        self._above_0 = re.compile(rf"^{figure}{{[^}}]*}} [1-9]", re.MULTILINE)
        self._serve = prometheus.serve

    def serve(self, port: int) -> prometheus.MetricsServer:
        """Serve the metrics, and begin to read them."""
        server = self._serve(port)
        threading.Thread(target=self._read, args=(server.url,), daemon=True).start()
        return server

    def _read(self, url: str) -> None:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and not self._above_0.search(self.page):
            self.page = urllib.request.urlopen(url, timeout=LIMIT).read().decode()  # noqa: S310 - of this test
        self.seen.set()


CONSUMED = "nsq_ha_consumer_finished_total"


def test_a_scrape_answers_while_it_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    assert invoke("channel", "create", topic, "billing").exit_code == 0
    assert invoke("pub", topic, stdin="a\nb\nc\n").exit_code == 0
    scraper = Scraper(CONSUMED)
    monkeypatch.setattr(prometheus, "serve", scraper.serve)

    def interrupt() -> None:
        scraper.seen.wait()
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        result = invoke("tail", topic, "--channel", "billing", "--consume", "--metrics-port", "0")
    finally:
        scraper.seen.set()
        interrupting.join()
    assert result.exit_code == 0, result.output
    assert f"\n{CONSUMED}{{" in scraper.page


def test_commands_that_run_long_have_it(invoke: Invoke, topic: str) -> None:
    for arguments in (("tail", topic, "--idle", "0.2"), ("pub", topic)):
        result = invoke(*arguments, "--metrics-port", "0", stdin="")
        assert result.exit_code == 0, result.output
        assert re.search(r"^metrics: http://127\.0\.0\.1:\d+/metrics$", result.stderr, re.MULTILINE)
