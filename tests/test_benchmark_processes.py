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


def test_a_server_is_found_by_the_port_that_it_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners(frozenset({port})) == {os.getpid()}
        with socket.create_connection(("127.0.0.1", port)):
            assert listeners(frozenset({port})) == {os.getpid()}, "who is connected is no server"
    assert listeners(frozenset({port})) == frozenset()


def test_cpu_counts_what_runs_below_and_what_has_ended_there() -> None:
    before = used()
    burning = subprocess.Popen([sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert burning.stdout is not None
    assert burning.stdout.readline() == b"done\n"
    running = used(frozenset({burning.pid})).since(before)
    assert running.ours >= 0.29, "it runs"
    assert running.servers >= 0.29
    assert running.workers == 0.0
    burning.communicate(b"\n")
    assert used().since(before).ours >= 0.29, "it has ended"
