"""What the producer's machine does in some stories: every action with its time, its texts, and the counts at the end.

A moment (|) is in seconds since the beginning; connections (#) and publishes have numbers; ``=`` is the last text.
"""

from typing import Any

from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.topology import TopicView
from tests.producer.driven import NODES, Driven

LOST = ConnectionLostError("lost")
REFUSED = ConnectError("refused")
NODE = NODES[0]


def begun(*nodes: Any, **options: Any) -> Driven:  # noqa: ANN401 - of a producer
    return Driven(*nodes, **{"backoff": Backoff(0.1, 1.0, 2.0, 0.0), **options})


def lose(driven: Driven, number: int, error: NsqError = LOST) -> None:
    driven.machine.closed(driven.attempts[number], error, driven.now)
    driven.serve()


def test_an_idle_producer_closes_its_connections_and_forgets_the_topic() -> None:
    driven = begun(*NODES[:2], idle_timeout=20.0)
    for _ in range(3):
        driven.publish()
    driven.ok(driven.lane(0).conn)
    driven.ok(driven.lane(1).conn, 2)
    driven.wait(15.0)
    driven.publish(count=2)
    driven.ok(driven.lane(0).conn)
    driven.wait(60.0)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-1 #0, write #0 0, connected t-1 #0, open #1, opened #1,
        checkchannels t-0 #1, write #1 1, connected t-0 #1, write #0 2, end 1, end 0, end 2 | 15.00: write #1 3, end 3 |
        20.00: close #0 'closed the idle connection', disconnected t-1 = #0 | 35.00: close #1 =, disconnected t-0 = #1,
        forgettopic t | next inf, t-0 published=3, t-1 published=2
    """)


def test_a_silent_leader_is_asked_over_another_connection_and_its_messages_move() -> None:
    driven = begun(*NODES[:2])
    for keys in (("k",), (), ()):
        driven.publish(keys=keys, partition=0 if keys else None)
    driven.ok(driven.lane(1).conn)
    driven.publish(keys=("k",), partition=0)
    driven.wait(0.5)
    driven.publish(limit=0.6)
    driven.publish()
    driven.wait(1.5)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0, open #1, opened #1,
        checkchannels t-1 #1, write #1 1, connected t-1 #1, write #0 2, end 1 | 0.50: write #1 4, write #0 5 | 0.75:
        write #1 2, failed t-0 'the leader h:1 has not answered for 0.75 s or more' #0, look soon | 1.10: end 4 'publish
        to t-1 failed (may be stored, attempts: 1): the leader h:2 did not answer in time' | 1.25: write #1 5, failed
        t-1 'the leader h:2 has not answered for 0.75 s or more' #1, look soon | 1.50: open #2, opened #2 0 | 1.75: look
        soon | next 2.00, t-0 retries=1, t-1 published=1 failed=1 uncertain=1 timed_out=1 - h:1 0 - h:2 0
    """)
    driven.ok(driven.attempts[2])
    driven.wait(0.5)
    for conn in (driven.lane(0).conn, driven.lane(1).conn):
        assert conn is not None
        driven.ok(conn, len(conn.sent))
    driven.told("""
        | 2.00: end 0, close #2 'the question is over' | 2.00: close #0 'h:1 has answered no publish for 2.0 s: closing
        its connection', disconnected t-0 = #0, open #3, opened #3, checkchannels t-0 #3, open #4, opened #4 2, look
        often, connected t-0 #3, look rarely | 2.10: write #3 3 | 2.35: look soon | 2.50: end 3, recovered t-0 #3, end
        2, end 5, recovered t-1 #1 | next 2.60, t-0 published=2 retries=1 reconnects=1, t-1 published=4 failed=1
        uncertain=1 timed_out=1 retries=1 - h:1 0 - h:2 0
    """)


