"""What is wrong with the consumers of a channel is one sentence, with what to do."""

import dataclasses

import pytest

from nsq_ha.admin import ChannelStats, Incident
from nsq_ha.admin.causes import incidents
from nsq_ha.admin.consuming import folded, unsettled
from nsq_ha.admin.reading import Reading
from tests.admin.test_causes import plain
from tests.dashboard.conftest import channel, node, partition, reading


def looks(*channels: ChannelStats, every: float = 10.0, is_plain: bool = False, ordered: bool = False) -> Reading:
    """Return the last of some looks at one channel."""
    found: Reading | None = None
    for number, each in enumerate(channels):
        if is_plain:
            nsqd = plain(1)
            nsqd = dataclasses.replace(
                nsqd, partitions=(dataclasses.replace(partition("orders", 0, each), nsqd="n:1"),)
            )
        else:
            nsqd = node(1, dataclasses.replace(partition("orders", 0, each), ordered=ordered))
        found = reading(1000.0 + every * number, nsqd, before=found, is_plain=is_plain)
    assert found is not None
    return found


def said(now: Reading) -> list[str]:
    assert all(each.remedy for each in incidents(now))
    return [each.sentence(now.at) for each in incidents(now)]


def only(now: Reading) -> Incident:
    [found] = incidents(now)
    return found


def moving(*done: int, depth: int = 0, gets: int = 0, **fields: object) -> list[ChannelStats]:
    """Return a channel that had got rid of these messages at each look, and gets some more between."""
    return [
        channel("billing", depth=depth + (gets * n) - each, messages=depth + gets * n, **fields)
        for n, each in enumerate(done)
    ]


BEHIND = (
    "orders/billing falls behind: 10/s come, 2.0/s are finished; a new message waits for 43 min, in 4 min more than an"
    " hour; 5,160 messages wait"
)
LATE = (
    "orders/billing is hours behind; a new message waits for 75 min, it catches up in 2 h 29 min; 8,980 messages wait"
)
HANGS = (
    "orders/billing stands still: 1 client holds 2 messages of it for at least 20 s; 50 messages wait; messages of it"
    " fail and come back: 3.0/min requeued or timed out, none finished"
)
BLOCKED = (
    "message 5 of orders-0 blocks orders/billing for at least 30 s; 50 messages wait, the oldest for 10 min; it came"
    " back 3 times"
)


@pytest.mark.parametrize(
    ("now", "sentences"),
    [
        (looks(channel(depth=0)), []),
        (looks(channel(depth=50)), []),
        (looks(*[channel(depth=999, clients=0)] * 6), []),  # as its consumers restart
        (looks(*[channel(depth=9, clients=0, oldest_at=990.0)] * 6, every=1.0), []),
        (
            looks(*[channel(depth=1, clients=0)] * 7),
            ["nobody reads orders/billing for at least 60 s; 1 message waits"],
        ),
        (looks(channel(depth=1000, clients=0)), ["nobody reads orders/billing; 1,000 messages wait"]),
        (looks(channel(depth=5000), *[channel(depth=5000, clients=0, oldest_at=1.0)] * 5), []),
        (
            looks(channel(depth=50), *[channel(depth=50, clients=0, oldest_at=1.0)] * 7),
            ["nobody reads orders/billing for 70 s; 50 messages wait, the oldest for 18 min"],
        ),
        (
            looks(*[channel(depth=50, clients=0, oldest_at=400.0)] * 3),
            ["nobody reads orders/billing for at least 20 s; 50 messages wait, the oldest for 10 min"],
        ),
        (
            looks(*moving(0, 7, depth=50), *[channel(depth=43, messages=50, clients=0, paused=True, paused_at=1)] * 6),
            ["nobody reads orders/billing for 60 s; 43 messages wait; it is paused"],
        ),
        (
            looks(*[channel(depth=50, clients=4)] * 2),
            ["orders/billing stands still: 4 clients take nothing for at least 10 s; 50 messages wait"],
        ),
        (
            looks(*[channel(depth=50, in_flight=2)] * 2),
            ["orders/billing stands still: 1 client holds 2 messages of it for at least 10 s; 50 messages wait"],
        ),
        (
            looks(*[channel(depth=50, messages=60, in_flight=2)] * 2, is_plain=True),
            ["orders/billing stands still: 1 client finishes nothing for at least 10 s; 50 messages wait"],
        ),
        (
            looks(*(channel(depth=50, timed_out=n, in_flight=2) for n in range(2)), every=20.0),
            [HANGS],
        ),
        (looks(*[channel(depth=50, in_flight=2, deferred=50)] * 2), []),  # they wait for the end of a delay
        (
            looks(*(channel(depth=50, requeued=n * 20, timed_out=n * 10) for n in range(3))),
            ["messages of orders/billing fail and come back: 3.0/s requeued or timed out, none finished"],
        ),
        (looks(channel(requeued=0), channel(requeued=50)), []),  # all that failed is finished
        (
            looks(*moving(0, 20, 40, depth=5000, gets=100)),
            [BEHIND],
        ),
        (
            looks(*moving(0, 20, 40, depth=9000, gets=10)),
            [LATE],
        ),
        (looks(*moving(0, 20, 40, depth=2000, gets=10)), []),
        (looks(channel(paused=True, paused_at=1)), ["orders/billing is paused"]),
        (
            looks(*[channel(depth=50, paused=True, paused_at=1)] * 3),
            ["orders/billing is paused; 50 messages wait"],
        ),
        (
            looks(*moving(4, 4, 4, depth=54, in_flight=1), ordered=True),
            ["message 5 of orders-0 blocks orders/billing for at least 20 s; 50 messages wait"],
        ),
        (
            looks(
                *(channel(depth=50, messages=54, requeued=n, in_flight=1, oldest_at=400.0) for n in range(4)),
                ordered=True,
            ),
            [BLOCKED],
        ),
    ],
)  # fmt: skip
def test_each_is_a_sentence(now: Reading, sentences: list[str]) -> None:
    assert said(now) == sentences


