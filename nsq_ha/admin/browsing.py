"""Look at the messages of a partitioned topic in its logs, without touching any channel.

The leaders answer one message after another, by its number, so a look reads a bounded number of them and says where the
next one goes on. :class:`MessageFilter` and :func:`decoded` are pure.

The invariant: nothing is created, moved or confirmed, and a look ends within its limits.

Source: server protocol 12.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.message import TAG_KEY
from nsq_ha.options.start_from import StartFrom
from nsq_ha.policy.sharding import murmur3

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from nsq_ha.admin.client import AdminClient
    from nsq_ha.admin.description import TopicDescription
    from nsq_ha.admin.nsqd_http import StoredMessage

MAX_COUNT: Final = 500
"""Messages of one look."""

MAX_SCANNED: Final = 5000
"""Messages that are read for one look."""

_AT_ONCE: Final = 4
"""Requests at the same time; with more, looking for a free connection costs more than it saves."""

_BATCH: Final = 64
"""Messages of one step."""

MOST_KEPT: Final = 32 * 2**20
"""Characters of the messages of one look after which it ends, and says where to go on."""

_MAX_JSON: Final = 256 * 1024

_PLACE: Final = re.compile(r"([0-9]{1,4}):([0-9]{1,18})")

Form = Literal["text", "json", "hex"]
"""How a body is shown: as it is, with the indents of JSON if it is JSON, as hexadecimal numbers."""

FORMS: Final[tuple[Form, ...]] = ("text", "json", "hex")


class Browsed(NamedTuple):
    """A stored message and its partition."""

    partition: int
    message: StoredMessage

    @property
    def headers(self) -> Mapping[str, object]:
        """Its extension headers, without the server's own; empty if there are none, or they are damaged."""
        return {name: value for name, value in headers_of(self.message).items() if not name.startswith("##")}

    @property
    def tag(self) -> str | None:
        """Its tag. None if it has none."""
        tag = headers_of(self.message).get(TAG_KEY)
        return tag if isinstance(tag, str) else None

    @property
    def is_damaged(self) -> bool:
        """Whether the server may have replaced bytes of the body that are not UTF-8."""
        return "\ufffd" in self.message.body


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Which messages are shown; all that is given must be true.

    Attributes:
        text: A part of the body.
        header: A header's name, or ``name=value``.
        tag: The tag.
        trace_id: The trace id.

    Raises:
        ConfigError: The header has no name, or no message can have the trace id.
    """

    text: str = ""
    header: str = ""
    tag: str = ""
    trace_id: int | None = None

    def __post_init__(self) -> None:
        """Check what a person wrote."""
        if self.header.startswith("="):
            raise ConfigError(f"header must be a name, or name=value, not {self.header[:40]!r}")
        if not 0 <= (self.trace_id or 0) < 2**64:
            raise ConfigError(f"trace id must be 0..{2**64 - 1}, not {self.trace_id}")

    def has(self, stored: StoredMessage) -> bool:
        """Return whether a message is one of them."""
        if self.text not in stored.body or self.trace_id not in (None, stored.trace_id):
            return False
        if not (self.header or self.tag):
            return True
        headers = headers_of(stored)
        name, has_value, value = self.header.partition("=")
        if name and (name not in headers or (has_value and str(headers[name]) != value)):
            return False
        return not self.tag or headers.get(TAG_KEY) == self.tag


class LogLook(NamedTuple):
    """What a look found.

    Attributes:
        messages: By time of publish, the oldest first.
        read: How many were read for that.
        older: The next number before what was read, by partition; none where the log begins.
        newer: The next number after it, by partition.
        notes: What could not be read.
        left: How many were not read, since enough were found or the limit was reached.
    """

    messages: tuple[Browsed, ...]
    read: int
    older: Mapping[int, int]
    newer: Mapping[int, int]
    notes: tuple[str, ...]
    left: int = 0


class LogPlace(NamedTuple):
    """Where a look goes on.

    Attributes:
        numbers: The number to begin with, by partition.
        is_backward: It goes to older messages.
    """

    numbers: Mapping[int, int]
    is_backward: bool = False

    def __str__(self) -> str:
        """Return it as :func:`going_on` reads it."""
        places = ",".join(f"{partition}:{number}" for partition, number in sorted(self.numbers.items()))
        return f"{'older' if self.is_backward else 'newer'}:{places}"


LogStart = StartFrom | LogPlace
"""Where a look begins. From the end it goes to older messages."""

LATEST: Final = StartFrom.end()


def going_on(text: str) -> LogPlace | None:
    """Return where a look goes on: ``older:`` or ``newer:``, and partitions with numbers. None if it says no place."""
    kind, _, places = text.partition(":")
    found = [_PLACE.fullmatch(each) for each in places.split(",", 1024)]
    if kind not in ("older", "newer") or None in found:
        return None
    return LogPlace({int(each[1]): int(each[2]) for each in found if each is not None}, is_backward=kind == "older")


def check_start(start: LogStart, partitions: Collection[int]) -> None:
    """Check that a place in one partition names the partition.

    Raises:
        ConfigError: It does not.
    """
    is_counted = isinstance(start, StartFrom) and start.kind in ("virtual_queue", "msgcount") and start.value
    if is_counted and len(partitions) != 1:
        raise ConfigError("an offset or a number is a place in one partition: give the partition, too")


async def browse(
    admin: AdminClient,
    topic: str,
    start: LogStart = LATEST,
    *,
    count: int = 20,
    partitions: Iterable[int] = (),
    key: str | None = None,
    wanted: MessageFilter | None = None,
    limit: float = 8.0,
    most_body: int | None = None,
) -> LogLook:
    """Look at messages of a partitioned topic.

    Args:
        admin: An open client.
        topic: The topic.
        start: Where to begin.
        count: How many to show, 1 to :data:`MAX_COUNT`; as many of each partition, so there may be some more.
        partitions: Only these; empty for all.
        key: Only the partition to which publishers with murmur3, the default, send this key.
        wanted: Which; None for all.
        limit: Seconds after which what was found so far is returned.
        most_body: Characters that are kept of a body, once it is compared. None keeps all.

    Raises:
        ConfigError: The cluster is a plain one, or ``count`` or a partition does not exist.
        TopicNotFoundError: The topic does not exist.
    """
    if not 1 <= count <= MAX_COUNT:
        raise ConfigError(f"count must be 1..{MAX_COUNT}, not {count}")
    described = await admin.describe(topic)
    if described.view.is_plain:
        raise ConfigError(
            f"topic {topic!r} is of a plain cluster, whose nsqds show a message only to a consumer, which takes it"
            " away: `nsq-ha tail` shows copies of new messages"
        )
    if not described.view.partition_num:
        note = f"the nsqlookupds do not agree how many partitions {topic!r} has: try again in some seconds"
        return LogLook((), 0, {}, {}, (note,))
    of_key = () if key is None else (murmur3(key) % described.view.partition_num,)
    only = frozenset((*partitions, *of_key))
    is_backward = start.is_backward if isinstance(start, LogPlace) else start == LATEST
    reader = _Reader(admin, topic, described, only, wanted or MessageFilter(), most_body=most_body)
    try:
        async with asyncio.timeout(limit):
            await reader.begin(start, is_backward=is_backward)
            await reader.read(count, is_backward=is_backward)
    except TimeoutError:
        reader.notes.append(f"the look ended at its limit of {limit:g} s")
    return reader.look(is_backward=is_backward)


class _Reader:
    """Reads the logs of the partitions, as many messages of each."""

    def __init__(
        self,
        admin: AdminClient,
        topic: str,
        described: TopicDescription,
        only: frozenset[int],
        wanted: MessageFilter,
        *,
        most_body: int | None,
    ) -> None:
        self._admin, self._topic, self._wanted, self._most_body = admin, topic, wanted, most_body
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._found: list[Browsed] = []
        self._is_filtered = wanted != MessageFilter()
        self._count = self._unread = self._kept = 0
        known = {each.partition: each.stats for each in described.partitions}
        if only - known.keys():
            raise ConfigError(f"topic {topic!r} has no partition {min(only - known.keys())}; it has {len(known)}")
        chosen = {partition: stats for partition, stats in known.items() if not only or partition in only}
        silent = [partition for partition, stats in chosen.items() if stats is None]
        self.notes = [f"{topic}-{each} has no leader that answers, and is left out" for each in silent]
        self._ends = {partition: stats.messages for partition, stats in chosen.items() if stats is not None}
        self._begins = {partition: stats.begin_offset for partition, stats in chosen.items() if stats is not None}
        self._older: dict[int, int] = {}
        self._newer: dict[int, int] = {}
        self._ended: set[int] = set()
        self._failed: set[tuple[int, int | None]] = set()  # partitions and numbers

    async def begin(self, start: LogStart, *, is_backward: bool) -> None:
        """Find the number to begin with in each partition."""

        async def one(partition: int) -> None:
            number = await self._number(partition, start)
            self._older[partition], self._newer[partition] = (
                (number, number + 1) if is_backward else (number - 1, number)
            )

        async with asyncio.TaskGroup() as group:
            for partition in self._ends:
                group.create_task(one(partition))

    async def _number(self, partition: int, start: LogStart) -> int:
        end = self._ends[partition]
        if isinstance(start, LogPlace):
            return max(0, min(start.numbers.get(partition, 0 if start.is_backward else end + 1), end + 1))
        if start == LATEST:
            return end
        offset = max(start.value if start.kind == "virtual_queue" else 0, self._begins[partition])
        first = await self._get(partition, offset=offset)
        if first is None and (offset or (start.kind == "timestamp" and (partition, None) in self._failed)):
            return end + 1
        number = 1 if first is None else first.number  # nothing is flushed yet of a log that begins with message 1
        if start.kind == "msgcount":
            return max(number, min(start.value, end + 1))
        return number if start.kind != "timestamp" else await self._at(partition, number, start.value)

    async def _at(self, partition: int, first: int, seconds: float) -> int:
        """Return the number of the first message that was published at a time or after it."""
        low, high = first, self._ends[partition] + 1
        while low < high:
            middle = (low + high) // 2
            stored = await self._get(partition, number=middle)
            if stored is None or stored.timestamp_ns >= seconds * 1e9:  # the last ones are not flushed yet
                high = middle
            else:
                low = middle + 1
        return low

    async def read(self, count: int, *, is_backward: bool) -> None:
        """Read until enough were found, all were read, or the limit is reached."""
        at, step = (self._older, -1) if is_backward else (self._newer, 1)
        ended, seen = self._ended, set[int]()
        while len(self._found) < count and self._count < MAX_SCANNED and self._kept < MOST_KEPT:
            left = [p for p, number in at.items() if p not in ended and 1 <= number <= self._ends[p]]
            if not left:
                return
            # What was read before the limit ends a step is kept.
            missing = _BATCH if self._is_filtered else min(_BATCH, count - len(self._found))
            each = max(1, min(missing, MAX_SCANNED - self._count) // len(left))
            places = [
                (p, number)
                for p in left
                for number in range(at[p], at[p] + step * each, step)
                if 1 <= number <= self._ends[p]
            ]
            found = await asyncio.gather(*(self._compared(p, number) for p, number in places))
            self._count += len(places)
            for (p, number), (stored, is_wanted) in zip(places, found, strict=True):
                if p in ended:
                    continue
                is_lost = (p, number) in self._failed
                if stored is None and (p in seen or not is_backward):
                    # What is older was cleaned up, unless the answer was lost; what is newer is not flushed yet.
                    ended.add(p)
                    at[p] = number if is_lost or not is_backward else 0
                    continue
                at[p] = number + step
                self._unread += stored is None
                if stored is None and not self._begins[p] and not is_lost:  # nothing was cleaned up yet
                    self._newer[p] = number
                if stored is not None:
                    if is_backward and p not in seen:
                        self._newer[p] = number + 1  # those after it are not flushed yet
                    seen.add(p)
                    if is_wanted:
                        self._found.append(Browsed(p, stored))

    async def _compared(self, partition: int, number: int) -> tuple[StoredMessage | None, bool]:
        """Return a message with what is kept of its body, and whether it is wanted."""
        stored = await self._get(partition, number=number)
        if stored is None:
            return None, False
        is_wanted = self._wanted.has(stored)
        # The bodies of one step may be megabytes each.
        body, headers = (stored.body[: self._most_body], stored.headers) if is_wanted else ("", "")
        self._kept += len(body) + len(headers)
        return replace(stored, body=body, headers=headers), is_wanted

    async def _get(self, partition: int, **where: int) -> StoredMessage | None:
        async with self._slots:
            try:
                return await self._admin.find_message(self._topic, partition=partition, **where)
            except NsqError as error:
                self._failed.add((partition, where.get("number")))
                note = f"{self._topic}-{partition} cannot be read: {error}"
                if note not in self.notes and len(self.notes) < 5:
                    self.notes.append(note)
                return None

    def look(self, *, is_backward: bool) -> LogLook:
        """Return what was found so far."""
        newer = {p: self._ends[p] + 1 - at for p, at in self._newer.items() if p not in self._ended}
        found = sorted(self._found, key=lambda each: (each.message.timestamp_ns, each.partition, each.message.number))
        older = {partition: number for partition, number in self._older.items() if number >= 1}
        if self._unread and self._is_filtered:
            self.notes.append(f"{self._unread:,} cannot be read: they are not flushed yet, or were cleaned up")
        if self._kept >= MOST_KEPT:
            self.notes.append(f"the look ended when it had {MOST_KEPT // 2**20} MiB")
        unread = sum(max(0, count) for count in (self._older if is_backward else newer).values())
        return LogLook(tuple(found), self._count, older, dict(self._newer), tuple(self.notes), unread)


# ---------------------------------------------------------------- what a message says


def headers_of(stored: StoredMessage) -> Mapping[str, object]:
    """Return the extension headers of a message; empty if there are none, or they are damaged."""
    if not stored.headers:
        return {}
    try:
        found = json.loads(stored.headers)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def decoded(body: str, form: Form) -> str:
    """Return a body as it is shown; what is no JSON, or a long one, stays text."""
    if form == "hex":
        data = body.encode("utf-8", "surrogatepass")
        return "\n".join(
            f"{at:08x}  {line.hex(' '):<47}  {''.join(chr(each) if 32 <= each < 127 else '.' for each in line)}"
            for at in range(0, len(data), 16)
            for line in (data[at : at + 16],)
        )
    if form == "text" or len(body) > _MAX_JSON or not body.lstrip().startswith(("{", "[")):
        return body
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return body


def with_plugin(name: str) -> Callable[[str], str]:
    """Return what shows bodies by a function of the user's, ``MODULE:FUNCTION``, which gets bytes.

    Raises:
        ConfigError: There is no such function.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name!r} cannot be loaded: {error}") from error
    if not callable(function):
        raise ConfigError(f"{name!r} is no function")

    def show(body: str) -> str:
        try:
            return str(function(body.encode("utf-8", "surrogatepass")))
        except Exception as error:  # noqa: BLE001 - code of the user's, on messages of anybody
            return f"[{name} failed: {error!r}] {body}"

    return show
