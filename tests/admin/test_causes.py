"""Each cause is one sentence, with what follows from it, whoever shows it."""

import dataclasses
from collections.abc import Mapping

import pytest

from nsq_ha.admin import LookupdState, NodeStats
from nsq_ha.admin.causes import expected, incidents, incomplete
from nsq_ha.admin.memory import KEPT, Memory, Sighting
from nsq_ha.admin.reading import Reading, Replicas
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.errors import LookupUnavailableError
from nsq_ha.policy.topology import Node
from tests.dashboard.conftest import channel, node, partition, reading

A, B, C = ("n:1", "n:2", "n:3")
TOPICS = [f"t{number}" for number in range(14)]
LED = [partition(topic) for topic in TOPICS]
FOLLOWED = [partition(topic, is_leader=False) for topic in TOPICS]
WHOLE = reading(100.0, node(1, *LED), node(2, *FOLLOWED), node(3, *FOLLOWED))


def replicas(in_sync: set[str], behind: set[str]) -> Mapping[tuple[str, int], Replicas]:
    return {(topic, 0): Replicas(frozenset(in_sync), frozenset(behind)) for topic in TOPICS}


def after(at: float, *nodes: NodeStats, before: Reading = WHOLE, **changes: object) -> Reading:
    return dataclasses.replace(reading(at, *nodes, before=before), **changes)  # type: ignore[arg-type]  # its fields


def said(now: Reading) -> list[str]:
    return [each.sentence(now.at) for each in incidents(now)]


KILLED = after(104.0, node(2, *FOLLOWED), node(3, *FOLLOWED), replicas=replicas({A, B, C}, set()))
ELECTED = after(106.0, node(2, *LED), node(3, *FOLLOWED), before=KILLED, replicas=replicas({B, C}, {A}))
LATER = after(114.0, node(2, *LED), node(3, *FOLLOWED), before=ELECTED, replicas=replicas({B, C}, {A}))
HANGS = dataclasses.replace(node(1, error="no complete answer within 2 s"), hangs=True)


def ill(health: str) -> NodeStats:
    return dataclasses.replace(node(2, *FOLLOWED), health=health)


def slow(port: int, took: float, *held: object) -> NodeStats:
    return dataclasses.replace(node(port, *held), took=took)  # type: ignore[arg-type]  # partitions


def lookupds(*errors: str, leads: int = 0) -> tuple[LookupdState, ...]:
    return tuple(LookupdState(f"http://l{n}:4161", n == leads, text, (A,)) for n, text in enumerate(errors))


TWO_LOOKUPDS = reading(100.0, node(1), lookupds=lookupds("", ""))
HANGING = "nsqd n:1 hangs or is cut off for 4 s"
GONE_FOR_4 = "nsqd n:1 gone for 4 s; 14 partitions led by others after 4 s"
UNSTABLE = (
    "the cluster is unstable: a node joins or leaves, or replicas are copied; until then topics cannot be expanded, and"
    " leaders not moved"
)
CUT_OFF = "nsqd n:1 answers, but no nsqlookupd lists it for 4 s; clients do not find what is there"
HALF = (LookupdState("http://l0:4161", True, "", (A, B)), LookupdState("http://l1:4161", False, "", (A,)))


