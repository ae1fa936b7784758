"""What two readings say about the time between them, and what is kept of it."""

import dataclasses
import math

import pytest

from nsq_ha.admin import LookupdState
from nsq_ha.admin.causes import incidents, unled
from nsq_ha.admin.reading import Reading
from nsq_ha.dashboard import history as module
from nsq_ha.dashboard.history import ClusterEvent, History, changes
from tests.dashboard.conftest import channel, node, partition, reading


def wrong(now: Reading) -> list[tuple[str, str]]:
    return [(each.trouble, each.subject) for each in incidents(now)]


def texts(before: Reading, after: Reading) -> list[tuple[str, str]]:
    return [(event.subject, event.text) for event in changes(before, after)]


def test_a_leader_that_moves_is_one_event() -> None:
    one = reading(1, node(4150, partition()), node(4250, partition(is_leader=False)))
    two = reading(3, node(4150, partition(is_leader=False)), node(4250, partition()), before=one)
    [event] = changes(one, two)
    text, group = "the leader moved from n:4150 to n:4250", "the leader moved from n:4150"
    assert event == ClusterEvent(3, "leader", "warning", "orders-0", text, "orders", group)


def test_a_silent_leader_is_a_problem_and_no_change_of_leader() -> None:
    one = reading(1, node(4150, partition()), node(4250, partition(is_leader=False)))
    two = reading(3, node(4150, error="no answer"), node(4250, partition(is_leader=False)), before=one)
    assert changes(one, two) == []
    assert wrong(two) == [("silent", "n:4150")]
    assert unled(two) == {("orders", 0): "leader n:4150 does not answer"}
    three = reading(5, node(4150, error="no answer"), node(4250, partition()), before=two)
    assert texts(two, three) == [("orders-0", "the leader moved from n:4150 to n:4250")]
    assert (wrong(three), unled(three)) == ([("silent", "n:4150")], {})


def test_a_leader_that_moves_over_a_time_without_one_is_a_mark_too() -> None:
    kept = History(5)
    kept.add(reading(1, node(4150, partition()), node(4250, partition(is_leader=False))))
    for at in (2, 3):
        kept.add(reading(at, node(4250, partition(is_leader=False)), before=kept.latest))
    kept.add(reading(4, node(4250, partition()), before=kept.latest))
    texts = [(event.level, event.text) for event in kept.events if event.kind == "leader"]
    assert texts[0] == ("bad", "leader n:4150 lost")
    assert ("warning", "the leader moved from n:4150 to n:4250, after a time without one") in texts
    kept.add(reading(5, before=kept.latest))
    kept.add(
        reading(6, node(4250, partition()), before=kept.latest)
    )  # another topic of that name, or the old nsqd again
    assert [event.text for event in kept.events if event.level == "warning"][1:] == ["the topic was deleted"]


EMPTY, HAS_ONE, HAS_TWO = node(1), node(1, partition("a")), node(1, partition("a"), partition("a", 1))
PLAIN, PAUSED, SKIPPED = (
    node(1, partition("a", 0, channel("c", **state))) for state in ({}, {"paused": True}, {"skipped": True})
)
BESIDE = node(2, partition("a", 1, channel("c")))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([EMPTY], [EMPTY, node(2)], [("n:2", "the nsqd joined the cluster")]),
        ([EMPTY, node(2)], [EMPTY], []),
        ([EMPTY], [node(1, started_at=60)], [("n:1", "the nsqd was restarted")]),
        ([EMPTY], [node(1, error="x")], []),
        ([EMPTY], [HAS_ONE], [("a", "the topic was created")]),
        ([HAS_ONE], [EMPTY], [("a", "the topic was deleted")]),
        ([HAS_ONE], [HAS_TWO], [("a-1", "led by n:1"), ("a", "it has 2 partitions, 1 before")]),
        ([HAS_ONE], [PLAIN], [("a/c", "the channel was created")]),
        ([PLAIN], [HAS_ONE], [("a/c", "the channel was deleted")]),
        ([PLAIN], [PAUSED], [("a/c", "the channel is paused")]),
        ([PLAIN, BESIDE], [PAUSED, BESIDE], [("a/c", "the channel is paused on 1 of 2")]),
        ([SKIPPED], [PLAIN], [("a/c", "the channel is no longer skipped")]),
    ],
)
def test_what_two_readings_tell(before: list, after: list, expected: list[tuple[str, str]]) -> None:  # type: ignore[type-arg]
    one = reading(1, *before)
    assert texts(one, reading(2, *after, before=one)) == expected


def test_channels_that_a_silent_nsqd_has_are_not_deleted() -> None:
    one = reading(1, node(1, partition("a", 0, channel("c"))), node(2, partition("a", 1)))
    two = reading(2, node(1, error="x"), node(2, partition("a", 1)), before=one)
    assert changes(one, two) == []


