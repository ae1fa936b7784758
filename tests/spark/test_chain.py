"""The chain rule: exactly ``[start, end)`` whatever the channel delivers, or an error."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import ConfigError, DataLossError, RemoteProtocolError
from nsq_ha.message import Message
from nsq_ha.spark.read import chain as chain_module
from nsq_ha.spark.read.chain import Chain, WrongPartitionError
from tests.spark.logs import PARTITION, log_of, message


def offsets(messages: list[Message]) -> list[int | None]:
    return [each.offset for each in messages]


sizes = st.lists(st.integers(31, 400), min_size=1, max_size=40)


@given(sizes, st.integers(0, 10**12), st.data())
def test_exactly_the_range_comes_out_whatever_strays_and_connections_do(
    raw_sizes: list[int], first: int, data: st.DataObject
) -> None:
    log = log_of(raw_sizes, first)
    bounds = list(itertools.accumulate(raw_sizes, initial=first))
    place = st.integers(0, len(raw_sizes))
    low, high = sorted(data.draw(st.tuples(place, place)))
    chain = Chain(bounds[low], bounds[high], PARTITION)
    wanted = log[low:high]
    got: list[Message] = []
    anything = st.lists(st.sampled_from(log), max_size=30)
    for delivered in data.draw(st.lists(anything, max_size=6)):
        chain.reopened()
        cut = data.draw(st.integers(0, len(delivered)))
        for lot in (delivered[:cut], delivered[cut:]):
            finish = chain.take(lot, got)
            assert all(each.offset is not None and each.offset < chain.position for each in finish)
        assert got == wanted[: len(got)], "what is accepted is always the beginning of the range"
        assert chain.is_complete is (len(got) == len(wanted))
    chain.reopened()
    # At last an undisturbed channel, with strays of any place between.
    for each in wanted[len(got) :]:
        chain.take([*data.draw(anything), each], got)
    assert got == wanted
    assert chain.is_complete


@given(sizes, st.data())
def test_a_gap_never_completes(raw_sizes: list[int], data: st.DataObject) -> None:
    log = log_of(raw_sizes)
    missing = data.draw(st.sampled_from(log))
    chain = Chain(0, sum(raw_sizes), PARTITION)
    got: list[Message] = []
    for _ in range(3):
        chain.reopened()
        chain.take([each for each in log if each is not missing], got)
        assert chain.position == missing.offset
        assert not chain.is_complete
    assert got == log[: log.index(missing)]
    assert (chain.next_stashed is None) == (missing is log[-1])


def test_a_flood_after_a_gap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nsqd that ignores RDY filled the memory of a task within its patience."""
    monkeypatch.setattr(chain_module, "MOST_STASHED", 5000)
    log = log_of([40] * 100)
    chain = Chain(0, 4000, PARTITION)
    for _ in range(100):
        chain.take(log[1:10], [])  # the same again and again is no flood
    chain.take(log[:10], [])
    assert (chain.position, chain.next_stashed) == (400, None)
    chain.take(log[11:25], [])
    with pytest.raises(RemoteProtocolError, match=r"nsqd ignores RDY: .* messages arrived after a gap at offset 400"):
        chain.take(log[25:], [])
    chain.reopened()
    chain.take(log[11:25], [])
    chain.reopened()
    log[11].ext = bytes(5000)
    with pytest.raises(RemoteProtocolError, match="1 messages"):
        chain.take(log[11:12], [])


@given(st.permutations(log_of([40] * 8)))
def test_any_order_of_one_delivery_gives_the_order_of_the_log(delivered: list[Message]) -> None:
    chain = Chain(0, 320, PARTITION)
    got: list[Message] = []
    finished = list(itertools.chain.from_iterable(chain.take([each], got) for each in delivered))
    assert offsets(got) == list(range(0, 320, 40))
    assert chain.is_complete
    assert chain.next_stashed is None
    assert sorted(finished, key=id) == sorted(got, key=id), "each is finished once, a stray only after its turn came"


def test_the_same_offset_in_another_partition_is_refused_and_what_came_before_is_kept() -> None:
    log = log_of([40, 50])
    chain = Chain(0, 90, PARTITION)
    got: list[Message] = []
    with pytest.raises(WrongPartitionError) as caught:
        chain.take([log[0], stranger := message(40, 50, partition=6), log[1]], got)
    assert str(caught.value) == f"{stranger!r} belongs to partition 6, not to {PARTITION}"
    assert caught.value.retriable
    assert got == [log[0]]
    assert chain.position == 40


def test_an_end_inside_a_message_is_data_loss_and_what_came_before_is_kept() -> None:
    log = log_of([40, 50])
    chain = Chain(0, 89, PARTITION)
    got: list[Message] = []
    with pytest.raises(DataLossError) as caught:
        chain.take(log, got)
    assert str(caught.value) == (
        f"the end 89 lies inside the message [40, 90) of partition {PARTITION}:"
        " the log is not the one that the range was planned on"
    )
    assert got == [log[0]]
    assert (chain.start, chain.end, chain.position) == (0, 89, 40)


@pytest.mark.parametrize("raw_size", [None, 0, -5])
def test_a_message_that_takes_no_room_is_refused(raw_size: int | None) -> None:
    chain = Chain(0, 90, PARTITION)
    with pytest.raises(RemoteProtocolError, match="has an impossible size"):
        chain.take([message(0, raw_size)], [])
    assert chain.position == 0


def test_a_message_without_an_offset_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="has no offset"):
        Chain(0, 90, PARTITION).take([message(None, None)], [])


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5)])
def test_a_range_that_cannot_be_is_refused(start: int, end: int) -> None:
    with pytest.raises(ConfigError, match="0 <= start <= end"):
        Chain(start, end, PARTITION)
