"""How the answers of several nsqlookupds become one view of a topic."""

from __future__ import annotations

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
)
from tests.policy.lookup_answers import NODES, answer, denial, empty, good, led, rounds

# ---------------------------------------------------------------- nodes and views


@pytest.mark.parametrize(
    ("meta", "name"),
    [(None, "orders-3"), (TopicMeta(4), "orders-3"), (TopicMeta(4, is_partitioned=False), "orders")],
)
def test_only_a_topic_with_partitions_is_named_with_one(meta: TopicMeta | None, name: str) -> None:
    assert TopicView("orders", meta, {}, complete=False, exists=True).name_of(3) == name


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("10.0.0.1", "10.0.0.1:4150", "http://10.0.0.1:4151"),
        ("nsqd-1.example", "nsqd-1.example:4150", "http://nsqd-1.example:4151"),
        ("::1", "[::1]:4150", "http://[::1]:4151"),
    ],
)
def test_a_node_writes_its_addresses(host: str, address: str, url: str) -> None:
    node = Node(host, 4150, 4151)
    assert (node.address, node.http_url) == (address, url)


def test_the_clusters_name_of_a_node_does_not_make_it_another_one() -> None:
    assert Node("10.0.0.1", 4150, 4151, "10.0.0.1:4250:4150:7") == Node("10.0.0.1", 4150, 4151)


def test_a_first_complete_answer_is_the_view() -> None:
    view = merge(None, [answer(2)], topic="orders")
    assert view.topic == "orders"
    assert view.meta == TopicMeta(2)
    assert view.leaders == led(0, 1)
    assert view.complete
    assert view.exists
    assert not view.unsettled
    assert view.partition_num == 2


def test_without_answers_the_view_stays() -> None:
    assert merge(good(), []) == good()
    nothing = merge(None, [], topic="orders")
    assert (nothing.topic, nothing.meta, nothing.exists, nothing.complete) == ("orders", None, False, False)
    assert nothing.partition_num == 0


# ---------------------------------------------------------------- leaders


def test_the_leading_nsqlookupd_is_believed_first() -> None:
    fuller = answer(3, led(0, 1, 2), lookupd="b")
    view = merge(None, [fuller, answer(3, led(0, shift=1), leads=True)])
    assert view.leaders == {0: NODES[1], 1: NODES[1], 2: NODES[2]}


def test_the_fuller_answer_is_believed_before_others() -> None:
    view = merge(None, [answer(2, led(0, shift=2)), answer(2, led(0, 1), lookupd="b")])
    assert view.leaders == led(0, 1)


def test_a_partition_that_nobody_lists_keeps_its_leader_as_last_known() -> None:
    view = merge(good(), [answer(2, led(1))])
    assert view.leaders == led(1)
    assert view.last_known == led(0)
    assert view.known == led(0, 1)
    assert not view.complete
    again = merge(view, [answer(2, led(0, 1, shift=1))])
    assert again.leaders == led(0, 1, shift=1)
    assert again.last_known == {}
    assert again.complete


def test_a_server_that_has_just_started_takes_nothing_away() -> None:
    view = merge(good(), [empty("a", leads=True), answer(2, lookupd="b")])
    assert view == good()


def test_partitions_beyond_every_number_are_not_believed() -> None:
    view = merge(None, [answer(2, led(0, 1, 2, 900))])
    assert view.leaders == led(0, 1)
    unknown_number = merge(None, [answer(None, led(0))])
    assert unknown_number.leaders == {}
    assert not unknown_number.complete


def test_the_reason_for_missing_partitions_is_kept() -> None:
    view = merge(None, [empty("a"), answer(2, {}, lookupd="b", note="Topic has no channel")])
    assert view.note == "Topic has no channel"
    assert view.cause == ": Topic has no channel"
    assert merge(None, [empty("a")]).cause == ""


# ---------------------------------------------------------------- the number of partitions


def test_a_topic_half_of_which_is_led_has_all_its_partitions() -> None:
    view = merge(None, [answer(4, led(0, 1))], topic="orders")
    assert view.partition_num == 4
    assert not view.complete


def test_a_grown_number_that_two_tell_and_all_lead_is_taken_at_once() -> None:
    view = merge(good(2), [answer(4, leads=True), answer(4, lookupd="b")])
    assert view.partition_num == 4
    assert view.complete


def test_a_grown_number_that_one_alone_tells_is_taken_after_some_rounds() -> None:
    answers = [answer(4, leads=True)]
    before = rounds(good(2), *[answers] * (CONFIRM_ROUNDS - 1))
    assert before.partition_num == 2
    assert before.unsettled
    assert not before.complete
    assert before.pending == Pending(partition_num=4, partition_rounds=CONFIRM_ROUNDS - 1)
    after = merge(before, answers)
    assert after.partition_num == 4
    assert not after.unsettled


