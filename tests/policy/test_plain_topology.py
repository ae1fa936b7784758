"""What independent nsqlookupds of a plain cluster say, merged into one view of a topic."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import TopicNotExistError, TransportError
from nsq_ha.policy.plain_topology import FORGET_ROUNDS, explained, is_plain, merge_round
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta, TopicView
from tests.policy.lookup_answers import answer, good

A, B, C, D = (Node(f"10.0.0.{number}", 4150, 4151, is_plain=True) for number in range(1, 5))


def said(*nodes: Node, lookupd: str = "x", candidates: Sequence[Node] = (), exists: bool = True) -> LookupAnswer:
    return LookupAnswer(
        lookupd, leads=False, meta=None, partitions={}, exists=exists, nodes=nodes, candidates=tuple(candidates)
    )


def unknown(lookupd: str = "x") -> LookupAnswer:
    note = "the topic is not created"
    return LookupAnswer(lookupd, leads=False, meta=None, partitions={}, exists=False, note=note, nodes=())


def after(*rounds: Sequence[LookupAnswer]) -> TopicView:
    view: TopicView | None = None
    for answers in rounds:
        view = merge_round("orders", view, answers)
    assert view is not None
    return view


def test_each_nsqd_of_a_topic_has_a_slot() -> None:
    view = after([said(B, A)])
    assert view == TopicView(
        topic="orders",
        meta=TopicMeta(2, is_partitioned=False),
        leaders={0: A, 1: B},
        complete=True,
        exists=True,
        is_plain=True,
    )


def test_a_view_bears_the_name_of_its_topic_on_either_kind_of_cluster() -> None:
    assert after([said(A)]).topic == "orders"
    assert after([answer()]).topic == "orders"


def test_the_union_of_independent_nsqlookupds_counts() -> None:
    assert after([said(A, B), said(B, C, lookupd="y")]).leaders == {0: A, 1: B, 2: C}
    assert after([said(A), unknown("y")]).leaders == {0: A}


def test_a_new_nsqd_moves_no_other() -> None:
    view = after([said(B)], [said(A, B)])
    assert view.leaders == {0: B, 1: A}


def test_a_silent_nsqlookupd_still_counts_for_a_while() -> None:
    first = [said(A), said(B, lookupd="y")]
    assert after(first, *[[said(A)]] * FORGET_ROUNDS).leaders == {0: A, 1: B}
    view = after(first, *[[said(A)]] * (FORGET_ROUNDS + 1))
    assert (view.leaders, view.last_known) == ({0: A}, {1: B})


def test_an_nsqd_that_nobody_lists_is_known_for_a_while() -> None:
    view = after([said(A, B)], [said(B)])
    assert (view.leaders, view.last_known, view.partition_num, view.complete) == ({1: B}, {0: A}, 2, True)
    assert after([said(A, B)], *[[said(B)]] * FORGET_ROUNDS).last_known == {0: A}
    view = after([said(A, B)], *[[said(B)]] * (FORGET_ROUNDS + 1))
    assert (view.leaders, view.last_known, view.partition_num) == ({1: B}, {}, 2)


def test_an_nsqd_that_comes_back_has_its_slot_again() -> None:
    assert after([said(A, B)], [said(B)], [said(A, B)]).leaders == {0: A, 1: B}


def test_a_slot_is_used_again_only_when_its_nsqd_is_forgotten() -> None:
    assert after([said(A, B)], [said(B)], [said(B, C)]).leaders == {1: B, 2: C}
    assert after([said(A, B)], *[[said(B)]] * (FORGET_ROUNDS + 1), [said(B, C, D)]).leaders == {0: C, 1: B, 2: D}


def test_slots_at_the_end_go_with_their_nsqds() -> None:
    assert after([said(A, B)], *[[said(A)]] * (FORGET_ROUNDS + 1)).partition_num == 1


def test_an_nsqd_whose_http_port_changed_is_the_same() -> None:
    view = after([said(A)], [said(Node("10.0.0.1", 4150, 9151))])
    assert (view.partition_num, view.leaders[0].http_port) == (1, 9151)


def test_a_topic_that_nobody_has_is_published_to_any_nsqd() -> None:
    assert after([said(candidates=[A, B])]).leaders == {0: A, 1: B}
    assert after([said(A, candidates=[]), said(lookupd="y", candidates=[B])]).leaders == {0: A}


def test_a_topic_that_was_published_to_leaves_the_spare_nsqds() -> None:
    view = after([said(candidates=[A, B])], [said(B)])
    assert (view.leaders, view.last_known) == ({1: B}, {0: A})


def test_an_unknown_topic_does_not_exist() -> None:
    view = after([unknown(), unknown("y")])
    assert (view.meta, view.exists, view.complete, view.note) == (None, False, False, "the topic is not created")


def test_a_topic_without_an_nsqd_exists() -> None:
    view = after([said()])
    assert (view.meta, view.exists, view.complete, view.note) == (None, True, False, "")


def test_a_topic_exists_while_an_nsqd_of_it_is_known() -> None:
    view = after([said(A)], [unknown()])
    assert (view.leaders, view.last_known, view.exists, view.complete) == ({}, {0: A}, True, False)


def test_one_round_is_enough_for_a_view() -> None:
    assert merge_round("orders", None, [said(A, B), unknown("y")]) == after([said(A, B)])
    assert merge_round("orders", None, [answer(2), answer(2, lookupd="b")]).meta == TopicMeta(2)
    assert merge_round("orders", None, [answer(2), unknown("y")]).meta == TopicMeta(2)
    assert not merge_round("orders", None, []).exists


PLAIN = after([said(A)])
BY_ADDRESS = TopicView("orders", TopicMeta(1, is_partitioned=False), {0: A}, complete=True, exists=True)


@pytest.mark.parametrize(
    ("known", "answers", "expected"),
    [
        (None, [said(A)], True),
        (None, [said(A), unknown("y")], True),
        (None, [answer(2)], False),
        (None, [said(A), answer(2)], False),
        (after([said()]), [answer(2)], False),
        (PLAIN, [answer(2)], True),
        (BY_ADDRESS, [answer(1)], False),
        (good(), [said(A)], False),
    ],
)
def test_the_first_answers_decide_which_kind_of_cluster_it_is(
    known: TopicView | None, answers: list[LookupAnswer], expected: bool
) -> None:
    assert is_plain(known, answers) is expected


ROUND = st.lists(
    st.builds(
        lambda nodes, lookupd: said(*nodes, lookupd=lookupd),
        st.lists(st.sampled_from([A, B, C, D]), unique=True),
        st.sampled_from(["x", "y"]),
    ),
    min_size=1,
    max_size=2,
    unique_by=lambda answer: answer.lookupd,
)


@given(st.lists(ROUND, min_size=1, max_size=30))
def test_slots_are_never_shared_nor_moved(rounds: list[list[LookupAnswer]]) -> None:
    view, before = None, dict[Node, int]()
    for answers in rounds:
        view = merge_round("orders", view, answers)
        slots = {node: number for number, node in view.known.items()}
        assert len(slots) == len(view.known) <= 4
        assert all(slots[node] == number for node, number in before.items())
        assert {node for each in answers for node in each.nodes or ()} <= set(view.leaders.values())
        before = slots


def test_a_partitioned_nsqd_that_was_given_as_a_plain_one_is_named_as_the_cause() -> None:
    found = explained(TopicNotExistError("E_TOPIC_NOT_EXIST", "no"), "orders")
    assert "one of a partitioned cluster: give lookupd=" in str(found)
    other = TransportError("gone")
    assert explained(other, "orders") is other
