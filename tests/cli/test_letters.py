"""``nsq-ha dead-letters``: what was given up is shown, and published again once."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsq_ha import Message, sync
from nsq_ha.admin import AdminClient, TopicDescription
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import NoLeaderError
from tests.cli.conftest import Invoke
from tests.cli.test_topic import unknown
from tests.test_dead_letters import Source, arrived, message, written


def bury(cluster: DevCluster, topic: str, letters: str, bodies: list[bytes]) -> None:
    """Have each body given up, by an error that its first letter names; publish what is no dead letter, too."""
    errors = {b"v": ValueError, b"k": KeyError}
    with (
        sync.Producer(lookupd=cluster.lookupd) as producer,
        sync.Consumer(
            topic,
            "ledger",
            lookupd=cluster.lookupd,
            max_attempts=1,
            on_give_up="dead_letter",
            dead_letter_topic=letters,
            producer=producer,
            handler_backoff=None,
        ) as consumer,
    ):
        for body in bodies:
            producer.publish(topic, body)
            message = next(consumer)
            with pytest.raises((ValueError, KeyError)), message:
                raise errors[message.body[:1]](message.body)
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(letters, b"no letter")


def letters_of(invoke: Invoke, *arguments: str, lookupd: str | None = None) -> list[dict[str, Any]]:
    result = invoke("dead-letters", "list", *arguments, "--json", lookupd=lookupd)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_they_are_listed_shown_and_replayed(cluster: DevCluster, invoke: Invoke, topic: str, name: str) -> None:
    dead = cluster.create_topic(f"{name}.dead", sync_every=1)
    bury(cluster, topic, dead, [b"v1", b"k2", b"v3"])
    found = letters_of(invoke, dead)
    assert sorted(each["body"] for each in found) == ["k2", "v1", "v3"]
    assert [each["body"] for each in letters_of(invoke, dead, "--error", "KeyError")] == ["k2"]
    assert letters_of(invoke, dead, "--origin", "elsewhere") == []
    listed = invoke("dead-letters", "list", dead, "--table")
    table = listed.stdout
    assert listed.stderr.startswith(f"warning: left out 1 message of {dead}, such as this: <Message {dead}-0 ")
    assert f"{dead}: 3 dead letters" in table
    assert "KeyError" in table

    ident = str(next(each["internal_id"] for each in found if each["body"] == "k2"))
    shown = invoke("dead-letters", "show", dead, ident, "--table")
    assert shown.exit_code == 0
    assert "KeyError" in shown.stdout
    missing = invoke("dead-letters", "show", dead, "0x1")
    assert missing.exit_code == 1
    assert "holds no dead letter 0x1: see `nsq-ha dead-letters list`" in missing.stderr

    dry = invoke("dead-letters", "replay", dead, "--all", "--dry-run")
    assert dry.stderr.splitlines()[-1] == "would replay 3 dead letters"
    one = invoke("dead-letters", "replay", dead, ident, "--yes")
    assert (one.exit_code, one.stderr.splitlines()[-1]) == (0, "replayed 1 dead letters")
    every = invoke("dead-letters", "replay", dead, "--all", "--yes")
    assert (every.exit_code, every.stderr.splitlines()[-1]) == (0, "replayed 3 dead letters")
    again = invoke("dead-letters", "replay", dead, "--all", "--yes")
    assert (again.exit_code, again.stderr.splitlines()[-1]) == (0, "replayed 0 dead letters")
    dry = invoke("dead-letters", "replay", dead, "--all", "--dry-run")  # those that were replayed were named again
    assert (dry.stdout, dry.stderr.splitlines()[-1]) == ("", "would replay 0 dead letters")
    bodies = invoke("tail", topic, "--from", "beginning", "-n", "7", "--raw").stdout.split()
    assert sorted(bodies) == ["k2", "k2", "k2", "v1", "v1", "v3", "v3"]


def test_a_channel_that_no_nsqlookupd_lists_yet_replays_nothing_again(
    cluster: DevCluster, invoke: Invoke, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that had just started listed none, so the channel was moved back to the oldest letter."""
    monkeypatch.setattr("nsq_ha.cli.reading.QUIET", 2.0)
    dead = cluster.create_topic(f"{name}.dead", sync_every=1)
    bury(cluster, topic, dead, [b"v1"])
    replay = ("dead-letters", "replay", dead, "--all", "--yes")
    assert invoke(*replay).stderr.splitlines()[-1] == "replayed 1 dead letters"

    async def channels(*_: object, **__: object) -> tuple[str, ...]:
        return ()

    monkeypatch.setattr(AdminClient, "channels", channels)
    assert invoke(*replay).stderr.splitlines()[-1] == "replayed 0 dead letters"

    async def describe(_: AdminClient, topic: str, **__: object) -> TopicDescription:
        return unknown(topic)

    monkeypatch.setattr(AdminClient, "describe", describe)  # while the topic grows
    assert "do not agree how many partitions" in invoke(*replay).stderr


