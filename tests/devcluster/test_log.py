"""Logs and cursors: what is committed, what is cut, what followers copy."""

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.devcluster.storage.log import Cursor, Draft, Log


def filled(count: int, partition: int = 0, *, extended: bool = False) -> Log:
    log = Log(partition, extended=extended)
    for number in range(count):
        log.append(Draft(b"m%d" % number), 1_000 * number)
    log.commit()
    log.flush()
    return log


def test_a_node_that_did_not_give_the_last_id_leaves_one_out() -> None:
    leader, follower = filled(0), filled(0)
    follower.receive(leader.append(Draft(b"m0"), 0))
    leader.commit()
    assert leader.append(Draft(b"m1"), 0).internal_id == 3
    assert follower.append(Draft(b"m1"), 0).internal_id == 4


def test_a_node_that_copied_its_log_leaves_an_id_out_after_the_last() -> None:
    follower = filled(0)
    follower.follow(filled(2))
    assert follower.append(Draft(b"m2"), 0).internal_id == 5


def test_a_node_that_gave_the_last_id_itself_leaves_none_out() -> None:
    former, meanwhile = filled(2), filled(0)
    meanwhile.follow(former)
    former.follow(meanwhile)
    assert former.append(Draft(b"m2"), 0).internal_id == 4


def test_a_node_that_restarted_leaves_an_id_out() -> None:
    log = filled(2)
    log.skip_id()
    assert log.append(Draft(b"m2"), 0).internal_id == 5
    empty = filled(0)
    empty.skip_id()
    assert empty.append(Draft(b"m0"), 0).internal_id == 2


@given(cleaned=st.integers(0, 5), kept=st.integers(0, 5))
def test_a_follower_has_all_that_its_leader_keeps(cleaned: int, kept: int) -> None:
    leader, follower = Log(0, extended=False), Log(0, extended=False)
    for number in range(5):
        follower.receive(leader.append(Draft(b"%d" % number), 0))
    leader.commit()
    follower.commit()
    follower.clean(cleaned)
    leader.clean(kept)
    follower.follow(leader)
    assert follower.start == leader.start
    assert follower.records[kept:] == leader.records[kept:]


def test_what_was_cut_leaves_no_gap_in_offsets_and_one_in_ids() -> None:
    log = filled(2)
    pending = log.append(Draft(b"pending"), 0)
    assert log.cut_pending() == 1
    assert log.cut_pending() == 0
    again = log.append(Draft(b"other"), 0)
    assert (again.internal_id, again.offset) == (pending.internal_id + 1, pending.offset)


@given(common=st.integers(0, 5), mine=st.integers(0, 4), theirs=st.integers(0, 4), committed=st.integers(0, 9))
def test_a_follower_becomes_equal_whatever_it_had(common: int, mine: int, theirs: int, committed: int) -> None:
    leader, follower = Log(0, extended=False), Log(0, extended=False)
    for number in range(common):
        follower.receive(leader.append(Draft(b"%d" % number), 0))
    for log, count in ((follower, mine), (leader, theirs)):
        for number in range(count):
            log.append(Draft(b"own %d" % number), 0)
    leader.committed = min(committed, len(leader.records))
    follower.follow(leader)
    assert len(follower.records) == len(leader.records)
    assert all(a is b for a, b in zip(follower.records, leader.records, strict=True))
    assert follower.committed == leader.committed
    assert follower.append(Draft(b"x"), 0).offset == leader.append(Draft(b"x"), 0).offset


@given(st.permutations(range(12)), st.integers(0, 12))
def test_confirming_in_any_order_counts_the_runs(order: list[int], stop: int) -> None:
    cursor, copy = Cursor(0), Cursor(7)
    for index in order[:stop]:
        cursor.confirm(index)
        cursor.confirm(index)  # twice is once
    confirmed = set(order[:stop])
    first = next(index for index in range(13) if index not in confirmed)
    beyond = {index for index in confirmed if index > first}
    assert cursor.confirmed == first
    assert cursor.beyond == beyond
    assert cursor.ranges == len([index for index in beyond if index - 1 not in beyond])
    copy.copy_from(cursor)
    assert (copy.confirmed, copy.beyond, copy.ranges) == (cursor.confirmed, cursor.beyond, cursor.ranges)
    cursor.reset(3)
    assert (cursor.confirmed, cursor.beyond, cursor.ranges) == (3, set(), 0)
    assert copy.beyond == beyond