def test_a_leader_that_answers_nothing_is_left() -> None:
    driven = begun(NODE)
    for key in ("a", "b"):
        driven.publish(keys=(key,), partition=0)
    driven.publish(keys=("a",), partition=0)
    driven.wait(15.9)
    driven.events.clear()
    driven.wait(0.6)
    driven.told("""
        | 16.01: end 0 'publish to t-0 failed (may be stored, attempts: 5): h:1 has answered no publish for 16.0 s:
        closing its connection', end 1 'publish to t-0 failed (may be stored, attempts: 4): h:1 has answered no publish
        for 16.0 s: closing its connection', closing t-0 'h:1 has answered no publish for 16.0 s: closing its
        connection' #0, close #0 =, close #7 'the question is over', disconnected t-0 'h:1 has answered no publish for
        16.0 s: closing its connection' #0, failed t-0 =, look soon, look often | 16.11: open #8, opened #8,
        checkchannels t-0 #8, write #8 2, connected t-0 #8, look rarely | next 16.86, t-0 failed=2 uncertain=2 retries=7
        reconnects=1 - h:1 1
    """)
    driven.wait(0.8)
    driven.ok(driven.lane().conn)
    driven.told("""
        | 16.86: failed t-0 'the leader h:1 has not answered for 0.75 s or more' #8, look soon | 17.30: end 2, recovered
        t-0 #8 after 16.55 s and 71 | next 17.36, t-0 published=1 failed=2 uncertain=2 retries=7 reconnects=1 - h:1 0
    """)


def test_a_partition_that_moves_waits_a_moment_for_its_answers() -> None:
    driven = begun(*NODES[:1] * 2, connections_per_nsqd=0)
    for number in (0, 1):
        driven.publish(keys=("k",), partition=number)
    driven.view(NODES[1], NODES[0])
    driven.wait(0.5)
    driven.ok(driven.lane(0).conn)
    driven.ok(driven.lane(1).conn, 2)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0, checkchannels t-1
        #0, write #0 1, connected t-1 #0, moved t-0 #0, disconnected t-0 'closed the connection to h:1: another node
        leads now' #0 | 0.25: open #1, opened #1, checkchannels t-0 #1, write #1 0, connected t-0 #1 | 0.50: end 0, end
        1 | next 0.75, t-0 published=1 retries=1 reconnects=1, t-1 published=1 - h:1 0 - h:2 0
    """)


def test_refusals_are_told_of_and_pause() -> None:
    driven = begun(NODE, auth_secret="s")
    for code in (b"E_FAILED_ON_NOT_LEADER", b"E_FAILED_ON_NOT_WRITABLE", b"E_PUB_FAILED x", b"E_BAD_TOPIC x"):
        driven.publish()
        driven.answer(driven.lane().conn, code)
        driven.wait(0.3)
    driven.wait(1.0)
    for code in (b"E_UNAUTHORIZED x", b"E_STRANGE", b"nonsense"):
        driven.answer(driven.lane().conn, code)
        driven.wait(0.5)
    driven.ok(driven.lane().conn)
    driven.publish(count=3, closes_when_refused=True)
    driven.wait(1.2)
    driven.answer(driven.lane().conn, b"E_BAD_MESSAGE x")
    driven.wait(0.5)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0, refused t-0
        'E_FAILED_ON_NOT_LEADER' #0, failed t-0 = #0, look soon | 0.10: write #0 0 | 0.30: refused t-0
        'E_FAILED_ON_NOT_WRITABLE' #0, failed t-0 = #0, look soon | 0.50: write #0 0 | 0.60: refused t-0 'E_PUB_FAILED
        x' #0, failed t-0 = #0, look soon | 0.85: write #0 0 | 0.90: end 0 'publish to t-0 at h:1 failed (not stored,
        attempts: 4): E_BAD_TOPIC x', write #0 1, refused t-0 'E_BAD_TOPIC x' #0 | 1.65: failed t-0 'the leader h:1 has
        not answered for 0.75 s or more' #0, look soon | 2.20: refused t-0 'E_UNAUTHORIZED x' #0, close #0 'closed the
        connection to renew its permissions: E_UNAUTHORIZED x', disconnected t-0 = #0, failed t-0 =, look soon, look
        often | 2.30: open #1, opened #1, checkchannels t-0 #1, write #1 1 2 3, connected t-0 #1, look rarely | 2.70:
        end 1 'publish to t-0 at h:1 failed (may be stored, attempts: 2): E_STRANGE', refused t-0 'E_STRANGE' #1, close
        #1 'closed the connection after an error that answers no publish: E_STRANGE', disconnected t-0 = #1, failed t-0
        =, look soon, look often | 2.90: open #2, opened #2, checkchannels t-0 #2, write #2 2 3, connected t-0 #2, look
        rarely | 3.20: end 2 'publish to t-0 at h:1 failed (may be stored, attempts: 2): it is not OK', close #2 'it is
        not OK', disconnected t-0 = #2, failed t-0 =, look soon, look often | 3.60: open #3, opened #3, checkchannels
        t-0 #3, write #3 3, connected t-0 #3, look rarely | 3.70: end 3, recovered t-0 #3, write #3 4 | 4.45: failed t-0
        'the leader h:1 has not answered for 0.75 s or more' #3, look soon | 4.90: end 4 'publish to t-0 at h:1 failed
        (not stored, attempts: 1): E_BAD_MESSAGE x', refused t-0 'E_BAD_MESSAGE x' #3, close #3 'closed the connection
        after a refused MPUB_EXT', disconnected t-0 = #3, failed t-0 =, look soon | next 603.70, t-0 published=1
        failed=6 uncertain=2 retries=7 reconnects=3 - h:1 1
    """)


