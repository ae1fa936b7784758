"""Messages as they are stored, against what the real server wrote."""

from __future__ import annotations

import pytest

from nsq_ha.protocol.stored import encode_stored

HEAD = "1709a0b0c0d0e0f0"


@pytest.mark.parametrize(
    ("ext", "extended", "rest"),
    [
        (None, False, "0000" + "0004000000000002" + "0000000000000007" + b"body".hex()),
        (None, True, "a000" + "0004000000000002" + "0000000000000007" + "00" + b"body".hex()),
        (b"{}", True, "a000" + "0004000000000002" + "0000000000000007" + "040002" + b"{}body".hex()),
    ],
)
def test_a_message_is_its_size_its_head_and_its_parts(ext: bytes | None, extended: bool, rest: str) -> None:
    stored = encode_stored(0x1709A0B0C0D0E0F0, (1 << 50) + 2, 7, b"body", ext, extended=extended)
    assert stored[4:].hex() == HEAD + rest
    assert int.from_bytes(stored[:4], "big") == len(stored) - 4
