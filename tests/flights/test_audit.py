from hypothesis import given
from hypothesis import strategies as st

from examples.flights.audit import Audit


def published(count: int, *, acknowledged: bool = True) -> Audit:
    """Books of a run in which everything was published, at the times 0, 1, 2 ..."""
    audit = Audit(count)
    for now in range(count):
        number = audit.publish(now)
        if acknowledged:
            audit.acknowledge(number, 0, "a:1", now)
    return audit


def test_stalls_count_only_while_something_is_due() -> None:
    audit = Audit(3)
    first = audit.publish(0)
    audit.acknowledge(first, 0, "a:1", 2)
    audit.consume(first, "key", 0, 3)
    second = audit.publish(100)
    audit.acknowledge(second, 0, "a:1", 101)
    audit.consume(second, "key", 1, 101.5)
    assert (audit.publish_stall.longest, audit.publish_stall.at) == (2, 0)
    assert (audit.consume_stall.longest, audit.consume_stall.at) == (1, 2)


@given(st.data())
def test_any_mix_of_ordered_keys_with_repeats_is_in_order(data: st.DataObject) -> None:
    lengths = data.draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), min_size=1))
    numbers: dict[tuple[str, int], int] = {}
    audit = Audit(sum(lengths.values()))
    for key, length in lengths.items():
        for sequence in range(length):
            number = numbers[key, sequence] = audit.publish(0)
            audit.acknowledge(number, 0, "a:1", 0)
    at = dict.fromkeys(lengths, 0)
    repeats = 0
    while open_keys := sorted(key for key in lengths if at[key] < lengths[key]):
        key = data.draw(st.sampled_from(open_keys))
        back = data.draw(st.integers(0, at[key]))
        repeats += back
        for sequence in range(at[key] - back, at[key] + 1):
            audit.consume(numbers[key, sequence], key, sequence, 1)
        at[key] += 1
    assert (audit.out_of_order, audit.repeated, audit.lost) == (0, repeats, 0)
    assert audit.is_clean


@given(st.integers(2, 8), st.data())
def test_any_other_order_of_a_key_is_found(length: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(length)))
    audit = published(length)
    for sequence in order:
        audit.consume(sequence + 1, "key", sequence, length)
    assert (audit.out_of_order == 0) is (list(order) == list(range(length)))