def test_channels_that_a_plain_nsqd_has_alone_are_not_deleted_with_it() -> None:
    one = reading(1, node(1, partition("a")), node(2, partition("a", 0, channel("c"))), is_plain=True)
    two = reading(2, node(1, partition("a")), before=one, is_plain=True)
    three = reading(3, *one.nodes.values(), before=two, is_plain=True)
    assert changes(one, two) == changes(two, three) == []


def test_an_old_reading_tells_nothing_but_that_it_is_old() -> None:
    one = reading(1, node(1, partition("a")), stable=False)
    two = reading(2, errors={"nsqds": "no nsqlookupd answers", "cluster": "x"}, before=one)
    assert changes(one, two) == []
    [found] = incidents(two)
    assert (found.trouble, found.detail) == ("unanswered", "no nsqlookupd answers")
    assert (two.seconds, two.published) == (None, {})


def test_the_first_answer_after_a_failed_first_poll_is_no_news() -> None:
    failed = reading(1, errors={"nsqds": "no answer"})
    assert changes(failed, reading(2, node(1, partition("a")))) == []


def test_series_are_aligned_and_forget() -> None:
    kept = History(3)
    for at in range(1, 6):
        nodes = [node(1, partition("a", 0, channel("c", depth=at, oldest_at=0.0)))] if at != 4 else []
        kept.add(reading(at, *nodes, before=kept.latest))
    assert kept.times == [3, 4, 5]
    [first, second, third] = kept.series("channel", "a", "c", "depth")
    assert (first, third) == (3, 5)
    assert math.isnan(second)
    assert kept.last("channel", "a", "c", "lag") == 5.0
    assert kept.last("channel", "a", "other", "lag") is None
    assert [math.isnan(each) for each in kept.series("nobody")] == [True] * 3


def test_problems_become_periods_and_events() -> None:
    kept = History(10)
    kept.add(reading(1, node(1)))
    kept.add(reading(2, node(1, error="no answer"), before=kept.latest))
    kept.add(reading(3, node(1, error="still no answer"), before=kept.latest))
    [period] = kept.open
    assert (period.trouble, period.subject, period.why, period.began, period.ended) == (
        "silent",
        "n:1",
        "nsqd n:1 does not answer: no answer",
        1,
        None,
    )
    kept.add(reading(5.5, node(1), before=kept.latest))
    assert kept.open == []
    assert [each.ended for each in kept.periods] == [5.5]
    assert [event.text for event in kept.events] == [
        "nsqd n:1 does not answer: no answer",
        "it answers again after 4.5 s",
    ]


def test_while_nobody_answers_what_was_wrong_with_nsqds_stays_open() -> None:
    kept = History(10)
    kept.add(reading(1, node(1, error="x")))
    kept.add(reading(2, errors={"nsqds": "no answer"}, before=kept.latest))
    assert {period.trouble for period in kept.open} == {"silent", "unanswered"}


def test_a_frozen_nsqd_that_leaves_the_lists_has_not_come_back() -> None:
    kept = History(9)
    kept.add(reading(1, node(4150, partition()), node(4250)))
    kept.add(reading(3, node(4150, error="no answer"), node(4250), before=kept.latest))
    kept.add(reading(5, node(4250, partition()), before=kept.latest))
    assert [(each.trouble, each.subject) for each in kept.open] == [("gone", "n:4150")]
    assert not any("answers again" in event.text for event in kept.events)
    kept.add(reading(9, node(4150), node(4250, partition()), before=kept.latest))
    assert not kept.open
    texts = [event.text for event in kept.events if event.subject == "n:4150"]
    assert texts == ["nsqd n:4150 does not answer: no answer", "nsqd n:4150 gone", "it is back after 8 s"]


def test_a_partition_whose_topic_was_deleted_is_not_served_again() -> None:
    kept, other = History(9), partition("b")
    kept.add(reading(1, node(1, partition("a"), other)))
    kept.add(reading(3, node(1, partition("a", is_leader=False), other), before=kept.latest))
    kept.add(reading(5, node(1, other), before=kept.latest))
    assert [event.text for event in kept.events][1:] == ["the topic was deleted"]
    assert not kept.open


