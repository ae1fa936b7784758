"""The random runs of ``integration.exactness``: what they draw, and that no wrong row escapes them."""

import dataclasses
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest

from integration.exactness.log import log_of
from integration.exactness.verdict import Row, Verdict, judge
from integration.exactness.writing import judge_sink
from nsq_ha.devcluster import DevCluster
from nsq_ha.sync import Producer

LOG: list[Row] = [
    (partition, 50 * number, b"%d-%d" % (partition, number)) for partition in (0, 1) for number in range(4)
]
WRITTEN = [(partition, body) for partition, _, body in LOG]


def verdict_of(*batches: Sequence[Row], written: Sequence[tuple[int, bytes]] = WRITTEN, cut: bool = False) -> Verdict:
    """Judge batches of one file each."""
    return judge(written, LOG, [[batch] for batch in batches], cut=cut)


def test_rows_that_are_the_log_are_exact() -> None:
    verdict = verdict_of(LOG[:2] + LOG[4:6], LOG[2:4] + LOG[6:])
    assert verdict == Verdict()
    assert verdict.is_exact


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([LOG[:-1]], Verdict(lost=1, missing=1)),
        ([LOG, LOG[-1:]], Verdict(foreign=1, repeated=1, disordered=1)),
        ([[*LOG[:-1], (1, 150, b"other")]], Verdict(lost=1, missing=1, foreign=1)),
        ([[*LOG[:-1], (1, 151, b"1-3")]], Verdict(missing=1, foreign=1)),
        ([[*LOG[:-1], (0, 200, b"1-3")]], Verdict(lost=1, missing=1, foreign=1)),
        ([[LOG[1], LOG[0], *LOG[2:]]], Verdict(disordered=1)),
        ([LOG[1:], LOG[:1]], Verdict(disordered=1)),
    ],
    ids=["missing", "repeated", "another body", "another offset", "another partition", "in a file", "between batches"],
)
def test_each_kind_of_wrong_row_is_found(batches: list[list[Row]], wrong: Verdict) -> None:
    verdict = verdict_of(*batches)
    assert not verdict.is_exact
    assert verdict.examples
    names = ("lost", "missing", "foreign", "repeated", "disordered")
    assert [getattr(verdict, name) for name in names] == [getattr(wrong, name) for name in names]


def test_a_written_message_that_the_log_does_not_have_is_lost() -> None:
    assert verdict_of(LOG, written=[*WRITTEN, (0, b"gone")]).lost == 1


def test_files_of_a_cut_partition_come_in_any_order_within_a_batch_only() -> None:
    late, early = LOG[2:4], LOG[:2]
    assert judge(WRITTEN, LOG, [[late, early], [LOG[4:]]], cut=True).is_exact
    assert judge(WRITTEN, LOG, [[late, early], [LOG[4:]]], cut=False).disordered == 2
    assert judge(WRITTEN, LOG, [[late], [early], [LOG[4:]]], cut=True).disordered == 2


def test_the_log_is_what_the_leader_stored_and_never_another_message() -> None:
    with DevCluster(nsqds=1) as cluster:
        cluster.create_topic("t", partitions=1, replicas=1, sync_every=1)
        with Producer(lookupd=cluster.lookupd) as producer:
            for number in range(5):
                producer.publish("t", b"n%d" % number)
        leader = cluster.leader("t")
        assert leader is not None
        server = urlsplit(cluster.http_address(leader))
        assert server.hostname is not None
        assert server.port is not None
        log = list(log_of(server.hostname, server.port, "t", 0, 5))
        assert [body for _, _, body in log] == [b"n0", b"n1", b"n2", b"n3", b"n4"]
        assert [offset for _, offset, _ in log] == sorted({offset for _, offset, _ in log})
        with pytest.raises(AssertionError, match="message 6 of t-0"):
            list(log_of(server.hostname, server.port, "t", 0, 6))


BODIES = [b"000 0000000x", b"001 0000001", b"000 0000002", b"000 0000002"]
WRITTEN_ROWS: list[Row] = [(0, 0, BODIES[0]), (0, 50, BODIES[2]), (0, 100, BODIES[3]), (1, 0, BODIES[1])]


def test_what_is_published_again_is_no_fault_of_a_sink_and_equal_bodies_are_rows_of_their_own() -> None:
    again: Row = (0, 150, BODIES[0])
    assert judge_sink(BODIES, [*WRITTEN_ROWS, again], WRITTEN_ROWS) == Verdict()


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [
        (WRITTEN_ROWS[:-1], Verdict(lost=1, missing=1, disordered=1)),
        ([WRITTEN_ROWS[0], *WRITTEN_ROWS[2:]], Verdict(lost=1, disordered=1)),
        ([*WRITTEN_ROWS, (1, 50, BODIES[1])], Verdict(repeated=1, disordered=1)),
        ([*WRITTEN_ROWS, (1, 50, b"001 other")], Verdict(foreign=1, repeated=1, disordered=1)),
        ([(0, 0, BODIES[2]), (0, 50, BODIES[0]), *WRITTEN_ROWS[2:]], Verdict(disordered=1)),
    ],
    ids=["missing", "too few of a body", "too many of a body", "of no source", "another order"],
)
def test_each_kind_of_wrong_row_of_a_sink_is_found(kept: list[Row], wrong: Verdict) -> None:
    verdict = judge_sink(BODIES, kept, kept)
    assert verdict.examples
    assert dataclasses.replace(verdict, examples=()) == wrong
