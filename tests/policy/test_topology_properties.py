"""What holds of a view of a topic whatever nsqlookupds answer."""

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.topology import (
    DISPUTED_ROUNDS,
    LookupAnswer,
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