def test_letters_are_printed_as_they_are_read(invoke: Invoke, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were in memory until the last one had come, and an error then lost them."""

    async def scan(*_: object, **__: object) -> AsyncIterator[Message]:
        yield arrived(written(message(b"x"))[0])
        raise NoLeaderError("gone")

    monkeypatch.setattr("nsq_ha.cli.dead_letters.scan", scan)
    result = invoke("dead-letters", "list", topic, "--json")
    assert (result.exit_code, result.stderr) == (1, "Error: gone\n")
    assert json.loads(result.stdout)["body"] == "x"


def test_a_topic_that_is_not_read_to_its_end_is_named(
    invoke: Invoke, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that lacked letters looked like a whole one, and `trace` said that the topic does not hold a message."""

    async def nothing(_: object) -> AsyncIterator[object]:
        for each in list[object]():
            yield each

    invoke("pub", topic, "--partition", "1", stdin="a")
    monkeypatch.setattr("nsq_ha.cli.reading.until_quiet", nothing)
    result = invoke("dead-letters", "list", topic, "--json")
    assert result.stderr == f"warning: no more came of {topic}-1, though newer messages are there\n"
    assert (result.exit_code, result.stdout) == (0, "")
    replayed = invoke("dead-letters", "replay", topic, "--error", "KeyError", "--yes")
    assert (replayed.exit_code, replayed.stderr) == (1, f"{result.stderr}replayed 0 dead letters\n")
    replayed = invoke("dead-letters", "replay", topic, "0x1", "--yes")
    assert f"Error: what could be read of topic '{topic}' holds no dead letter 0x1" in replayed.stderr
    traced = json.loads(invoke("trace", "7", "--trace-id", "--topic", topic, "--json").stdout)
    assert traced["note"] == "what could be read of the topic does not hold it now"


def test_messages_that_stay_in_the_channel_hold_back_no_letter_in_silence(
    cluster: DevCluster, invoke: Invoke, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq_ha.cli.dead_letters._IN_FLIGHT", 2)
    monkeypatch.setattr("nsq_ha.cli.reading.QUIET", 2.0)
    dead = cluster.create_topic(f"{name}.dead", sync_every=1)
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        producer.publish_many(dead, [b"no letter"] * 2)
    bury(cluster, topic, dead, [b"v1"])
    result = invoke("dead-letters", "replay", dead, "--all", "--yes")
    assert "replayed 0 dead letters" in result.stderr
    assert "warning: 2 messages that were not replayed stay in the channel, and hold back the rest" in result.stderr
    assert result.exit_code == 1, "not all could be read"


def test_what_a_forged_letter_says_is_printed_escaped(cluster: DevCluster, invoke: Invoke, name: str) -> None:
    """Whoever may publish to the topic can write letters by hand."""
    dead = cluster.create_topic(f"{name}.dead", sync_every=1)
    hostile = "a\x1b[2J\u202eb"
    source = Source(topic=hostile, channel=hostile)
    (forged, *_) = written(message(b"\x1b[2J", source=source), takes_headers=False)
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(dead, forged.body)
    ident = str(letters_of(invoke, dead)[0]["internal_id"])
    for command in (
        ("dead-letters", "list", dead, "--table"),
        ("dead-letters", "show", dead, ident, "--table"),
        ("dead-letters", "show", dead, ident, "--json"),
        ("dead-letters", "replay", dead, "--all", "--dry-run"),
        ("dead-letters", "replay", dead, "--all", "--yes"),
        ("tail", dead, "--dead-letters", "--from", "beginning", "-n", "1", "--table"),
    ):
        result = invoke(*command)
        printed = result.stdout + result.stderr
        assert "\\x1b[2J" in printed or "\\u001b[2J" in printed, command
        assert printed.replace("\n", "").isprintable(), command


@pytest.mark.few(every=2)
@pytest.mark.parametrize("wrong", [(), ("--all", "7"), ("--all", "--error", "x"), ("x",), ("-1",)])
def test_what_to_replay_must_be_named(invoke: Invoke, topic: str, wrong: tuple[str, ...]) -> None:
    assert invoke("dead-letters", "replay", topic, *wrong, "--yes").exit_code == 2


def test_without_yes_and_a_terminal_nothing_is_replayed(invoke: Invoke, topic: str) -> None:
    assert invoke("dead-letters", "replay", topic, "--all").exit_code == 2


@pytest.mark.slow
def test_on_a_plain_cluster_they_stay_in_their_channel(plain: DevCluster, invoke: Invoke, name: str) -> None:
    lookupd = ",".join(plain.lookupd)
    dead = f"{name}.dead"
    plain.create_topic(name)
    plain.create_topic(dead)
    bury(plain, name, dead, [b"v1", b"k2"])
    replay = ("dead-letters", "replay", dead, "--channel", "look", "--yes")
    mistyped = invoke(*replay, "--all", lookupd=lookupd)
    assert (mistyped.exit_code, "no channel 'look' at nsqd" in mistyped.stderr) == (1, True)
    refused = invoke("dead-letters", "list", dead, lookupd=lookupd)
    assert refused.exit_code == 1
    assert "give --channel: a plain cluster keeps messages" in refused.stderr
    mistyped = invoke("dead-letters", "list", dead, "--channel", "look", lookupd=lookupd)
    assert (mistyped.exit_code, "no channel 'look' at nsqd" in mistyped.stderr) == (1, True)
    assert invoke("channel", "list", dead, lookupd=lookupd).stdout == ""
    assert invoke("dead-letters", "list", f"{dead}x", "--channel", "look", lookupd=lookupd).exit_code == 1
    assert invoke("channel", "create", dead, "look", lookupd=lookupd).exit_code == 0
    found = letters_of(invoke, dead, "--channel", "look", lookupd=lookupd)
    assert sorted(each["body"] for each in found) == ["k2", "v1"]
    named = found[0]
    result = invoke(*replay[:3], str(named["internal_id"]), *replay[3:], lookupd=lookupd)
    assert result.exit_code == 2
    assert "write HOST:PORT/ID, since each plain nsqd gives ids of its own" in result.stderr
    name_of_it = f"{named['nsqd']}/{named['internal_id']}"
    shown = invoke("dead-letters", "show", dead, name_of_it, "--channel", "look", "--json", lookupd=lookupd)
    assert json.loads(shown.stdout)["body"] == named["body"]
    result = invoke(*replay[:3], f"127.0.0.1:1/{named['internal_id']}", *replay[3:], lookupd=lookupd)
    assert f"holds no dead letter 127.0.0.1:1/{named['internal_id']:#x}" in result.stderr
    result = invoke(*replay, "--error", "KeyError", lookupd=lookupd)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, "replayed 1 dead letters")
    assert [each["body"] for each in letters_of(invoke, dead, "--channel", "look", lookupd=lookupd)] == ["v1"]


def test_a_plain_channel_that_is_not_read_to_its_end_is_named(
    plain: DevCluster, invoke: Invoke, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is paused was said to have no more. Each nsqd hands out its part of what may be in flight."""
    lookupd = ",".join(plain.lookupd)
    dead = f"{name}.dead"
    plain.create_topic(name)
    plain.create_topic(dead)
    bury(plain, name, dead, [b"v1", b"k2"])
    assert invoke("channel", "create", dead, "look", lookupd=lookupd).exit_code == 0
    listing = ("dead-letters", "list", dead, "--channel", "look", "--json")
    dry = ("dead-letters", "replay", dead, "--error", "KeyError", "--channel", "look", "--dry-run")
    said = "warning: only {} messages of the channel were read, and more are there\n"
    monkeypatch.setattr("nsq_ha.cli.reading._IN_FLIGHT", 8)
    whole = invoke(*listing, lookupd=lookupd)
    assert (len(whole.stdout.splitlines()), "more are there" in whole.stderr) == (2, False)
    assert invoke(*dry, lookupd=lookupd).exit_code == 0
    monkeypatch.setattr("nsq_ha.cli.reading._IN_FLIGHT", 2)
    assert re.search(said.format("[12]"), invoke(*listing, lookupd=lookupd).stderr)
    assert invoke(*dry, lookupd=lookupd).exit_code == 1
    monkeypatch.setattr("nsq_ha.cli.reading.QUIET", 1.0)
    assert invoke("channel", "pause", dead, "look", lookupd=lookupd).exit_code == 0
    paused = invoke(*listing, lookupd=lookupd)
    assert (paused.stdout, paused.stderr) == ("", said.format(0))


def test_a_replay_that_ends_early_says_how_far_it_came(
    cluster: DevCluster, invoke: Invoke, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = cluster.create_topic(f"{name}.dead", sync_every=1)
    bury(cluster, topic, dead, [b"v1"])

    async def interrupted(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr("nsq_ha.cli.dead_letters.replay", interrupted)
    result = invoke("dead-letters", "replay", dead, "--all", "--yes")
    assert result.exit_code == 130
    assert "replayed 0 dead letters; one more was interrupted, and may be stored" in result.stderr