@pytest.mark.parametrize(
    ("now", "expected_sentences"),
    [
        (WHOLE, []),
        (KILLED, ["nsqd n:1 gone for 4 s; 14 partitions have no leader; one more loss stops writes of 14 topics"]),
        (
            LATER,
            ["nsqd n:1 gone for 14 s; 14 partitions led by others after 6 s; one more loss stops writes of 14 topics"],
        ),
        (
            after(104.0, node(2, *LED), node(3, *FOLLOWED), replicas=replicas({B}, {A})),
            [GONE_FOR_4 + "; 14 partitions of t0, t1, t10 and 11 more cannot be written"],
        ),
        (reading(5.0, node(2, *LED), before=Reading(0.0, memory=Memory())), []),
        (
            dataclasses.replace(reading(5.0, node(2, *LED), node(3, *FOLLOWED)), replicas=replicas({B, C}, {A})),
            ["nsqd n:1 gone; one more loss stops writes of 14 topics"],
        ),
        (
            after(104.0, HANGS, node(2, *FOLLOWED), node(3, *FOLLOWED)),
            [f"{HANGING}; it leads 14 partitions, which may be out of service"],
        ),
        (
            after(104.0, node(2, *LED), node(3, *FOLLOWED), absent={A: HANGS}),
            [f"{HANGING}; 14 partitions led by others after 4 s"],
        ),
        (after(104.0, node(2, *LED), node(3, *FOLLOWED), absent={A: node(1)}), [CUT_OFF]),
        (
            after(104.0, node(1, error="refused"), node(2, *LED), node(3, *FOLLOWED)),
            ["nsqd n:1 does not answer for 4 s; 14 partitions led by others after 4 s"],
        ),
        (
            after(104.0, node(1, *LED), ill("NOK - no space left on device"), node(3)),
            ["nsqd n:2 cannot write: its disk is full; it says NOK - no space left on device"],
        ),
        (after(104.0, node(1, *LED), ill("NOK - x"), node(3)), ["nsqd n:2 is not healthy; it says NOK - x"]),
        (
            after(104.0, slow(1, 1.4, *LED), slow(2, 0.003), slow(3, 0.003)),
            ["nsqd n:1 is slow: it answered after 1.4 s, the others after 3 ms"],
        ),
        (after(104.0, slow(1, 1.4, *LED), slow(2, 1.0), slow(3, 1.2)), []),
        (
            after(104.0, node(1, *LED), node(2), node(3), replicas=replicas({A, B}, {C})),
            ["nsqd n:3 catches up; it is not in sync yet in 14 partitions of t0, t1, t10 and 11 more"],
        ),
        (
            after(104.0, node(1), before=TWO_LOOKUPDS, cluster=reading(0, lookupds=lookupds("", "refused")).cluster),
            ["nsqlookupd http://l1:4161 does not answer for 4 s; 1 nsqlookupd left to look topics up at"],
        ),
        (
            after(104.0, node(1), before=TWO_LOOKUPDS, cluster=reading(0, lookupds=lookupds("")).cluster),
            ["nsqlookupd http://l1:4161 gone for 4 s; 1 nsqlookupd left to look topics up at"],
        ),
        (
            reading(1.0, node(1), lookupds=lookupds("", "", leads=5)),
            ["no nsqlookupd leads; until one does, leaders cannot change and topics cannot be created or altered"],
        ),
        (
            reading(1.0, node(1), node(2), lookupds=HALF),
            ["nsqlookupds disagree: http://l1:4161 does not list nsqd n:2, another one does"],
        ),
        (reading(1.0, node(1, partition(is_leader=False)), stable=False), ["1 partition has no leader: orders-0"]),
        (reading(1.0, node(1), stable=False), [UNSTABLE]),
        (reading(1.0, errors={"nsqds": "refused"}), ["the cluster does not answer"]),
    ],
)  # fmt: skip
def test_each_cause_is_a_sentence(now: Reading, expected_sentences: list[str]) -> None:
    assert said(now) == expected_sentences
    assert all(each.remedy for each in incidents(now))


def plain(port: int, depth: int = 0, *, error: str = "") -> NodeStats:
    where = Node("n", port, port + 1, is_plain=True)
    held = partition("orders", 0, channel("billing", depth=depth))
    return NodeStats(where, error=error) if error else NodeStats(where, "1.3", "OK", 1, (held,))


def test_a_new_partition_may_be_without_a_leader_for_a_minute() -> None:
    looked, made = reading(100.0, node(1, *LED)), node(1, *LED, partition("new", is_leader=False))
    first = after(104.0, made, before=looked)
    second = after(163.0, made, before=first)
    assert said(first) == said(second) == []
    assert said(after(165.0, made, before=second)) == ["1 partition has no leader: new-0 for 61 s"]
    assert said(reading(104.0, made)) == ["1 partition has no leader: new-0"]


def test_what_waits_at_a_plain_nsqd_is_named() -> None:
    one = reading(100.0, plain(1, 1234), plain(2), is_plain=True)
    two = reading(107.0, plain(2), before=one, is_plain=True)
    assert said(two) == ["nsqd n:1 gone for 7 s; 1,234 messages waited there"]
    assert expected(two) == (1, 2)
    silent = reading(107.0, plain(1, error="refused"), plain(2), before=one, is_plain=True)
    assert said(silent) == ["nsqd n:1 does not answer for 7 s; 1,234 messages waited there"]
    assert incomplete(silent) == incomplete(two) == {"orders"}
    never = reading(107.0, plain(1, error="refused"), plain(2), is_plain=True)
    assert incomplete(never) == frozenset()  # it is not known what it has


