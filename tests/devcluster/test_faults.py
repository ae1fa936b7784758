"""Nodes that die, stop and hang: what clients see, in the order in which the real cluster shows it."""

import threading

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.encoding import encode_mpub
from tests.devcluster.clock import held
from tests.devcluster.probes import NOT_LEADER, NOT_WRITABLE, Probe, consumer, finish, probe, until
from tests.devcluster.wire import attempts, connect, identify, pub


def test_a_killed_leader_leaves_both_lookups_until_another_is_elected() -> None:
    with probe(2) as seen:
        leader, other = seen.leader(0), seen.leader(1)
        assert leader != other
        assert seen.publish(leader, b"kept") == b"OK"
        with held(seen.cluster) as clock:
            with seen.wire(leader) as open_connection:
                seen.cluster.kill(leader)
                assert open_connection.ends()
            with pytest.raises(OSError, match="refused"):
                connect(seen.cluster.nsqds[leader])
            clock.until(lambda: 0 not in seen.lookup("r"))
            assert 0 not in seen.lookup("w")
            assert seen.lookup("r") == {1: other}
            for follower in seen.cluster.followers("orders", 0):
                if follower != leader:
                    assert seen.publish(follower, b"lost") == NOT_LEADER
        elected = seen.successor(leader)
        assert seen.publish(elected, b"new") == b"OK"
        assert seen.stored() == [b"kept", b"new"]


def test_a_killed_leader_comes_back_as_a_follower_and_stops_writing_for_a_moment() -> None:
    with probe(scale=0.1) as seen:
        leader = seen.leader()
        seen.cluster.kill(leader)
        elected = seen.successor(leader)
        with held(seen.cluster) as clock:
            seen.cluster.start(leader)
            assert clock.until(lambda: seen.publish(leader, b"refused") == NOT_LEADER)
            clock.until(lambda: not seen.lookup("w"))
            assert seen.lookup("r") == {0: elected}
            assert seen.publish(elected, b"refused") == NOT_WRITABLE
        until(lambda: seen.lookup("w") == {0: elected})
        assert seen.publish(elected, b"stored") == b"OK"
        # It is in sync again: the loss of both others leaves it the data.
        assert seen.stored() == [b"stored"]
        seen.cluster.stop(elected)
        seen.successor(elected)
        assert seen.stored() == [b"stored"]


def test_a_stopping_leader_refuses_then_closes_and_hands_over_at_once() -> None:
    with probe(scale=0.3) as seen, consumer(seen) as consuming:
        leader = seen.leader()
        with seen.wire(leader) as publishing:
            assert seen.publish(leader, b"before") == b"OK"
            assert consuming.message().endswith(b"before")
            stop = threading.Thread(target=seen.cluster.stop, args=(leader,))
            answers = []

            def refused() -> bool:
                publishing.send(pub("orders", b"late"))
                answers.append(publishing.answer())
                return answers[-1] != b"OK"

            with held(seen.cluster):
                stop.start()
                until(refused)
                assert answers[-1] == b"E_PUB_FAILED exiting"
            assert consuming.ends()
            assert publishing.ends()
            stop.join()
        seen.successor(leader)
        assert seen.stored() == [b"before"] + [b"late"] * answers.count(b"OK")


def test_a_frozen_leader_is_silent_until_another_leads_and_refuses_on_waking() -> None:
    with probe(scale=0.1) as seen:
        leader = seen.leader()
        with seen.wire(leader) as publishing, consumer(seen) as consuming:
            with held(seen.cluster) as clock:
                seen.cluster.freeze(leader)
                publishing.send(pub("orders", b"waits"))
                late = connect(seen.cluster.nsqds[leader], pub("orders", b"waits too"))  # the kernel accepts
                assert seen.lookup("w") == {0: leader}
                clock.until(lambda: not seen.lookup("r"))
            elected = seen.successor(leader)
            assert publishing.is_quiet(0)
            assert consuming.is_quiet(0)
            assert late.is_quiet(0)
            with held(seen.cluster):
                seen.cluster.thaw(leader)
                assert publishing.answer() == NOT_WRITABLE
                assert late.answer() == NOT_WRITABLE
            assert consuming.ends()
            until(lambda: seen.publish(leader, b"refused") == NOT_LEADER)
            late.close()
        # While the node that woke catches up, the new leader may take no writes for a moment.
        until(lambda: seen.publish(elected, b"stored") == b"OK")
        assert seen.stored() == [b"stored"]


def test_what_waits_for_a_leader_that_wakes_in_time_is_stored() -> None:
    with probe() as seen:
        leader = seen.leader()
        with held(seen.cluster), seen.wire(leader) as publishing:
            seen.cluster.freeze(leader)
            publishing.send(pub("orders", b"waits"))
            assert publishing.is_quiet(0.1)
            seen.cluster.thaw(leader)
            assert publishing.answer() == b"OK"
        assert seen.lookup("w") == {0: leader}
        assert seen.stored() == [b"waits"]


