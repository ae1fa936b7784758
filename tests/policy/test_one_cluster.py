"""When nsqlookupds belong to two clusters, and when they only look so."""

import itertools

import pytest

from nsq_ha.policy.one_cluster import Sight, separate_clusters


def sight(name: str, lookupds: str = "", nsqds: str = "") -> Sight:
    """What ``name`` sees, each server a letter."""
    return Sight(name, frozenset(lookupds), frozenset(nsqds))


def names(*sights: Sight) -> list[str]:
    """Return the first of each cluster that has nsqds."""
    return [found.lookupd for found in separate_clusters(sights) if found.nsqds]


def test_a_partitioned_and_a_plain_cluster_are_two() -> None:
    assert names(sight("a", "ab", "xy"), sight("p", nsqds="uv"), sight("q")) == ["a", "p"]


@pytest.mark.parametrize(
    "together",
    [
        pytest.param([sight("a", "ab", "x"), sight("b", "ab", "x")], id="as usual"),
        pytest.param([sight("a", "ab", "x"), sight("b", "b", "x")], id="one is dead and still in an old list"),
        pytest.param([sight("a", "a", "x"), sight("b", "b", "x")], id="etcd is gone for one of them: nsqds are common"),
        pytest.param([sight("a", "a", "x"), sight("b", "b")], id="one has just started and knows no nsqd"),
        pytest.param([sight("a", "a"), sight("b", "b")], id="no nsqd at all"),
        pytest.param([sight("p", nsqds="x"), sight("q", nsqds="y"), sight("r")], id="plain ones are independent"),
        pytest.param([sight("a", "ab", "x"), sight("o", nsqds="x")], id="an old one without lists"),
        pytest.param([sight("a", "a", "x"), sight("b", "b", "y"), sight("c", "ab")], id="a third one joins them"),
    ],
)
def test_what_belongs_together_in_any_order(together: list[Sight]) -> None:
    for order in itertools.permutations(together):
        assert len(names(*order)) < 2


def test_the_nsqds_are_needed_only_where_the_lists_differ() -> None:
    assert len(separate_clusters([sight("a", "ab"), sight("b", "ab")])) == 1
    assert len(separate_clusters([sight("p"), sight("q")])) == 1
    assert len(separate_clusters([sight("a", "a"), sight("b", "b")])) == 2
    assert len(separate_clusters([sight("a", "a"), sight("p")])) == 2