def test_what_lasts_in_another_way_is_told_once() -> None:
    """A frozen nsqd hung twice; one that no nsqlookupd listed yet had joined, and was listed again after its freeze."""
    kept, other = History(9), node(4250)
    hung = dataclasses.replace(node(4150, error="no answer"), hangs=True)
    kept.add(reading(1, node(4150), other))
    kept.add(reading(3, hung, other, before=kept.latest))
    kept.add(dataclasses.replace(reading(5, other, before=kept.latest), absent={"n:4150": hung}))
    kept.add(dataclasses.replace(reading(7, other, before=kept.latest), absent={"n:4150": node(4150)}))
    kept.add(reading(9, node(4150), other, before=kept.latest))
    assert [event.text for event in kept.events] == [
        "nsqd n:4150 hangs or is cut off: no answer",
        "nsqd n:4150 answers, but no nsqlookupd lists it",
        "it is back after 8 s",
    ]
    assert [(each.began, each.ended) for each in kept.periods] == [(1, 5), (1, 7), (1, 9)]


def test_an_nsqd_that_hung_at_the_first_look_is_known_when_no_nsqlookupd_lists_it() -> None:
    """A dashboard that was started during a freeze said that the nsqd answers again."""
    kept, other = History(9), node(4250)
    hung = dataclasses.replace(node(4150, error="no answer"), hangs=True)
    now = reading(1, hung, other)
    kept.add(now)
    for at in (3, 5):
        now = reading(at, other, before=now)
        assert now.memory.nsqds["n:4150"].node == hung.node  # so it is asked
        now = dataclasses.replace(now, absent={"n:4150": hung})
        kept.add(now)
    assert [each.sentence(5) for each in incidents(now)] == ["nsqd n:4150 hangs or is cut off"]
    kept.add(dataclasses.replace(reading(7, other, before=now), absent={"n:4150": node(4150)}))
    kept.add(reading(9, node(4150), other, before=kept.latest))
    assert [event.text for event in kept.events] == [
        "nsqd n:4150 hangs or is cut off: no answer",
        "nsqd n:4150 answers, but no nsqlookupd lists it",
        "it is back after 8 s",
    ]


def test_nsqds_that_register_one_after_the_other_are_one_trouble() -> None:
    """The first one ended it for all."""
    kept, nodes = History(9), {f"n:{port}": node(port) for port in (1, 2)}
    kept.add(reading(1, *nodes.values()))
    kept.add(dataclasses.replace(reading(3, before=kept.latest), absent=nodes))
    kept.add(dataclasses.replace(reading(5, nodes["n:1"], before=kept.latest), absent={"n:2": nodes["n:2"]}))
    kept.add(reading(7, *nodes.values(), before=kept.latest))
    assert [event.text for event in kept.events] == [
        "2 nsqds answer, but no nsqlookupd lists them: n:1, n:2",
        "it is back after 6 s",
    ]


def test_while_no_nsqlookupd_answers_none_of_them_does_so_again() -> None:
    kept, names = History(9), ("http://l:1", "http://l:2")
    whole, one = ([LookupdState(url, leads=not error, error=error) for url in names] for error in ("", "refused"))
    kept.add(reading(1, node(1), lookupds=whole))
    kept.add(reading(3, node(1), lookupds=[one[0], whole[1]], stable=False, before=kept.latest))
    none = dict.fromkeys(("cluster", "nodes", "topics"), "refused")
    kept.add(reading(5, node(1), lookupds=whole, errors=none, before=kept.latest))
    assert not [event.text for event in kept.events if event.level == "good"]
    kept.add(reading(7, node(1), lookupds=whole, before=kept.latest))
    assert [event.text for event in kept.events if event.level == "good"] == [
        "it answers again after 6 s",
        "it is stable again after 4 s",
        "it answers again after 4 s",
    ]


def test_an_nsqlookupd_whose_state_was_not_read_once_has_not_come_back() -> None:
    """It was "forgotten after 4 s", and did not answer again 2 s later."""
    kept, names = History(9), ("http://l:1", "http://l:2")
    whole = [LookupdState(url, leads=url == names[0], error="") for url in names]
    one = [whole[0], dataclasses.replace(whole[1], error="refused")]
    kept.add(reading(1, node(1), lookupds=whole))
    kept.add(reading(3, node(1), lookupds=one, before=kept.latest))
    kept.add(reading(5, node(1), lookupds=one, errors={"cluster": "no answer within 5 s"}, before=kept.latest))
    kept.add(reading(7, node(1), lookupds=whole, before=kept.latest))
    assert [event.text for event in kept.events] == [
        "nsqlookupd http://l:2 does not answer: refused",
        "it answers again after 6 s",
    ]


def test_a_server_that_was_forgotten_has_not_come_back() -> None:
    kept = History(9)
    kept.add(reading(1, node(1), node(2)))
    kept.add(reading(2, node(1), before=kept.latest))
    kept.add(reading(3, node(1)))
    assert [event.text for event in kept.events] == ["nsqd n:2 gone", "forgotten after 2 s"]