BOTH = reading(100.0, plain(1, 5), plain(2, 7), is_plain=True)
NO_ANSWER = dict.fromkeys(("cluster", "nodes", "topics"), "refused")


def test_nsqlookupds_that_have_forgotten_all_are_one_cause_and_no_topic_is_gone() -> None:
    """After a restart two nsqds were cut off each by itself, and the topics gone: charts fell to 0."""
    now = dataclasses.replace(
        reading(102.0, before=BOTH, is_plain=True), absent={A: plain(1, 5), B: plain(2, 7)}, listed={}
    )
    many = "2 nsqds answer, but no nsqlookupd lists them: n:1, n:2 for 2 s; clients do not find what is there"
    assert (said(now), now.names, expected(now)) == ([many], ["orders"], (2, 2))
    assert [each.depth for each in now.rows] == [12]
    assert incomplete(now) == frozenset()  # nothing is missing in the sum
    assert {each.health for each in now.nsqds.values()} == {"not listed"}
    assert "etcd" not in incidents(now)[0].remedy


def test_what_waits_where_a_plain_topic_has_no_channel_is_counted() -> None:
    two = [partition("orders", 0, channel("billing", depth=5)), partition("orders")]
    two[1] = dataclasses.replace(two[1], unrouted=7)
    nodes = [dataclasses.replace(plain(port + 1), partitions=(each,)) for port, each in enumerate(two)]
    now = reading(1.0, *nodes, is_plain=True)
    assert [[(row.name, row.depth) for row in rows] for rows in (now.rows, now.parts)] == [
        [("billing", 5), ("", 7)]
    ] * 2


def test_without_nsqlookupds_the_nsqds_that_are_known_are_shown() -> None:
    absent = {A: plain(1, 5), B: plain(2, error="refused")}
    now = dataclasses.replace(reading(102.0, before=BOTH, is_plain=True, errors=NO_ANSWER), absent=absent)
    now.require()
    assert said(now) == [
        "no nsqlookupd answers for 2 s; clients that start find nothing; those that run know their nsqds",
        "nsqd n:2 gone for 2 s; 7 messages waited there",
    ]
    assert ([each.depth for each in now.rows], [each.error for each in now.lookupds]) == ([5], ["refused"])
    assert incomplete(now) == {"orders"}
    assert incomplete(dataclasses.replace(now, absent={A: plain(1, 5), B: plain(2, 7)})) == frozenset()
    nobody = dataclasses.replace(now, errors=NO_ANSWER | {"nsqds": "refused"}, at=200.0)
    assert said(nobody)[0].startswith("no nsqlookupd answers, last seen by nsq-ha 100 s ago; clients")
    with pytest.raises(LookupUnavailableError, match="refused"):
        nobody.require()


def test_a_partition_stays_without_leader_though_its_nsqd_is_back() -> None:
    """It led only as "unstable": the nsqd that returned did not hold the partition yet, and nobody else did."""
    names = {"orders": TopicInfo("orders")}
    gone = after(102.0, node(2), before=reading(100.0, node(1, partition("orders")), node(2)), listed=names)
    back = after(104.0, node(1), node(2), before=gone, listed=names)
    assert said(back) == ["1 partition has no leader: orders-0 for 4 s"]
    later = after(300.0, node(1, partition("orders", is_leader=False)), node(2), before=back, listed=names)
    assert said(later) == ["1 partition has no leader: orders-0 for 3 min"]
    assert said(after(302.0, node(1), node(2), before=later)) == []  # the topic was deleted
    asleep = reading(100.0, node(1, partition("orders")))
    unseen = after(900.0, node(1, partition("orders", is_leader=False)), before=asleep)
    assert said(unseen) == ["1 partition has no leader: orders-0, last seen led by nsq-ha 13 min ago"]


