"""Standard streams that are closed, or that cannot be written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsq_ha.devcluster import DevCluster

FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def command(cluster: DevCluster, line: str, streams: str) -> subprocess.CompletedProcess[str]:
    """Run ``nsq-ha`` from a shell, which alone can start a program with a stream closed."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -m nsq_ha.cli {line} {streams}', sys.executable],
        env=os.environ | {"NSQ_HA_LOOKUPD": cluster.lookupd[0]},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@needs_full
def test_output_that_cannot_be_written_is_one_line(cluster: DevCluster, topic: str) -> None:
    ran = command(cluster, "topic list", f"> {FULL}")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "Error: [Errno 28] No space left on device\n"


def test_closed_streams_are_no_failure(cluster: DevCluster, topic: str) -> None:
    ran = command(cluster, "topic list", "<&- >&- 2>&-")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_closed_input_is_reported(cluster: DevCluster, topic: str) -> None:
    ran = command(cluster, f"pub {topic}", "<&-")
    assert (ran.returncode, ran.stderr) == (1, "Error: standard input is closed: there is nothing to publish\n")
