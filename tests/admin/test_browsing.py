"""Looks at stored messages: which are shown, in which order, and where the next look goes on."""

import asyncio
import dataclasses
import tracemalloc
from typing import Any, cast

import pytest

from nsq_ha import StartFrom
from nsq_ha.admin import AdminClient, PartitionDescription, StoredMessage, TopicDescription, browsing
from nsq_ha.admin.browsing import LATEST, LogLook, LogPlace, LogStart, MessageFilter, browse, decoded, going_on
from nsq_ha.errors import ConfigError, TransportError
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from tests.dashboard.conftest import partition

NODE = Node("n", 1, 2)


def stored(number: int, body: str = "", headers: str = "", trace_id: int = 0) -> StoredMessage:
    return StoredMessage(
        1000 + number, trace_id, number * 1_000_000_000, number * 40, number, body or f"m{number}", headers
    )


class Cluster:
    """A topic whose partitions hold messages ``first``..``last``; the newest ``unflushed`` cannot be read."""

    def __init__(self, *logs: tuple[int, int], unflushed: int = 0, is_plain: bool = False) -> None:
        self.logs, self.unflushed, self.is_plain, self.asked = logs, unflushed, is_plain, 0
        self.error = ""
        self.lost: set[int] = set()
        self.answers = 10**9

    async def describe(self, topic: str) -> TopicDescription:
        view = TopicView(topic, None if self.is_plain else TopicMeta(len(self.logs)), {}, complete=True, exists=True)
        entries = [
            PartitionDescription(n, NODE, True, (), dataclasses.replace(partition(topic, n), messages=last))
            for n, (_, last) in enumerate(self.logs)
        ]
        return TopicDescription(view, tuple(entries), "")

    async def find_message(
        self, topic: str, *, partition: int, number: int | None = None, offset: int | None = None
    ) -> StoredMessage | None:
        self.asked += 1
        if self.asked > self.answers:
            await asyncio.Event().wait()
        if self.error or number in self.lost:
            raise TransportError(self.error or "no answer")
        first, last = self.logs[partition]
        found = number if number is not None else max(first, -(-(offset or 0) // 40))
        return stored(found) if first <= found <= last - self.unflushed else None


async def look(cluster: Cluster, start: LogStart = LATEST, **options: Any) -> LogLook:  # noqa: ANN401 - those of browse
    return await browse(cast("AdminClient", cluster), "orders", start, **options)


def seen(found: LogLook) -> list[tuple[int, int]]:
    return [(each.partition, each.message.number) for each in found.messages]


@pytest.mark.parametrize(
    ("cluster", "start", "numbers", "older", "newer"),
    [
        (Cluster((1, 9)), LATEST, [6, 7, 8, 9], {0: 5}, {0: 10}),
        (Cluster((1, 9), unflushed=2), LATEST, [4, 5, 6, 7], {0: 3}, {0: 8}),
        (Cluster((7, 9)), LATEST, [7, 8, 9], {}, {0: 10}),
        (Cluster((1, 9)), StartFrom.beginning(), [1, 2, 3, 4], {}, {0: 5}),
        (Cluster((5, 9)), StartFrom.beginning(), [5, 6, 7, 8], {0: 4}, {0: 9}),
        (Cluster((1, 9)), StartFrom.timestamp(6), [6, 7, 8, 9], {0: 5}, {0: 10}),
        (Cluster((1, 9)), StartFrom.timestamp(99), [], {0: 9}, {0: 10}),
        (Cluster((1, 9)), StartFrom.offset(130), [4, 5, 6, 7], {0: 3}, {0: 8}),
        (Cluster((1, 9)), LogPlace({0: 5}, is_backward=True), [2, 3, 4, 5], {0: 1}, {0: 6}),
        (Cluster((1, 9)), LogPlace({0: 8}), [8, 9], {0: 7}, {0: 10}),
        (Cluster((1, 0)), LATEST, [], {}, {0: 1}),
        (Cluster((1, 3), unflushed=3), LATEST, [], {}, {0: 1}),
        (Cluster((1, 3), unflushed=3), StartFrom.beginning(), [], {}, {0: 1}),
        (Cluster((1, 3), unflushed=3), StartFrom.timestamp(0), [], {}, {0: 1}),
        (Cluster((1, 3), unflushed=3), StartFrom.offset(0), [], {}, {0: 1}),
        (Cluster((1, 3), unflushed=3), StartFrom.count(2), [], {0: 1}, {0: 2}),
    ],
)
async def test_where_a_look_begins_and_goes_on(
    cluster: Cluster, start: LogStart, numbers: list[int], older: dict[int, int], newer: dict[int, int]
) -> None:
    found = await look(cluster, start, count=4)
    assert [number for _, number in seen(found)] == numbers
    assert (found.older, found.newer) == (older, newer)


async def test_it_reads_as_many_of_each_partition_and_sorts_by_time() -> None:
    found = await look(Cluster((1, 9), (1, 5)), count=4)
    assert seen(found) == [(1, 4), (1, 5), (0, 8), (0, 9)]
    assert seen(await look(Cluster((1, 9), (1, 5)), count=4, partitions=[1])) == [(1, 2), (1, 3), (1, 4), (1, 5)]


async def test_a_filter_reads_on_until_enough_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "MAX_SCANNED", 50)
    found = await look(Cluster((1, 1000)), count=3, wanted=MessageFilter("m98"))
    assert seen(found) == [(0, n) for n in (980, 981, 982, 983, 984, 985, 986, 987, 988, 989)][-len(found.messages) :]
    none = await look(Cluster((1, 1000)), count=3, wanted=MessageFilter("absent"))
    assert (none.messages, none.read <= 52, none.older) == ((), True, {0: 1000 - none.read})


async def test_what_was_read_before_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading was slow, a step was larger than the limit allows: --follow never came further."""
    monkeypatch.setattr(browsing, "_BATCH", 4)
    cluster = Cluster((1, 99))
    cluster.answers = 10
    found = await look(cluster, StartFrom.beginning(), count=90, limit=0.05)
    assert (len(found.messages), found.newer, found.left) == (8, {0: 9}, 91)


@pytest.mark.parametrize("text", ["needle", "absent"])
async def test_large_bodies_are_compared_whole_and_kept_in_part(text: str) -> None:
    """A search of a page held 64 of them at a time."""

    class Large(Cluster):
        async def find_message(
            self, topic: str, *, partition: int, number: int | None = None, offset: int | None = None
        ) -> StoredMessage | None:
            found = await super().find_message(topic, partition=partition, number=number, offset=offset)
            return None if found is None else dataclasses.replace(found, body="x" * 2**20 + "needle")

    tracemalloc.start()
    try:
        found = await look(Large((1, 200)), count=3, wanted=MessageFilter(text), most_body=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {each.message.body for each in found.messages} == ({"x" * 100} if text == "needle" else set())
    assert peak < 8 * 2**20


async def test_a_look_ends_when_it_has_much_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 messages of 1 MiB were held at once."""
    monkeypatch.setattr(browsing, "MOST_KEPT", 8)
    first = await look(Cluster((1, 99)), StartFrom.beginning(), count=90)
    assert (len(first.messages), first.newer, first.left) == (64, {0: 65}, 35)
    assert any("the look ended" in note for note in first.notes)
    rest = await look(Cluster((1, 99)), LogPlace(first.newer), count=90)
    assert seen(rest)[0] == (0, 65)


async def test_a_look_says_how_many_it_did_not_reach() -> None:
    assert [(await look(Cluster((1, 9)), start, count=4)).left for start in (LATEST, StartFrom.beginning())] == [5, 5]
    assert (await look(Cluster((7, 9)), count=4)).left == 0
    unread = await look(Cluster((1, 9), unflushed=2), count=4, wanted=MessageFilter("m"))
    assert unread.notes == ("2 cannot be read: they are not flushed yet, or were cleaned up",)
    assert (await look(Cluster((1, 9), unflushed=2), StartFrom.beginning(), count=9)).left == 0
    backward = LogPlace({1: 7, 0: 5}, is_backward=True)
    assert (str(backward), going_on("older:0:5,1:7")) == ("older:0:5,1:7", backward)
    assert going_on("newer:0:5") == LogPlace({0: 5})
    assert [going_on(text) for text in ("older:", "older:0", "0:5", "beginning", "newer:0:5,")] == [None] * 5


@pytest.mark.parametrize(
    ("options", "text"),
    [({"header": "=y"}, "header must be a name, or name=value"), ({"trace_id": 2**64}, "trace id must be 0..18446744")],
)
def test_what_no_message_can_have_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        MessageFilter(**options)


async def test_an_answer_that_is_missing_does_not_end_the_log() -> None:
    """What is older counted as cleaned up, so a search said that it had looked at all."""
    cluster = Cluster((1, 9))
    cluster.lost = {5}
    found = await look(cluster, count=9)
    assert seen(found) == [(0, 6), (0, 7), (0, 8), (0, 9)]
    assert (found.older, found.left, found.notes) == ({0: 5}, 5, ("orders-0 cannot be read: no answer",))
    cluster.lost.clear()
    again = await look(cluster, LogPlace(found.older, is_backward=True), count=9)
    assert (seen(again), again.older, again.left) == ([(0, n) for n in range(1, 6)], {}, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"count": 0}, "count must be 1..500, not 0"),
        ({"partitions": [3]}, "topic 'orders' has no partition 3; it has 1"),
    ],
)
async def test_what_does_not_exist_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await look(Cluster((1, 9)), **options)


