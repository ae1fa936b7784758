"""The attributes of spans, by OpenTelemetry's semantic conventions for messaging.

What those have no name for begins with ``messaging.nsq.``. Ids are texts in the form in which the command line shows
them.

Source: OpenTelemetry, "Semantic conventions for messaging spans".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsq_ha.base.identity import is_upstream_id
from nsq_ha.errors import PublishError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.message import Message, Receipt

Attributes = dict[str, str | int | float | bool]

MAYBE_STORED: Final = "messaging.nsq.maybe_stored"
"""Of a failed publish: whether the message may be stored nevertheless."""

UNCERTAIN: Final = "messaging.nsq.uncertain"
"""Of a batch: number of failed messages that may be stored nevertheless."""

FAILED: Final = "messaging.nsq.failed"
"""Of a batch: number of failed messages."""

ATTEMPTS: Final = "messaging.nsq.attempts"
"""How often a publish was written, or a message delivered."""

OFFSET: Final = "messaging.nsq.offset"
"""Byte position in the partition's queue."""

TRACE_ID: Final = "messaging.message.conversation_id"
"""NSQ's trace id: it joins the spans of a publish and of its deliveries on topics without headers."""


def of_operation(kind: str, name: str, topic: str) -> Attributes:
    """Return what all spans have.

    Args:
        kind: ``send``, ``receive`` or ``process``.
        name: What NSQ calls it.
        topic: The topic.
    """
    return {
        "messaging.system": "nsq",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": topic,
    }


def of_bodies(bodies: Sequence[object]) -> Attributes:
    """Return how many messages are published; for one, its size."""
    if len(bodies) != 1:
        return {"messaging.batch.message_count": len(bodies)}
    body = getattr(bodies[0], "body", bodies[0])
    return {"messaging.message.body.size": len(body)} if isinstance(body, bytes) else {}


def of_server(nsqd: str | None) -> Attributes:
    """Return the address of an nsqd, given as ``host:port``."""
    host, _, port = (nsqd or "").rpartition(":")
    if not host:
        return {}
    address: Attributes = {"server.address": host.strip("[]")}
    return {**address, "server.port": int(port)} if port.isdecimal() else address


def of_receipt(receipt: Receipt) -> Attributes:
    """Return where a message is stored, and its ids."""
    found: Attributes = {
        "messaging.destination.partition.id": str(receipt.partition),
        ATTEMPTS: receipt.attempts,
        **of_server(receipt.nsqd),
    }
    if receipt.internal_id is not None:
        found["messaging.message.id"] = str(receipt.internal_id)
    if receipt.trace_id:
        found[TRACE_ID] = str(receipt.trace_id)
    if receipt.offset is not None:
        found[OFFSET] = receipt.offset
    return found


def of_outcomes(outcomes: Sequence[Receipt | PublishError]) -> Attributes:
    """Return the outcome of a batch: its place if that is one, and how many messages failed."""
    failed = [outcome for outcome in outcomes if isinstance(outcome, PublishError)]
    places = {(outcome.partition, outcome.nsqd) for outcome in outcomes}
    found: Attributes = {}
    if len(places) == 1:
        [(partition, nsqd)] = places
        found = of_server(nsqd)
        if partition is not None:
            found["messaging.destination.partition.id"] = str(partition)
    if failed:
        found |= {FAILED: len(failed), UNCERTAIN: sum(error.maybe_stored for error in failed)}
    return found


def of_error(error: BaseException) -> Attributes:
    """Return the kind of an error, and of a failed publish, where and whether it may be stored."""
    found: Attributes = {"error.type": error_type(error)}
    if isinstance(error, PublishError):
        found |= {MAYBE_STORED: error.maybe_stored, ATTEMPTS: error.attempts, **of_server(error.nsqd)}
        if error.partition is not None:
            found["messaging.destination.partition.id"] = str(error.partition)
    return found


def error_type(error: BaseException) -> str:
    """Return nsqd's code if it refused a publish, else the name of the class of the error or of its cause."""
    if isinstance(error, PublishError) and error.__cause__ is not None:
        error = error.__cause__
    return error.code if isinstance(error, ServerError) else type(error).__qualname__


def of_messages(messages: Sequence[Message]) -> Attributes:
    """Return where messages come from, and the ids of a single one."""
    first = messages[0]
    found: Attributes = {"messaging.consumer.group.name": first.source.channel}
    if len({message.source.nsqd for message in messages}) == 1:
        found |= of_server(first.nsqd)
    if not is_upstream_id(first.id) and len({message.partition for message in messages}) == 1:
        found["messaging.destination.partition.id"] = str(first.partition)
    if len(messages) != 1:
        return {**found, "messaging.batch.message_count": len(messages)}
    found |= {
        "messaging.message.id": first.id.decode() if is_upstream_id(first.id) else str(first.internal_id),
        "messaging.message.body.size": len(first.body),
        ATTEMPTS: first.attempts,
    }
    if first.trace_id:
        found[TRACE_ID] = str(first.trace_id)
    if first.offset is not None:
        found[OFFSET] = first.offset
    return found