def test_the_commands_that_help_are_named() -> None:
    paused = channel(depth=5000, clients=0, paused=True, paused_at=1)
    commands = "nsq-ha channel delete orders billing; to resume it: nsq-ha channel resume orders billing"
    assert only(looks(paused)).remedy.endswith(commands)
    now = looks(*moving(4, 4, 4, depth=54, in_flight=1), ordered=True)
    assert only(now).remedy.endswith("nsq-ha channel finish orders billing --partition 0 --number 5")


@pytest.mark.parametrize(
    ("now", "is_bad"),
    [
        (looks(*[channel(depth=50, in_flight=2)] * 2), False),  # perhaps a slow handler
        (looks(*[channel(depth=50, in_flight=2)] * 7), True),
        (looks(*[channel(depth=50, in_flight=2, oldest_at=900.0)] * 2), True),
        (looks(*[channel(depth=50)] * 2), True),
        (looks(*moving(4, 4, depth=54, in_flight=1), ordered=True), False),
        (looks(*moving(0, 20, 40, depth=9000, gets=10)), False),
        (looks(*moving(0, 20, 40, depth=5000, gets=100)), True),
        (looks(*moving(0, 1000, 1990, depth=61000, gets=1010)), False),
    ],
)
def test_a_slow_handler_is_a_warning(now: Reading, is_bad: bool) -> None:
    assert only(now).is_bad is is_bad


def test_one_partition_that_nobody_reads_is_named() -> None:
    found: Reading | None = None
    for at in (100.0, 160.0):
        parts = [channel(depth=9, clients=0), channel(depth=9, messages=int(at))]
        held = [partition("orders", number, each) for number, each in enumerate(parts)]
        found = reading(at, node(1, *held), before=found)
    assert found is not None
    assert said(found) == ["nobody reads orders/billing at partition 0 for at least 60 s; 18 messages wait"]


def test_a_sum_that_lacks_a_part_says_so() -> None:
    held = [
        dataclasses.replace(partition("t", 0, channel("c", depth=5000, clients=0)), nsqd=f"n:{port}") for port in (1, 2)
    ]
    nodes = [dataclasses.replace(plain(port), partitions=(each,)) for port, each in enumerate(held, 1)]
    now = reading(2.0, nodes[0], node(2, error="refused"), before=reading(1.0, *nodes, is_plain=True), is_plain=True)
    assert "nobody reads t/c for at least 1 s; at least 5,000 messages wait" in said(now)


def test_the_worst_comes_first_and_servers_before_all() -> None:
    names = {
        **{name: {"depth": depth, "clients": 0} for name, depth in (("a", 5000), ("b", 9000), ("d", 9), ("e", 9))},
        "c": {"paused": True, "paused_at": 1},
    }
    held = partition("t", 0, *(channel(name, **fields) for name, fields in names.items()))
    nodes = dataclasses.replace(node(1, held), health="NOK"), node(2, error="refused")
    now = reading(61.0, *nodes, before=reading(1.0, *nodes))
    assert [each.subject for each in incidents(now)] == ["n:2", "n:1", "t/b", "t/a", "t/d", "t/e", "t/c"]
    *worse, last = folded(incidents(now))
    assert [each.subject for each in worse] == ["n:2", "n:1", "t/b", "t/a", "t/c"]
    assert (last.cause, last.is_bad) == ("nobody reads 2 channels with few messages: t/d, t/e", False)
    assert folded(incidents(now)[:5]) == list(incidents(now)[:5])


def test_a_second_look_is_worth_it_only_where_messages_and_consumers_are() -> None:
    assert not unsettled(looks(channel()))
    assert not unsettled(looks(channel(depth=9, clients=0)))
    assert unsettled(looks(channel(depth=9)))
    assert unsettled(looks(channel(depth=9), channel(depth=9), every=5.0))
    assert not unsettled(looks(*moving(0, 5, depth=9), every=5.0))
    assert unsettled(looks(*moving(0, 5, depth=900), every=5.0))
    assert not unsettled(looks(channel(depth=9), channel(depth=9)))


def test_a_clock_that_was_set_back_begins_anew() -> None:
    assert said(looks(*[channel(depth=50)] * 2, every=-10.0)) == []