def test_a_frozen_node_writes_nothing_and_does_nothing_that_was_delayed() -> None:
    with probe(ordered=False) as seen:
        leader = seen.leader()
        start = identify(output_buffer_timeout=300), b"SUB orders billing 0\nRDY 10\n"
        with seen.wire(leader, *start) as consuming, seen.wire(leader) as publishing:
            consuming.answer()
            assert consuming.answer() == b"OK"
            with held(seen.cluster) as clock:
                assert seen.publish(leader, b"gathered") == b"OK"
                seen.cluster.delay(leader, 0.2)
                publishing.send(pub("orders", b"delayed"))
                assert publishing.is_quiet(0.1)
                seen.cluster.freeze(leader)
                clock.move(0.5)
                assert consuming.is_quiet(0.1)
                assert publishing.is_quiet(0)
                seen.cluster.thaw(leader)
                assert publishing.answer() == b"OK"
                assert consuming.message()[26:] == b"gathered"


def test_a_killed_follower_holds_publishes_up_then_has_them_refused_then_is_left_out() -> None:
    with probe() as seen:
        leader = seen.leader()
        follower = seen.cluster.followers("orders")[0]
        with consumer(seen) as consuming, seen.wire(leader) as publishing:
            with held(seen.cluster) as clock:
                seen.cluster.kill(follower)
                publishing.send(pub("orders", b"in doubt"))
                assert publishing.is_quiet(0.2)
                assert seen.lookup("w") == {0: leader}
                behind = seen.wire(leader, pub("orders", b"surely not stored"))
                with seen.wire(leader, b"SUB_ORDERED orders late 0\n") as late, behind:
                    clock.until(lambda: not publishing.is_quiet(0))
                    assert publishing.answer() == NOT_WRITABLE
                    assert behind.answer() == NOT_WRITABLE
                    assert late.answer() == NOT_WRITABLE
                    assert late.ends()
                assert seen.publish(leader, b"refused at once") == NOT_WRITABLE
                clock.until(lambda: not seen.lookup("w"))
                assert seen.lookup("r") == {0: leader}
            until(lambda: seen.lookup("w") == {0: leader})
            assert seen.publish(leader, b"stored") == b"OK"
            stored = seen.stored()
            assert stored in ([b"stored"], [b"in doubt", b"stored"])
            for body in stored:  # the consumer's connection lived through it
                data = consuming.message()
                assert data.endswith(body)
                finish(consuming, data)


def test_a_follower_that_is_back_in_time_lets_what_waits_through() -> None:
    with probe(scale=0.1) as seen:
        leader = seen.leader()
        follower = seen.cluster.followers("orders")[0]
        with held(seen.cluster) as clock, seen.wire(leader) as publishing:
            seen.cluster.kill(follower)
            publishing.send(pub("orders", b"waits") + pub("orders", b"waits behind"))
            assert publishing.is_quiet(0.1)
            seen.cluster.start(follower)
            clock.until(lambda: not publishing.is_quiet(0))
            assert publishing.answer() == b"OK"
            assert publishing.answer() == b"OK"
        assert seen.stored() == [b"waits", b"waits behind"]


def test_two_replicas_need_both() -> None:
    with probe(replicas=2) as seen:
        leader, follower = seen.leader(), seen.cluster.followers("orders")[0]
        assert seen.publish(leader, b"kept") == b"OK"
        seen.cluster.kill(leader)
        until(lambda: seen.lookup("r") == {0: follower})
        assert not seen.lookup("w")
        assert seen.publish(follower, b"refused") == NOT_WRITABLE
        with seen.wire(follower, b"SUB_ORDERED orders billing 0\n") as refused:
            assert refused.answer() == NOT_WRITABLE
            assert refused.ends()
        seen.cluster.start(leader)
        until(lambda: seen.lookup("w") == {0: follower})
        assert seen.publish(follower, b"stored") == b"OK"
        assert seen.stored() == [b"kept", b"stored"]


def test_a_single_replica_waits_for_its_node() -> None:
    with probe(replicas=1) as seen:
        leader = seen.leader()
        assert seen.publish(leader, b"kept") == b"OK"
        seen.cluster.kill(leader)
        until(lambda: not seen.lookup("r"))
        until(lambda: seen.cluster.leader("orders") is None)
        seen.cluster.start(leader)
        until(lambda: seen.lookup("w") == {0: leader})
        assert seen.stored() == [b"kept"]


def test_what_a_consumer_held_comes_again_from_the_new_leader_with_attempts_1() -> None:
    with probe() as seen:
        with consumer(seen) as consuming:
            for body in (b"first", b"second"):
                assert seen.publish(seen.leader(), body) == b"OK"
            finish(consuming, consuming.message())
            held = consuming.message()
            assert held.endswith(b"second")
            leader = seen.leader()
            seen.cluster.kill(leader)
            assert consuming.ends()
        seen.successor(leader)
        with consumer(seen) as again:
            data = again.message()
            assert data[10:26] == held[10:26]
            assert attempts(data) == 1