def test_an_unknown_topic_is_looked_up_often_and_fails_what_waits_after_a_while() -> None:
    driven = begun()
    driven.topic.lookupds = ("http://a:1",)
    driven.publish()
    driven.machine.viewed(driven.topic, TopicView("t", None, {}, complete=False, exists=False), driven.now)
    driven.wait(1.0)
    driven.publish(limit=1.0)
    driven.publish()
    driven.wait(2.5)
    driven.machine.cancel(driven.requests[2], driven.now)
    driven.wait(0.1)
    driven.told("""
        | 0.00: look often | 2.00: end 1 'publish to t not sent: there is no topic 't': create it (nsq-ha topic create
        t)' | 3.00: end 0 = | 3.50: look rarely | next 10.00, no lane failed=2 timed_out=1
    """)
    driven.wait(60.0)
    driven.told("""
        | 10.00: forgettopic t | next inf, no lane failed=2 timed_out=1
    """)


def test_a_connection_of_limited_life_is_replaced_in_time() -> None:
    driven = begun(NODE)
    driven.lifetime = 5.0
    driven.publish()
    driven.ok(driven.lane().conn)
    driven.wait(2.0)
    driven.publish(keys=("k",), partition=0)
    driven.wait(1.5)
    driven.publish()
    driven.ok(driven.attempts[0])
    driven.wait(0.01)
    driven.ok(driven.lane().conn)
    driven.wait(10.0)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0, end 0 | 2.00: write
        #0 1 | 2.75: failed t-0 'the leader h:1 has not answered for 0.75 s or more' #0, look soon | 3.00: open #1,
        opened #1 | 3.50: end 1, recovered t-0 #0 | 3.50: write #1 2, close #0 'replaced' | 3.51: end 2 | 6.00: open #2,
        opened #2, close #1 = | 9.00: close #2 'closed the idle connection', disconnected t-0 = #2 | next 603.50, t-0
        published=3 - h:1 0
    """)


def test_one_that_cannot_be_replaced_is_used_as_long_as_nsqd_can_write() -> None:
    driven = begun(NODE)
    driven.lifetime = 5.0
    driven.publish(keys=("k",), partition=0)
    driven.opens = False
    driven.wait(3.1)
    lose(driven, 1, REFUSED)
    driven.wait(1.1)
    driven.publish()
    driven.opens = True
    driven.wait(1.2)
    driven.ok(driven.lane().conn)
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0 | 0.75: failed t-0
        'the leader h:1 has not answered for 0.75 s or more' #0, look soon | 1.75: look soon | 2.75: look soon | 3.00:
        open #1 | 3.20: open #2 | 3.95: look soon | 4.75: close #0 'h:1 can no longer write to this connection', close
        #2 'no longer needed', disconnected t-0 'h:1 can no longer write to this connection' #0, open #3, opened #3,
        checkchannels t-0 #3, failed t-0 =, look soon, look often, connected t-0 #3, look rarely | 4.85: write #3 0 |
        5.40: end 0, write #3 1, recovered t-0 #3 | next 5.60, t-0 published=1 retries=1 reconnects=1 - h:1 0
    """)


def test_the_end_closes_all() -> None:
    driven = begun(*NODES[:2])
    driven.publish(keys=("k",), partition=0)
    driven.publish(keys=("k",), partition=0)
    driven.opens = False
    driven.publish(keys=("k",), partition=1)
    driven.machine.close(ConnectionLostError("the producer was closed"))
    driven.serve()
    driven.told("""
        | 0.00: open #0, opened #0, look if old, checkchannels t-0 #0, write #0 0, connected t-0 #0, open #1,
        checkchannels t-1 #1, end 0 'publish to t-0 at h:1 failed (may be stored, attempts: 1): the producer was
        closed', end 1 'publish to t-0 not sent: the producer was closed', end 2 'publish to t-1 not sent: the producer
        was closed', close #0 'the producer was closed', disconnected t-0 = #0, close #1 = | next 0.00, t-0 failed=2
        uncertain=1, t-1 failed=1 - h:1 0 - h:2 0
    """)
