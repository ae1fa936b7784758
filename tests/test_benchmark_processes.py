"""What the benchmarks read of processes from ``/proc``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import listeners, used

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
SEEN = 0.25
"""Linux cuts the times in user and in system mode to ticks of 10 ms, each by itself."""


def test_a_server_is_found_by_the_port_that_it_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners(frozenset({port})) == {os.getpid()}
        with socket.create_connection(("127.0.0.1", port)):
            assert listeners(frozenset({port})) == {os.getpid()}, "who is connected is no server"
    assert listeners(frozenset({port})) == frozenset()


def test_cpu_counts_what_runs_below_and_what_has_ended_there() -> None:
    before = used()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as burning:
        assert burning.stdout is not None
        assert burning.stdout.readline() == b"done\n"
        running = used(frozenset({burning.pid})).since(before)
        burning.communicate(b"\n")
    assert running.ours > SEEN, "it runs"
    assert running.servers > SEEN
    assert running.workers == 0.0
    assert used().since(before).ours > SEEN, "it has ended"
