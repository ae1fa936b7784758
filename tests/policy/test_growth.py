"""Which channels are missing on which partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.growth import LedPartition, is_new, lacking, lasting

A, B = {"a": False}, {"b": False}

names = st.sampled_from(["a", "b", "c", "d#ephemeral"])
held = st.builds(LedPartition, st.integers(0, 2), st.dictionaries(names, st.booleans()))


def test_a_partition_lacks_what_any_sibling_has() -> None:
    assert lacking(LedPartition(0, A), [LedPartition(5, A), LedPartition(5, B)]) == {"b": False}
    assert lacking(LedPartition(0, {}), [LedPartition(5, A | B), LedPartition(5, A)]) == {"a": False, "b": False}
    assert lacking(LedPartition(0, A), [LedPartition(5, A)]) == {}
    assert lacking(LedPartition(0, {}), []) == {}


def test_channels_that_end_with_their_reader_are_not_copied() -> None:
    assert lacking(LedPartition(0, {}), [LedPartition(5, A | {"replay#ephemeral": False})]) == A
    assert lasting(["a", "b#ephemeral"]) == {"a"}


def test_a_channel_is_paused_only_if_it_is_paused_everywhere() -> None:
    paused = {"a": True}
    assert lacking(LedPartition(0, {}), [LedPartition(5, paused), LedPartition(5, paused)]) == {"a": True}
    assert lacking(LedPartition(0, {}), [LedPartition(5, paused), LedPartition(5, A)]) == {"a": False}
    assert lacking(LedPartition(0, {}), [LedPartition(5, A), LedPartition(5, paused)]) == {"a": False}


def test_a_partition_that_was_in_use_is_left_alone() -> None:
    assert not is_new(1, LedPartition(1, A), first=2)


def test_a_partition_is_new_if_it_came_later_or_is_empty_or_has_no_lasting_channel() -> None:
    assert is_new(2, LedPartition(1, A), first=2)
    assert is_new(1, LedPartition(0, A), first=2)
    assert is_new(1, LedPartition(1, {}), first=2)
    assert is_new(1, LedPartition(1, {"replay#ephemeral": False}), first=2)


@given(held, st.lists(held))
def test_what_is_created_is_missing_here_exists_elsewhere_and_lasts(
    here: LedPartition, siblings: list[LedPartition]
) -> None:
    found = lacking(here, siblings)
    assert not found.keys() & here.paused.keys()
    assert found.keys() <= {name for sibling in siblings for name in sibling.paused}
    assert lasting(found) == found.keys()
    assert not lacking(LedPartition(here.messages, {**here.paused, **found}), siblings), "once is enough"