@pytest.mark.parametrize("which", [{}, {"key": "user-42"}, {"partitions": [3]}])
async def test_while_the_number_of_partitions_is_unknown_nothing_is_read(which: dict[str, Any]) -> None:
    """While a topic grows, two nsqlookupds differ for 2 s: a key was divided by 0, and others found nothing."""
    found = await look(Cluster(), **which)
    note = "the nsqlookupds do not agree how many partitions 'orders' has: try again in some seconds"
    assert (found.messages, found.notes) == ((), (note,))


HEADERS = '{"a":"1","n":2,"##client_dispatch_tag":"red"}'


@pytest.mark.parametrize(
    ("wanted", "is_shown"),
    [
        (MessageFilter(), True),
        (MessageFilter("paid"), True),
        (MessageFilter("refunded"), False),
        (MessageFilter(trace_id=7), True),
        (MessageFilter(trace_id=0), False),
        (MessageFilter(header="a"), True),
        (MessageFilter(header="a=1"), True),
        (MessageFilter(header="n=2"), True),
        (MessageFilter(header="a=2"), False),
        (MessageFilter(header="b"), False),
        (MessageFilter(tag="red"), True),
        (MessageFilter(tag="blue"), False),
        (MessageFilter("paid", "a=1", "red", 7), True),
    ],
)
def test_all_that_is_given_must_be_true(wanted: MessageFilter, *, is_shown: bool) -> None:
    assert wanted.has(stored(1, "it was paid", HEADERS, 7)) is is_shown


@pytest.mark.parametrize("headers", ["", "x", "[1]", "[" * 100_000])
def test_damaged_headers_match_nothing(headers: str) -> None:
    assert not MessageFilter(header="a").has(stored(1, headers=headers))
    assert MessageFilter("m1").has(stored(1, headers=headers))


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        ('{"a":1}', "json", '{\n  "a": 1\n}'),
        ('{"a":1}', "text", '{"a":1}'),
        ("{no", "json", "{no"),
        ("[" * 100_000, "json", "[" * 100_000),
        ("a\n", "hex", "00000000  61 0a                                            a."),
        ("", "hex", ""),
    ],
)
def test_bodies_are_decoded(body: str, form: browsing.Form, shown: str) -> None:
    assert decoded(body, form) == shown
