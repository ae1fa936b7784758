"""Decoding to a type that is new to msgspec, in several threads together."""

import subprocess
import sys

PROGRAM = """
import sys
import threading

from typing import Annotated

import msgspec

from nsq_ha import Message
from tests.support.nsqd import NoSource

sys.setswitchinterval(1e-6)
for _ in range(300):
    number = Annotated[int, msgspec.Meta(ge=0)]
    order = msgspec.defstruct("Order", [(f"field{each}", number | None, None) for each in range(40)])
    begin = threading.Barrier(4)
    found = []

    def decode():
        message = Message(bytes(16), b'{"field1": 3}', 1, 1, NoSource())
        begin.wait()
        found.append(message.json(order).field1)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 4, found
"""


def test_threads_that_decode_to_a_new_type_together() -> None:
    """Four handlers in threads, each with its first message: msgspec ended the process."""
    ended = subprocess.run((sys.executable, "-c", PROGRAM), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
