"""The bodies of publishes by HTTP, which both kinds of nsqd read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.http.envelope import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request


async def read_body(request: Request, largest: int, too_big: str) -> bytes:
    """Read the body.

    Raises:
        HttpError: It is larger than ``largest``.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise HttpError(413, too_big)
    return bytes(body)


def counted_messages(body: bytes) -> list[bytes]:
    """Split a counted batch.

    Raises:
        HttpError: Its counts do not match its length.
    """
    count = int.from_bytes(body[:4], "big", signed=True)
    if count <= 0 or count > len(body):
        raise HttpError(413, "BAD_BODY")
    messages, position = [], 4
    for _ in range(count):
        size = int.from_bytes(body[position : position + 4], "big", signed=True)
        position += 4
        if size <= 0 or position + size > len(body):
            raise HttpError(413, "BAD_MESSAGE")
        messages.append(body[position : position + size])
        position += size
    return messages
