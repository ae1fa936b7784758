"""How the answers of several nsqlookupds become one view of a topic."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nsq_ha.policy.topology import (
    CONFIRM_ROUNDS,
    DISPUTED_ROUNDS,
    LookupAnswer,
    Node,
    Pending,
    TopicMeta,
    TopicView,
    changed_leaders,
    merge,
    tcp_address,
    unanswered,
)
from tests.policy.lookup_answers import NODES, answer, denial, empty, good, led, rounds

# ---------------------------------------------------------------- nodes and views


def test_only_a_topic_with_partitions_is_named_with_one() -> None:
    names = [
        TopicView("orders", meta, {}, complete=False, exists=True).name_of(3)
        for meta in (None, TopicMeta(4), TopicMeta(4, is_partitioned=False))
    ]
    assert names == ["orders-3", "orders-3", "orders"]


@pytest.mark.parametrize(
    ("host", "written"), [("10.0.0.1", "10.0.0.1"), ("nsqd-1.example", "nsqd-1.example"), ("::1", "[::1]")]
)
def test_a_node_writes_its_addresses(host: str, written: str) -> None:
    node = Node(host, 4150, 4151)
    assert (node.address, node.http_url) == (f"{written}:4150", f"http://{written}:4151")
    assert node == Node(host, 4150, 4151, "10.0.0.1:4250:4150:7"), "the cluster's name for it does not count"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("10.0.0.1:4250:4150:7", "10.0.0.1:4150"),
        ("fe80::1:4250:4150:7", "[fe80::1]:4150"),
        ("[::1]:4150", ""),
        ("10.0.0.1:4150", ""),
        ("10.0.0.1:x:4150:7", ""),
        ("10.0.0.1:4250:x:7", ""),
        ("10.0.0.1:4250:4150:x", "10.0.0.1:4150"),
        ("10.0.0.1:4250:" + "9" * 5000 + ":7", ""),
        ("", ""),
    ],
)
def test_the_tcp_address_in_the_clusters_name_of_a_node(name: str, address: str) -> None:
    assert tcp_address(name) == address


def test_a_first_complete_answer_is_the_view_and_none_changes_nothing() -> None:
    view = merge(None, [answer(2)], topic="orders")
    assert view == TopicView("orders", TopicMeta(2), led(0, 1), complete=True, exists=True)
    assert not view.unsettled
    assert merge(view, []) is view
    nothing = merge(None, [], topic="orders")
    assert nothing == TopicView("orders", None, {}, complete=False, exists=False, is_answered=False)
    assert nothing.partition_num == 0


def test_changed_leaders_are_those_that_moved_came_or_went() -> None:
    old = good()
    assert not changed_leaders(old, good())
    new = merge(old, [answer(3, {0: NODES[3], 2: NODES[2]}, leads=True), answer(3, {}, lookupd="b")])
    assert changed_leaders(old, new) == {0: (NODES[0], NODES[3]), 1: (NODES[1], None), 2: (None, NODES[2])}
    assert changed_leaders(unanswered("orders"), old) == {0: (None, NODES[0]), 1: (None, NODES[1])}


def test_the_channels_are_those_that_any_answer_of_the_last_round_lists() -> None:
    one, two = replace(answer(), channels=("a", "b")), replace(answer(lookupd="b"), channels=("b", "c"))
    view = rounds(good(), [one, two])
    assert view.channels == {"a", "b", "c"}
    assert view == good(), "they are no news"
    assert rounds(view, [answer()]).channels == frozenset()


def test_the_reason_for_missing_partitions_is_kept() -> None:
    view = merge(None, [empty("a"), answer(2, {}, lookupd="b", note="Topic has no channel")])
    assert (view.note, view.cause) == ("Topic has no channel", ": Topic has no channel")
    assert merge(None, [empty("a")]).cause == ""


# ---------------------------------------------------------------- leaders


@pytest.mark.parametrize(
    ("answers", "leaders"),
    [
        pytest.param(
            [answer(3, lookupd="b"), answer(3, led(0, shift=1), leads=True)],
            {0: NODES[1], 1: NODES[1], 2: NODES[2]},
            id="the leading one is believed first",
        ),
        pytest.param([answer(2, led(0, shift=2)), answer(2, lookupd="b")], led(0, 1), id="then the fuller one"),
        pytest.param([answer(2, led(0, 1, 2, 900))], led(0, 1), id="partitions beyond every number do not count"),
        pytest.param([answer(None, led(0))], {}, id="nor any without a number"),
    ],
)
def test_who_leads(answers: list[LookupAnswer], leaders: Mapping[int, Node]) -> None:
    view = merge(None, answers)
    assert view.leaders == leaders
    assert view.complete == (len(leaders) == view.partition_num > 0)


def test_a_partition_that_nobody_lists_keeps_its_leader_as_last_known() -> None:
    view = merge(good(), [answer(2, led(1))])
    assert (view.leaders, view.last_known, view.known, view.complete) == (led(1), led(0), led(0, 1), False)
    again = merge(view, [answer(2, led(0, 1, shift=1))])
    assert (again.leaders, again.last_known, again.complete) == (led(0, 1, shift=1), {}, True)
    assert merge(good(), [empty("a", leads=True), answer(2, lookupd="b")]) == good(), "one has just started"


# ---------------------------------------------------------------- the number of partitions

GROWN = [answer(4, leads=True)]
FALLEN = [answer(2, leads=True), answer(2, lookupd="b")]
UNLED = [answer(2, lookupd="a"), answer(4, lookupd="b")]


@pytest.mark.parametrize(
    ("before", "answers", "after", "needed"),
    [
        pytest.param(2, [answer(4, leads=True), answer(4, lookupd="b")], 4, 1, id="grown, two say so, all are led"),
        pytest.param(2, GROWN, 4, CONFIRM_ROUNDS, id="grown, one says so"),
        pytest.param(2, [answer(4, leads=True), answer(2, lookupd="b")], 4, DISPUTED_ROUNDS, id="grown, disputed"),
        pytest.param(4, FALLEN, 2, CONFIRM_ROUNDS, id="fallen, all say so, the leading one too"),
        pytest.param(4, [answer(2)], 2, DISPUTED_ROUNDS, id="fallen, all say so but the leading one"),
        pytest.param(4, [FALLEN[0], answer(4, lookupd="b")], 2, DISPUTED_ROUNDS, id="fallen, disputed"),
        pytest.param(0, UNLED, 4, DISPUTED_ROUNDS, id="the first, disputed"),
        pytest.param(0, [answer(4, led(0, 1))], 4, 1, id="the first, half of it led"),
    ],
)
def test_a_number_is_taken_after_some_rounds(before: int, answers: list[LookupAnswer], after: int, needed: int) -> None:
    start = good(before) if before else merge(None, [], topic="orders")
    view = rounds(start, *[answers] * (needed - 1))
    assert view.partition_num == before
    assert view.publishable.keys() <= set(range(before))
    if needed > 1:
        assert (view.unsettled, view.complete) == (True, False)
        assert view.pending == Pending(partition_num=after, partition_rounds=needed - 1)
    taken = merge(view, answers)
    assert (taken.partition_num, taken.unsettled) == (after, False)
    if after < before:
        assert set(taken.known) == {0, 1} | {p for each in answers for p in each.partitions}


def test_without_a_leading_one_a_disputed_number_stays() -> None:
    assert rounds(good(2), *[UNLED] * 50).partition_num == 2


@pytest.mark.parametrize("listed", [(0, 1), (0, 1, 2), (1, 3)])
@pytest.mark.parametrize("other", [4, 2])
def test_a_grown_number_waits_until_each_new_partition_has_a_leader(listed: tuple[int, ...], other: int) -> None:
    """Seen: for 67 s nobody took writes for them, and what was hashed to them ended by its limit."""
    growing = rounds(good(2), *[[answer(4, led(*listed), leads=True), answer(other, led(0), lookupd="b")]] * 20)
    assert (growing.partition_num, growing.unsettled) == (2, True)
    assert set(growing.publishable) <= {0, 1}
    assert set(growing.leaders) == {0, *listed}, "consumers use them at once"
    served = merge(growing, [answer(4, led(2, 3), leads=True), answer(other, led(0), lookupd="b")])
    assert (served.partition_num, served.unsettled) == (4, False)


def test_an_expansion_as_the_real_cluster_shows_it_never_goes_back() -> None:
    told_by_leader = [answer(4, led(0, 1), leads=True), answer(2, lookupd="b")]
    listed_by_all = [answer(4, leads=True), answer(2, led(0, 1, 2, 3), lookupd="b")]
    agreed = [answer(4, leads=True), answer(4, lookupd="b")]
    view, numbers = good(2), []
    for answers in [told_by_leader, *[listed_by_all] * 4, agreed, agreed]:
        view = merge(view, answers)
        numbers.append(view.partition_num)
    assert numbers == [2, 2, 2, 2, 2, 4, 4]
    behind = merge(merge(good(2), listed_by_all), [answer(2, lookupd="b")])
    assert (behind.leaders, behind.last_known) == (led(0, 1), led(2, 3))


def test_of_a_topic_that_fell_only_the_partitions_beyond_the_new_number_are_forgotten() -> None:
    view = rounds(good(4), *[[answer(2, led(0), leads=True)]] * CONFIRM_ROUNDS)
    assert (view.partition_num, view.leaders) == (2, led(0))
    assert view.last_known == led(1), "it has no leader for the moment, but it still exists"


def test_a_contradiction_in_between_starts_the_count_again() -> None:
    fallen, normal = [answer(2, leads=True)], [answer(4, leads=True)]
    assert rounds(good(4), *[fallen, fallen, normal] * 10, fallen, fallen).partition_num == 4
    another = rounds(good(4), fallen, fallen, [answer(3, leads=True)], [answer(3, leads=True)])
    assert another.pending == Pending(partition_num=3, partition_rounds=2)
    without = rounds(good(4), fallen, [answer(None, led(0, 1, 2, 3))])
    assert (without.partition_num, without.unsettled, without.leaders) == (4, False, led(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("answers", "ordered"),
    [
        ([answer(2, leads=True, ordered=True), answer(2, lookupd="b")], True),
        ([answer(2, ordered=True), answer(2, lookupd="b")], False),
        ([answer(2, ordered=True)], True),
    ],
)
def test_the_leading_one_says_of_what_kind_a_topic_is_or_else_what_is_known_and_confirmed(
    answers: list[LookupAnswer], ordered: bool
) -> None:
    assert merge(good(), answers).meta == TopicMeta(2, ordered=ordered)
    grown = merge(good(2), [answer(3, ordered=True), answer(3, led(0), lookupd="b")])
    assert grown.meta == TopicMeta(3)


# ---------------------------------------------------------------- a topic that goes


def test_a_topic_that_all_deny_at_first_does_not_exist() -> None:
    view = merge(None, [denial(note="Key not found"), denial("b")], topic="orders")
    assert (view.exists, view.note, view.unsettled) == (False, "Key not found", False)
    created = merge(view, [answer(2, {}, leads=True), denial("b")])
    assert (created.exists, created.partition_num) == (True, 2)


@pytest.mark.parametrize(("leads", "needed"), [(True, CONFIRM_ROUNDS), (False, DISPUTED_ROUNDS)])
def test_a_known_topic_is_gone_after_repeated_denials(*, leads: bool, needed: int) -> None:
    answers = [denial("a", leads=leads, note="Key not found"), denial("b")]
    view = rounds(good(), *[answers] * (needed - 1))
    assert (view.exists, view.unsettled, view.partition_num, view.note) == (True, True, 2, "Key not found")
    assert (view.leaders, view.last_known) == ({}, led(0, 1))
    gone = merge(view, answers)
    assert (gone.exists, gone.unsettled, gone.meta, gone.known) == (False, False, None, {})
    again = merge(gone, [answer(1, leads=True)])
    assert (again.partition_num, again.complete) == (1, True), "it may have fewer partitions at once"


def test_one_that_still_knows_the_topic_keeps_it() -> None:
    assert rounds(good(), *[[denial(leads=True), answer(2, lookupd="b")]] * 20) == good()
    denied = [denial(leads=True)]
    view = rounds(good(), denied, denied, [answer(None, led(0), leads=True)], denied, denied)
    assert (view.exists, view.pending) == (True, Pending(gone_rounds=2))
