"""The wire log: a DEBUG line on the logger ``nsq_ha.wire`` for what a connection writes, and for each frame it reads.

A line begins with the connection's name, as in ``c7 127.0.0.1:4150``. Then comes ``>`` with the first command of a
write, without its body, or ``<`` with a frame. Bytes from outside are shown as literals, known secrets are replaced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.base.redaction import excerpt, redact
from nsq_ha.engine.body import MAX_TEXT
from nsq_ha.protocol.encoding import MAGIC

if TYPE_CHECKING:
    from nsq_ha.protocol.client import ClientProtocol, Received

log: Final = logging.getLogger("nsq_ha.wire")


def is_on() -> bool:
    """Return whether lines would be shown."""
    return log.isEnabledFor(logging.DEBUG)


def sent(name: str, data: bytes) -> None:
    """Log a write. What follows the first line of a command, such as the secret of AUTH, is not shown."""
    head, _, rest = data.removeprefix(MAGIC).partition(b"\n")
    more = f" and {len(rest)} bytes" if rest else ""
    log.debug("%s > %s%s", name, excerpt(head, MAX_TEXT)[2:-1], more)


def receive(name: str, protocol: ClientProtocol, data: bytes | memoryview) -> Received:
    """Log the frames of one read, without the bodies of messages, and return them."""
    found = protocol.receive(data)
    lines = ["heartbeat"] * found.heartbeats
    for answer in (*found.answers, *found.refusals):
        if isinstance(answer, bytes):
            lines.append(f"response {excerpt(answer, MAX_TEXT)}")
        else:
            lines.append(f"error {redact(str(answer))}")  # the text of an error is one line
    for message in found.messages:
        lines.append(f"message {message.id.hex()}, attempt {message.attempts}: {len(message.body)} bytes")
    lines += ["message that cannot be decoded"] * len(found.damaged)
    for line in lines:
        log.debug("%s < %s", name, line)
    return found