@pytest.mark.parametrize("listed", [(0, 1), (0, 1, 2), (1, 3)])
def test_a_grown_number_waits_until_each_new_partition_has_a_leader(listed: tuple[int, ...]) -> None:
    """Seen: for 67 s nobody took writes for them, and what was hashed to them ended by its limit."""
    growing = rounds(good(2), *[[answer(4, led(*listed), leads=True), answer(4, led(*listed), lookupd="b")]] * 20)
    assert growing.partition_num == 2
    assert growing.unsettled
    assert set(growing.publishable) <= {0, 1}
    served = merge(growing, [answer(4, led(2, 3), leads=True), answer(4, led(2, 3), lookupd="b")])
    assert served.partition_num == 4
    assert not served.unsettled


def test_a_disputed_number_waits_for_the_leaders_too() -> None:
    disputed = [answer(4, led(0, 1, 2), leads=True), answer(2, lookupd="b")]
    growing = rounds(good(2), *[disputed] * (2 * DISPUTED_ROUNDS))
    assert growing.partition_num == 2
    assert merge(growing, [answer(4, leads=True), answer(2, lookupd="b")]).partition_num == 4


def test_while_a_topic_grows_its_new_partitions_are_shown_and_not_published_to() -> None:
    view = merge(good(2), [answer(4, leads=True), answer(2, led(0, 1, 2, 3), lookupd="b")])
    assert view.partition_num == 2
    assert view.leaders == led(0, 1, 2, 3)
    assert view.publishable == led(0, 1)


def test_a_server_that_is_behind_does_not_wipe_out_new_partitions() -> None:
    growing = merge(good(2), [answer(4, leads=True), answer(2, lookupd="b")])
    behind = merge(growing, [answer(2, lookupd="b")])
    assert behind.leaders == led(0, 1)
    assert behind.last_known == led(2, 3)


def test_an_expansion_as_the_real_cluster_shows_it_never_goes_back() -> None:
    told_by_leader = [answer(4, led(0, 1), leads=True), answer(2, lookupd="b")]
    listed_by_all = [answer(4, leads=True), answer(2, led(0, 1, 2, 3), lookupd="b")]
    agreed = [answer(4, leads=True), answer(4, lookupd="b")]
    view, numbers = good(2), []
    for answers in [told_by_leader, *[listed_by_all] * 4, agreed, agreed]:
        view = merge(view, answers)
        numbers.append(view.partition_num)
    assert numbers == [2, 2, 2, 2, 2, 4, 4]


def test_the_leading_one_is_believed_against_another_in_the_end() -> None:
    disputed = [answer(4, leads=True), answer(2, lookupd="b")]
    view = rounds(good(2), *[disputed] * (DISPUTED_ROUNDS - 1))
    assert view.partition_num == 2
    assert merge(view, disputed).partition_num == 4


def test_without_a_leading_one_a_disputed_number_stays() -> None:
    disputed = [answer(2, lookupd="a"), answer(4, lookupd="b")]
    assert rounds(good(2), *[disputed] * 50).partition_num == 2


def test_a_disputed_first_number_is_not_hashed_over_at_once() -> None:
    disputed = [answer(2, lookupd="a"), answer(4, lookupd="b")]
    view = merge(None, disputed)
    assert (view.partition_num, view.meta, view.unsettled) == (0, None, True)
    assert view.publishable == {}
    assert rounds(view, *[disputed] * (DISPUTED_ROUNDS - 1)).partition_num == 4


@pytest.mark.parametrize(
    ("answers", "needed"),
    [
        pytest.param([answer(2, leads=True), answer(2, lookupd="b")], CONFIRM_ROUNDS, id="all, the leading one too"),
        pytest.param([answer(2)], DISPUTED_ROUNDS, id="all but the leading one"),
        pytest.param([answer(2, leads=True), answer(4, lookupd="b")], DISPUTED_ROUNDS, id="only the leading one"),
    ],
)
def test_a_number_that_falls_is_asked_for_again(answers: list[LookupAnswer], needed: int) -> None:
    before = rounds(good(4), *[answers] * (needed - 1))
    assert before.partition_num == 4
    assert not before.complete
    after = merge(before, answers)
    assert after.partition_num == 2
    assert set(after.known) == {0, 1} | {p for each in answers for p in each.partitions}


def test_what_somebody_confirms_stays_of_its_kind_while_the_number_grows() -> None:
    view = merge(good(2), [answer(3, ordered=True), answer(3, led(0), lookupd="b")])
    assert view.meta == TopicMeta(3)


