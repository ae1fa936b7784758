"""What streams are read into."""

import subprocess
import sys

import pytest

FORKED = """
import os
from nsq_ha.transport.stream import READ_BYTES, _read_buffer

buffer = _read_buffer()
buffer[:5] = b"ours!"
child = os.fork()
if not child:
    _read_buffer()[:5] = b"child"
    os._exit(0)
os.waitpid(child, 0)
print(bytes(buffer[:5]).decode(), len(buffer) == READ_BYTES, buffer is _read_buffer())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_process_reads_into_memory_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=30)
    assert (ran.stdout, ran.stderr) == ("ours! True True\n", "")