def test_what_many_partitions_say_is_one_event() -> None:
    """It used to be hundreds, which hid their cause."""
    topics = [f"t{number}" for number in range(200)]
    kept = History(10)
    followed = [partition(topic, 0, is_leader=False) for topic in topics]
    led = [partition(topic) for topic in topics]
    kept.add(reading(1, node(1, *led), node(2, *followed)))
    kept.add(reading(2, node(2, *followed), before=kept.latest))
    kept.add(reading(4, node(2, *led), before=kept.latest))
    kept.add(reading(5, node(1, *followed), node(2, *led), before=kept.latest))
    assert [(event.subject, event.text) for event in kept.events] == [
        ("n:1", "nsqd n:1 gone"),
        ("200 partitions", "leader n:1 lost: t0-0, t1-0, t10-0, t100-0, t101-0 and 195 more"),
        ("200 partitions", "the leader moved from n:1: t0-0, t1-0, t10-0, t100-0, t101-0 and 195 more"),
        ("n:1", "it is back after 4 s"),
    ]
    assert {each.cause for each in kept.periods if each.trouble == "leaderless"} == {"n:1"}
    assert [event.text for event in kept.events_of("t7")] == [
        "leader n:1 lost",
        "the leader moved from n:1 to n:2, after a time without one",
    ]


def test_a_sum_that_lacks_a_partition_is_a_gap() -> None:
    """It used to fall, as if messages had been finished."""
    kept = History(10)
    zero, one = (partition("a", number, channel("c", depth=5)) for number in (0, 1))
    kept.add(reading(1, node(1, zero), node(2, one)))
    kept.add(reading(2, node(1, zero), node(2, error="no answer"), before=kept.latest))
    kept.add(reading(3, node(1, zero), node(2, one), before=kept.latest))
    for key in (("cluster", "depth"), ("channel", "a", "c", "depth")):
        first, gap, last = kept.series(*key)
        assert (first, math.isnan(gap), last) == (10, True, 10)


def test_a_partial_answer_is_no_change_of_the_topic() -> None:
    """After a freeze it "had 2 partitions, 1 before"."""
    kept = History(10)
    parts = [partition("a", number) for number in range(3)]
    kept.add(reading(1, node(1, parts[0]), node(2, parts[1])))
    kept.add(reading(2, node(1, parts[0]), node(2, error="no answer"), before=kept.latest))
    kept.add(reading(3, node(1, parts[0]), before=kept.latest))
    kept.add(reading(4, node(1, parts[0]), node(2, parts[1]), before=kept.latest))
    assert not any(event.kind == "topic" for event in kept.events)
    kept.add(reading(5, node(1, parts[0]), node(2, *parts[1:]), before=kept.latest))
    assert [event.text for event in kept.events if event.kind == "topic"] == ["it has 3 partitions, 2 before"]


def test_what_waits_at_a_plain_nsqd_that_is_gone_is_a_gap() -> None:
    """The sum fell from 9 to 1, as if the others had been finished."""
    kept = History(10)
    one, two = (partition("a", 0, channel("c", depth=depth)) for depth in (1, 8))
    kept.add(reading(1, node(1, one), node(2, two), is_plain=True))
    kept.add(reading(3, node(1, one), before=kept.latest, is_plain=True))
    kept.add(reading(5, node(1, one), node(2, two), before=kept.latest, is_plain=True))
    for key in (("cluster", "depth"), ("channel", "a", "c", "depth")):
        first, gap, last = kept.series(*key)
        assert (first, math.isnan(gap), last) == (9, True, 9)


def test_memory_is_bounded_whatever_the_cluster_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 20)
    monkeypatch.setattr(module, "MAX_PERIODS", 5)
    kept = History(3)
    for at in range(1, 30):
        channels = [channel(f"c{at}-{number}") for number in range(10)]
        silent = [node(1000 * at + number, error="x" * 5000) for number in range(10)]
        kept.add(reading(at, node(1, partition("a", 0, *channels)), *silent, before=kept.latest))
        kept.tell(ClusterEvent(at, "operator", "info", "a", "text"))
    assert kept.count <= 20
    assert len(kept.open) <= 5
    assert len(kept.latest.memory.nsqds) <= 500 if kept.latest else False
    assert len(kept.events) <= module.MAX_EVENTS
    assert max(len(period.why) for period in kept.periods) == module.MAX_TEXT
    assert not math.isnan(kept.series("cluster", "depth")[-1])
    for at in range(30, 34):
        kept.add(reading(at, node(1), before=kept.latest))
    kept.add(reading(34, node(1, partition("a", 0, channel("new"))), before=kept.latest))
    assert not math.isnan(kept.series("channel", "a", "new", "depth")[-1])
