"""What holds of a view of a topic whatever nsqlookupds answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.topology import (
    CONFIRM_ROUNDS,
    DISPUTED_ROUNDS,
    LookupAnswer,
    Node,
    merge,
)
from tests.policy.lookup_answers import NODES, answer, denial, empty, good, rounds

partition_maps = st.dictionaries(st.integers(0, 9), st.sampled_from(NODES), max_size=8)
numbers = st.none() | st.integers(1, 8)


@st.composite
def answer_lists(draw: st.DrawFn) -> list[LookupAnswer]:
    """What three servers may say in one round: anything, contradictions included; at most one leads."""
    leading = draw(st.sampled_from([None, "a", "b", "c"]))
    found = []
    for lookupd in draw(st.lists(st.sampled_from("abc"), unique=True)):
        if draw(st.booleans()):
            said = answer(draw(numbers), draw(partition_maps), lookupd=lookupd, leads=lookupd == leading)
        else:
            said = denial(lookupd, leads=lookupd == leading)
        found.append(said)
    return found


@given(st.lists(answer_lists(), max_size=5), answer_lists())
def test_the_same_answers_again_and_again_settle(history: list[list[LookupAnswer]], last: list[LookupAnswer]) -> None:
    view = rounds(merge(None, [], topic="orders"), *history)
    settled = rounds(view, *[last] * DISPUTED_ROUNDS)
    again = merge(settled, last)
    assert again == settled
    if again.unsettled and last:
        # What alone may wait for ever: a number that grew, for leaders of its new partitions.
        assert again.pending.partition_num is not None
        awaited = set(range(again.partition_num, again.pending.partition_num))
        assert awaited - {partition for each in last for partition in each.partitions}


@given(
    st.integers(1, 8),
    st.lists(st.sampled_from(["empty", "null", "denied", "nobody"]), max_size=DISPUTED_ROUNDS - 1),
)
def test_empty_answers_never_erase_a_good_view(partition_num: int, history: list[str]) -> None:
    view = good(partition_num)
    nothing = {
        "empty": [empty(partition_num=partition_num)],
        "null": [empty(partition_num=None)],
        "denied": [denial()],
        "nobody": [],
    }
    for kind in history:
        view = merge(view, nothing[kind])
        assert view.known == good(partition_num).known
        assert view.partition_num == partition_num
        assert view.exists


@given(
    st.lists(st.tuples(numbers, partition_maps, st.booleans()), max_size=30),
    st.permutations(["steady", "flapping"]),
)
def test_one_flapping_server_does_not_make_the_number_fall(
    lies: list[tuple[int | None, dict[int, Node], bool]], order: list[str]
) -> None:
    """Another one tells the truth in the same rounds; what the liar says of itself does not count."""
    view = good(4)
    for number, partitions, denies in lies:
        flapping = denial("f") if denies else answer(number, partitions, lookupd="f")
        said = {"steady": answer(4, lookupd="s"), "flapping": flapping}
        view = merge(view, [said[who] for who in order])
        assert view.partition_num == 4
        assert set(view.publishable) == {0, 1, 2, 3}


@given(st.lists(st.integers(1, 3), max_size=40), st.integers(1, CONFIRM_ROUNDS - 1))
def test_even_the_leading_one_flapping_does_not_make_it_fall(lies: list[int], in_a_row: int) -> None:
    view = good(4)
    for place, number in enumerate(lies):
        told = 4 if place % (in_a_row + 1) == in_a_row else number
        view = merge(view, [answer(told, leads=True)])
        assert view.partition_num == 4