def test_what_was_just_finished_out_of_order_comes_again_from_the_new_leader() -> None:
    with probe(ordered=False) as seen:
        leader = seen.leader()
        with consumer(seen, ready=3, word="SUB") as consuming, held(seen.cluster):
            with seen.wire(leader, encode_mpub("orders", 0, [b"first", b"held", b"third"])) as publishing:
                assert publishing.answer() == b"OK"
            first, _, third = (consuming.message() for _ in range(3))
            for data in (first, third, third):
                finish(consuming, data)
            assert consuming.answer().startswith(b"E_FIN_FAILED ")
            seen.cluster.kill(leader)
        seen.successor(leader)
        with consumer(seen, ready=3, word="SUB") as again:
            assert [again.message()[26:] for _ in range(2)] == [b"held", b"third"]
            assert again.is_quiet(0.1)


def test_a_finish_waits_for_the_replicas_and_is_refused_with_them() -> None:
    with probe() as seen, consumer(seen) as consuming:
        assert seen.publish(seen.leader(), b"held") == b"OK"
        data = consuming.message()
        with held(seen.cluster) as clock:
            seen.cluster.kill(seen.cluster.followers("orders")[0])
            finish(consuming, data)
            clock.until(lambda: not consuming.is_quiet(0))
            assert consuming.answer() == NOT_WRITABLE
        assert consuming.ends()
        until(lambda: seen.publish(seen.leader(), b"next") == b"OK")
        with consumer(seen) as again:
            assert again.message()[10:26] == data[10:26]


def test_cut_delay_and_refused_writes() -> None:
    with probe() as seen:
        leader = seen.leader()
        with seen.wire(leader) as wire:
            seen.cluster.cut(leader)
            assert wire.ends()
        seen.cluster.delay(leader, 0.2)
        with held(seen.cluster) as clock, seen.wire(leader, pub("orders", b"late")) as wire:
            assert wire.is_quiet(0.1)
            clock.until(lambda: not wire.is_quiet(0))
            assert wire.answer() == b"OK"
        seen.cluster.delay(leader, 0)
        seen.cluster.refuse_writes(leader)
        assert seen.publish(leader, b"refused") == NOT_LEADER
        seen.cluster.refuse_writes(leader, refuse=False)
        assert seen.publish(leader, b"stored") == b"OK"
        seen.cluster.refuse_writes()
        assert seen.publish(leader, b"refused") == NOT_LEADER
        assert seen.lookup("w") == {}
        assert seen.lookup("r") == {0: leader}
        seen.cluster.refuse_writes(refuse=False)
        assert seen.stored() == [b"late", b"stored"]


def test_doing_again_what_was_done_has_no_effect() -> None:
    with probe() as seen:
        cluster, leader = seen.cluster, seen.leader()
        cluster.start(leader)
        cluster.thaw(leader)
        cluster.freeze(leader)
        cluster.freeze(leader)
        assert not cluster.is_up(leader)
        cluster.stop(leader)  # cannot take its leave
        cluster.stop(leader)
        cluster.kill(leader)
        cluster.start(leader)
        assert cluster.is_up(leader)
        until(seen.is_whole)
        assert publishes(seen)


def publishes(seen: Probe) -> bool:
    return until(lambda: seen.publish(seen.cluster.leader("orders"), b"x") == b"OK") is True


def test_a_slow_leader_is_named_before_it_works() -> None:
    with DevCluster(nsqds=2, nsqlookupds=1, time_scale=0.05, slow_leaders=10.0) as cluster:
        cluster.create_topic("orders", 1, 2)
        seen = Probe(cluster, "orders")
        former = seen.leader()
        mover = threading.Thread(target=lambda: cluster.move_leader("orders"))
        with held(cluster) as clock:
            mover.start()
            leader = clock.until(lambda: seen.lookup("r").get(0, former) != former and seen.lookup("r")[0])
            assert seen.publish(leader, b"early") == NOT_WRITABLE
            assert seen.lookup("w") == {}
        mover.join()
        assert seen.publish(leader, b"late") == b"OK"
        seen.http.close()


@pytest.mark.slow
def test_after_a_node_came_or_went_nothing_is_stable_until_the_next_full_check() -> None:
    with probe(nsqds=4) as seen:

        def stable() -> bool:
            answer = seen.http.get(seen.cluster.lookupd[0] + "/cluster/stats")
            return bool(answer.json()["stable"])

        assert stable()
        (spare,) = set(seen.cluster.nsqds) - {seen.leader(), *seen.cluster.followers("orders")}
        with held(seen.cluster) as clock:
            seen.cluster.kill(spare)
            seen.cluster.start(spare)
            clock.until(lambda: spare_is_listed(seen, spare))
            assert not stable()
        until(stable)


def spare_is_listed(seen: Probe, node: str) -> bool:
    listed = seen.http.get(seen.cluster.lookupd[0] + "/nodes").json()["producers"]
    port = int(seen.cluster.nsqds[node].rpartition(":")[2])
    return port in {entry["tcp_port"] for entry in listed}