def test_a_topic_that_is_denied_for_the_first_time_says_why() -> None:
    view = merge(good(), [denial(note="Key not found")])
    assert (view.exists, view.note) == (True, "Key not found")


def test_of_a_topic_that_fell_only_the_partitions_beyond_the_new_number_are_forgotten() -> None:
    view = rounds(good(4), *[[answer(2, led(0), leads=True)]] * CONFIRM_ROUNDS)
    assert view.partition_num == 2
    assert view.leaders == led(0)
    assert view.last_known == led(1), "it has no leader for the moment, but it still exists"


def test_a_contradiction_in_between_starts_the_count_again() -> None:
    fallen, normal = [answer(2, leads=True)], [answer(4, leads=True)]
    view = rounds(good(4), *[fallen, fallen, normal] * 10, fallen, fallen)
    assert view.partition_num == 4
    another = rounds(good(4), fallen, fallen, [answer(3, leads=True)], [answer(3, leads=True)])
    assert another.pending == Pending(partition_num=3, partition_rounds=2)


def test_answers_without_meta_change_no_number_and_interrupt_the_count() -> None:
    view = rounds(good(4), [answer(2, leads=True)], [answer(None, led(0, 1, 2, 3))])
    assert view.partition_num == 4
    assert not view.unsettled
    assert view.leaders == led(0, 1, 2, 3)


# ---------------------------------------------------------------- the other meta


def test_the_leading_one_says_of_what_kind_a_topic_is() -> None:
    view = merge(good(), [answer(2, leads=True, ordered=True), answer(2, lookupd="b")])
    assert view.meta == TopicMeta(2, ordered=True)


def test_what_another_still_confirms_is_not_given_up() -> None:
    view = merge(good(), [answer(2, lookupd="a", ordered=True), answer(2, lookupd="b")])
    assert view.meta == TopicMeta(2)
    view = merge(good(), [answer(2, lookupd="a", ordered=True)])
    assert view.meta == TopicMeta(2, ordered=True)


# ---------------------------------------------------------------- a topic that goes


def test_a_topic_that_all_deny_at_first_does_not_exist() -> None:
    view = merge(None, [denial(note="Key not found"), denial("b")], topic="orders")
    assert not view.exists
    assert view.note == "Key not found"
    assert not view.unsettled
    created = merge(view, [answer(2, {}, leads=True), denial("b")])
    assert created.exists
    assert created.partition_num == 2


@pytest.mark.parametrize(("leads", "needed"), [(True, CONFIRM_ROUNDS), (False, DISPUTED_ROUNDS)])
def test_a_known_topic_is_gone_after_repeated_denials(*, leads: bool, needed: int) -> None:
    answers = [denial("a", leads=leads), denial("b")]
    view = rounds(good(), *[answers] * (needed - 1))
    assert view.exists
    assert view.unsettled
    assert view.partition_num == 2
    assert view.leaders == {}
    assert view.last_known == led(0, 1)
    gone = merge(view, answers)
    assert not gone.exists
    assert gone.known == {}
    assert gone.meta is None
    assert not gone.unsettled


def test_one_that_still_knows_the_topic_keeps_it() -> None:
    view = rounds(good(), *[[denial(leads=True), answer(2, lookupd="b")]] * 20)
    assert view == good()


def test_a_denied_topic_that_comes_back_counts_anew() -> None:
    denied = [denial(leads=True)]
    view = rounds(good(), denied, denied, [answer(None, led(0), leads=True)], denied, denied)
    assert view.exists
    assert view.pending == Pending(gone_rounds=2)


def test_a_recreated_topic_may_have_fewer_partitions_at_once() -> None:
    gone = rounds(good(4), *[[denial(leads=True)]] * CONFIRM_ROUNDS)
    again = merge(gone, [answer(2, leads=True)])
    assert again.partition_num == 2
    assert again.complete


# ---------------------------------------------------------------- differences


def test_changed_leaders_are_those_that_moved_came_or_went() -> None:
    old = good()
    assert not changed_leaders(old, good())
    new = merge(old, [answer(3, {0: NODES[3], 2: NODES[2]}, leads=True), answer(3, {}, lookupd="b")])
    assert changed_leaders(old, new) == {0: (NODES[0], NODES[3]), 1: (NODES[1], None), 2: (None, NODES[2])}
    assert changed_leaders(None, old) == {0: (None, NODES[0]), 1: (None, NODES[1])}


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


def test_the_channels_are_those_that_any_answer_of_the_last_round_lists() -> None:
    one, two = replace(answer(), channels=("a", "b")), replace(answer(lookupd="b"), channels=("b", "c"))
    view = rounds(good(), [one, two])
    assert view.channels == {"a", "b", "c"}
    assert view == good(), "they are no news"
    assert rounds(view, [answer()]).channels == frozenset()
