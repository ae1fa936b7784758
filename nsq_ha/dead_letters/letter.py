"""Read dead letters, and publish them again."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

from nsq_ha.dead_letters.provenance import Provenance, provenance_of
from nsq_ha.dead_letters.writing import MAGIC, PREFIX, VERSION, earlier_of
from nsq_ha.errors import DeadLetterError, RemoteProtocolError
from nsq_ha.message import Message, OutgoingMessage

_T_co = TypeVar("_T_co", covariant=True)


class Publishes(Protocol[_T_co]):
    """A producer, for asyncio or for threads."""

    def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | int | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
    ) -> _T_co:
        """Publish one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message as it was when a consumer gave it up.

    Attributes:
        body: Its body.
        headers: Its headers; empty if it had none.
        tag: Its dispatch tag. None if it had none.
        ext: Its raw extension header, if that was not JSON that can be published again. None otherwise.
        provenance: Where it comes from, and why the consumer gave up on it.
        format: How it was published: ``headers`` or ``envelope``.
    """

    body: bytes
    headers: Mapping[str, object]
    tag: str | None
    ext: bytes | None
    provenance: Provenance
    format: Literal["headers", "envelope"]

    @classmethod
    def of(cls, message: Message) -> DeadLetter:
        """Read a message of a dead-letter topic.

        Raises:
            DeadLetterError: It is no dead letter, or one of a later version, or damaged. The message itself is valid.
        """
        try:
            headers, tag = message.headers, message.tag
        except RemoteProtocolError:  # another program's header; the body may be an envelope
            headers, tag = {}, None
        return _read(message.body, headers, tag, f"{message!r}")

    @property
    def previous(self) -> DeadLetter | None:
        """The earlier dead letter, if a consumer of a dead-letter topic gave up on one."""
        try:
            return _read(self.body, self.headers, self.tag, "the message that was given up")
        except DeadLetterError:
            return None

    def outgoing(self) -> OutgoingMessage:
        """Return the message for :meth:`nsq_ha.Producer.publish_many`: to its partition, with its trace id.

        Raises:
            DeadLetterError: Its extension header cannot be published again.
        """
        if self.ext is not None:
            raise DeadLetterError(
                "the extension header of this dead letter is not JSON that can be published again: publish"
                " letter.body with headers of your own"
            )
        origin = self.provenance
        return OutgoingMessage(
            self.body,
            partition=origin.partition,
            trace_id=origin.trace_id or None,
            headers=self.headers or None,
            tag=self.tag,
        )


def replay(
    producer: Publishes[_T_co],
    letter: DeadLetter,
    *,
    topic: str | None = None,
    key: str | bytes | int | None = None,
    partition: int | None = None,
) -> _T_co:
    """Publish a dead letter to the topic that it comes from, with its body, headers, tag and trace id.

    It goes to its partition, so to the same one as other messages of its key, since a message does not carry its key.

    Args:
        producer: An open :class:`nsq_ha.Producer` or :class:`nsq_ha.sync.Producer` of the origin's cluster.
        letter: The dead letter.
        topic: Another topic; its partition is then chosen as for any message, unless ``key`` or ``partition`` is given.
        key: A key that chooses the partition.
        partition: Another partition.

    Returns:
        What ``producer.publish`` returns: await it, unless the producer is one for threads.

    Raises:
        DeadLetterError: Its extension header cannot be published again. Nothing was sent.
        NsqError: As ``producer.publish``.
    """
    message = letter.outgoing()
    if partition is None and key is None and topic is None:
        partition = message.partition
    given: dict[str, Any] = {
        "key": key,
        "partition": partition,
        "trace_id": message.trace_id,
        "headers": message.headers,
        "tag": message.tag,
    }
    # Without what is not given: a plain cluster knows none of these.
    options = {name: value for name, value in given.items() if value is not None}
    return producer.publish(letter.provenance.topic if topic is None else topic, message.body, **options)


# ---------------------------------------------------------------- reading


def _read(body: bytes, headers: Mapping[str, object], tag: str | None, name: str) -> DeadLetter:
    version = headers.get(f"{PREFIX}version")
    if version is not None:
        _check_version(version, name)
        return _of_headers(body, headers, tag, name)
    if body.startswith(MAGIC):
        line, newline, rest = body.partition(b"\n")
        word, blank, text = line.partition(b" ")
        _check_version(word.removeprefix(MAGIC).decode("ascii", "replace"), name)
        if newline and blank:
            return _of_envelope(text, rest, name)
        raise DeadLetterError(f"{name} is a damaged dead letter: its envelope ends within the first line")
    raise DeadLetterError(
        f"{name} is no dead letter: it has neither headers {PREFIX}... nor an envelope. Perhaps another program"
        f" published it"
    )


def _check_version(version: object, name: str) -> None:
    if version != VERSION:
        raise DeadLetterError(f"{name} is a dead letter of version {version!r:.20}, but this program reads {VERSION!r}")


def _of_headers(body: bytes, headers: Mapping[str, object], tag: str | None, name: str) -> DeadLetter:
    own = {key: value for key, value in headers.items() if not key.startswith(PREFIX)}
    fields = {key.removeprefix(PREFIX): value for key, value in headers.items() if key.startswith(PREFIX)}
    earlier = earlier_of(fields.get("previous"))
    if earlier:
        own |= {PREFIX + key: value for key, value in earlier[0].items()}
        if len(earlier) > 1:
            own[f"{PREFIX}previous"] = json.dumps(earlier[1:], separators=(",", ":"))
    return _letter(fields, name, body=body, headers=own, tag=tag, format="headers")


def _of_envelope(text: bytes, body: bytes, name: str) -> DeadLetter:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DeadLetterError(f"{name} is a damaged dead letter: its envelope is not a JSON object")
    if (size := fields.get("size")) != str(len(body)):
        raise DeadLetterError(
            f"{name} is a damaged dead letter: its body has {len(body)} bytes, but the envelope says {size!r:.20}"
        )
    headers, tag = fields.get("headers", {}), fields.get("tag")
    if not isinstance(headers, dict) or not isinstance(tag, str | None):
        raise DeadLetterError(f"{name} is a damaged dead letter: its headers are not a JSON object, or its tag no text")
    return _letter(fields, name, body=body, headers=headers, tag=tag, format="envelope")


def _letter(fields: Mapping[str, object], name: str, **message: Any) -> DeadLetter:  # noqa: ANN401 - its other fields
    return DeadLetter(ext=_ext(fields, name), provenance=provenance_of(fields, name), **message)


def _ext(fields: Mapping[str, object], name: str) -> bytes | None:
    text = fields.get("ext")
    if text is None:
        return None
    try:
        return base64.b64decode(cast("str", text), validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise DeadLetterError(f"{name} is a damaged dead letter: its field ext is not base64") from None