def test_partitions_that_moved_are_counted_though_others_have_no_leader() -> None:
    """One partition without another replica kept "led by others after" from ever being said."""
    before = reading(100.0, node(1, *LED[:3]), node(2, *FOLLOWED[:2]))
    lost = after(102.0, node(2, *FOLLOWED[:2]), before=before)
    now = after(104.0, node(2, *LED[:2]), before=lost, listed={TOPICS[2]: TopicInfo(TOPICS[2])})
    text = "nsqd n:1 gone for 4 s; 2 partitions led by others after 4 s; 1 partition has no leader"
    assert said(now) == [text]
    unwatched = after(140.0, node(2, *LED[:2]), before=lost)
    assert said(unwatched) == ["nsqd n:1 gone for 40 s; 2 partitions led by others"]


def test_a_silent_nsqd_was_last_seen_when_somebody_looked() -> None:
    now = after(160.0, node(1, error="refused"), node(2, *LED), node(3, *FOLLOWED))
    assert said(now) == ["nsqd n:1 does not answer, last seen by nsq-ha 60 s ago; 14 partitions led by others"]


def test_partitions_that_nobody_leads_since_a_follower_died_follow_from_its_death() -> None:
    """The loss of a majority was a second incident, of the cluster."""
    led = [partition(topic, is_leader=False) for topic in TOPICS]
    now = after(104.0, node(2, *led), before=reading(100.0, node(1, *FOLLOWED), node(2, *LED)))
    [found] = incidents(now)
    text = "nsqd n:1 gone for 4 s; 14 partitions have no leader, since too few replicas are left"
    assert (found.sentence(now.at), found.is_bad, len(found.unled)) == (text, True, 14)


@pytest.mark.parametrize(
    ("thin", "text"),
    [
        (TOPICS[:4], "14 partitions have no leader"),
        (["other"], "14 partitions have no leader; 1 more partition of other cannot be written"),
        (["other", *TOPICS], "14 partitions have no leader; 1 more partition of other cannot be written"),
    ],
)
def test_a_partition_without_a_leader_is_not_counted_twice(thin: list[str], text: str) -> None:
    """It cannot be written either: "5 have no leader; 4 cannot be written" counted some twice, and left some out."""
    few = {(topic, 0): Replicas(frozenset({B}), frozenset({A, C})) for topic in thin}
    now = after(104.0, node(2, *FOLLOWED, partition("other")), node(3), replicas=few)
    assert [each.sentence(now.at) for each in incidents(now) if each.subject == A] == [f"nsqd n:1 gone for 4 s; {text}"]


def test_the_worst_comes_first() -> None:
    killed = dataclasses.replace(KILLED, memory=Memory(KILLED.memory.nsqds))
    now = dataclasses.replace(killed, cluster=reading(0, lookupds=HALF).cluster)
    assert [each.trouble for each in incidents(now)] == ["gone", "disagree"]
    assert expected(now) == (2, 3)


def test_a_loss_long_after_the_last_look_has_no_beginning() -> None:
    now = after(4000.0, node(2, *LED), node(3, *FOLLOWED))
    assert said(now) == ["nsqd n:1 gone, last seen by nsq-ha 65 min ago; 14 partitions led by others"]


def test_an_nsqd_that_left_without_a_trace_stops_nothing() -> None:
    one = reading(100.0, node(1, *LED), node(2))
    [found] = incidents(reading(101.0, node(1, *LED), before=one))
    assert (found.is_bad, "nsq-ha node forget n:2" in found.remedy) == (False, True)


# ---------------------------------------------------------------- what is remembered


def test_another_cluster_at_the_same_address_misses_nothing() -> None:
    old = Memory({A: Sighting(1.0)})
    assert old.after(2.0, {B: Sighting(2.0)}, (), {}).nsqds.keys() == {B}
    assert old.after(2.0, {}, (), {}).nsqds.keys() == {A}


def test_servers_are_forgotten_after_a_day_or_by_name() -> None:
    known = Memory({A: Sighting(1.0), B: Sighting(KEPT)}, {"http://l": Sighting(KEPT)})
    assert known.after(KEPT + 2, {B: Sighting(KEPT + 2)}, (), {}).nsqds.keys() == {B}
    assert known.without(A) == Memory({B: Sighting(KEPT)}, {"http://l": Sighting(KEPT)})
    assert known.without("http://l").lookupds == {}
