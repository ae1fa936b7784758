import contextlib
import json
import os
import signal
import time
from collections.abc import Callable

import click
import pytest

from nsq_ha import StartFrom, sync
from nsq_ha.admin.words import start_of
from nsq_ha.cli.start import parse_start
from nsq_ha.cli.tail import as_dict, tail
from nsq_ha.devcluster import DevCluster
from nsq_ha.message import Message
from tests.cli.conftest import Invoke
from tests.support.programs import COMMAND_LINE, NSQ_HA, Program
from tests.support.sources import Source


def tailing(cluster: DevCluster, *arguments: str) -> Program:
    # A loop that a busy machine holds up for seconds is warned about, unless heartbeats are rare.
    environment = os.environ | {"NSQ_HA_LOOKUPD": cluster.lookupd[0], "NSQ_HA_HEARTBEAT_INTERVAL": "60"}
    return Program(COMMAND_LINE, NSQ_HA, "tail", *arguments, env=environment)


def channels(invoke: Invoke, topic: str) -> dict[str, int]:
    depth: dict[str, int] = json.loads(invoke("topic", "describe", topic).stdout)["depth"]
    return depth


def test_all_that_was_printed_is_finished(invoke: Invoke, topic: str) -> None:
    invoke("channel", "create", topic, "billing")
    invoke("pub", topic, stdin="\n".join(f"m{number}" for number in range(50)))
    seen = [
        json.loads(line)["body"]
        for line in invoke("tail", topic, "--channel", "billing", "--consume", "-n", "20").stdout.splitlines()
    ]
    assert len(set(seen)) == 20
    rest = invoke("tail", topic, "--channel", "billing", "--consume", "-n", "30")
    assert "took 30 messages out of channel billing; 0 messages still wait there" in rest.stderr
    seen += [json.loads(line)["body"] for line in rest.stdout.splitlines()]
    assert sorted(seen) == sorted(f"m{number}" for number in range(50))
    assert channels(invoke, topic) == {"billing": 0}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--channel", "billing"), "--channel billing takes messages away from its consumers: add --consume"),
        (("--consume",), "--consume needs --channel"),
    ],
)
def test_a_look_takes_nothing_away(invoke: Invoke, topic: str, arguments: tuple[str, ...], reason: str) -> None:
    result = invoke("tail", topic, *arguments, "-n", "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert channels(invoke, topic) == {}


def test_its_own_channel_goes_with_it(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    result = invoke("tail", topic, "--idle", "0.2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert channels(invoke, topic) == {}


def test_each_message_is_a_json_line(invoke: Invoke, ordered: str) -> None:
    invoke("pub", ordered, "--key", "a", "--trace", stdin="grün\n".encode())
    message = json.loads(invoke("tail", ordered, "--from", "beginning", "-n", "1").stdout)
    assert message["body"] == "grün"
    assert (message["topic"], message["attempts"], message["headers"], message["tag"]) == (ordered, 1, {}, None)
    assert message["offset"] == 0
    assert message["trace_id"] > 0
    assert message["internal_id"] >> 50 == message["partition"]


def test_people_get_time_partition_and_a_harmless_body(invoke: Invoke, topic: str) -> None:
    invoke("pub", topic, "--partition", "1", stdin=b"\x1b[2Jboo\xff")
    result = invoke("tail", topic, "--from", "beginning", "--partition", "1", "-n", "1", "--table")
    assert result.stdout.endswith(" [1] \\x1b[2Jboo\\xff\n")


def test_compressed_bodies_are_decompressed_if_they_can_be(cluster: DevCluster, invoke: Invoke) -> None:
    """One that cannot be, which anybody may publish, stops nothing: not on an ordered topic, either."""
    cluster.create_topic("packed", 1, 1, ordered=True, extended=True, sync_every=1)
    cluster.create_topic("unpacked", 1, 1, sync_every=1)
    bodies = [b"same" * 10_000, b"other" * 100_000]
    with sync.Producer(lookupd=cluster.lookupd, compress_body="gzip") as producer:
        producer.publish("packed", bodies[0], partition=0)
        producer.publish("packed", b"bad", partition=0, headers={"nsq.client.compress": "1"})
        producer.publish("packed", bodies[1], partition=0)
    expected = [bodies[0], b"bad", bodies[1]]
    shown = invoke("tail", "packed", "--from", "beginning", "-n", "3", "--raw")
    assert shown.stdout_bytes.splitlines() == expected
    copied = invoke("copy", "packed", "unpacked", "--from", "beginning", "-n", "3", "--body-only", "--ignore-order")
    assert copied.exit_code == 0, copied.stderr
    shown = invoke("tail", "unpacked", "--from", "beginning", "-n", "3", "--raw")
    assert shown.stdout_bytes.splitlines() == expected


def test_from_a_time_only_what_is_newer_comes(invoke: Invoke, topic: str) -> None:
    invoke("pub", topic, "--partition", "0", stdin="old")
    result = invoke("tail", topic, "--partition", "0", "--from", "2001-01-01", "-n", "1", "--raw")
    assert result.stdout == "old\n"
    result = invoke("tail", topic, "--partition", "0", "--from", "end", "--idle", "0.3", "--raw")
    assert result.stdout == ""


def test_what_is_no_text_comes_as_base64() -> None:
    message = Message(bytes(15) + b"\x07", b"\xff\x00", 2, 5, Source(), 10, 40, b'{"a":1,"##client_dispatch_tag":"t"}')
    assert as_dict(message) == {
        "topic": "orders",
        "partition": 3,
        "offset": 10,
        "internal_id": 0,
        "trace_id": 7,
        "attempts": 2,
        "timestamp_ns": 5,
        "nsqd": "127.0.0.1:4150",
        "headers": {"a": 1},
        "tag": "t",
        "body_base64": "/wA=",
    }


def bury(cluster: DevCluster, topic: str, letters: str, body: bytes, handle: Callable[[Message], object]) -> None:
    """Publish a message that is given up at its first failure, and a message that is no dead letter."""
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
        ) as consumer,
    ):
        producer.publish(topic, body, partition=1, trace_id=7)
        message = next(consumer)
        with contextlib.suppress(ValueError), message:
            handle(message)
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        producer.publish(letters, b"no letter", partition=0)


@pytest.mark.parametrize("extended", [False, True])
def test_dead_letters_come_decoded(
    cluster: DevCluster, invoke: Invoke, topic: str, name: str, *, extended: bool
) -> None:
    letters = cluster.create_topic(f"{name}.dead", extended=extended, sync_every=1)
    read = ("tail", letters, "--from", "beginning", "-n", "2", "--dead-letters")
    bury(cluster, topic, letters, b"a\x00\xff", lambda _: int("\x1b"))
    result = invoke(*read, "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["topic"], first["body_base64"], first["headers"], first["tag"]) == (letters, "YQD/", {}, None)
    origin = first["dead_letter"]
    assert (origin["topic"], origin["partition"], origin["channel"]) == (topic, 1, "ledger")
    assert (origin["attempts"], origin["trace_id"], origin["reason"]) == (1, 7, "requeued")
    assert (origin["error_type"], origin["error"][:26]) == ("ValueError", "invalid literal for int() ")
    assert len(origin["id"]) == 32
    assert (second["body"], "dead_letter" in second) == ("no letter", False)
    assert "is no dead letter: " in result.stderr
    text = invoke(*read, "--table").stdout.splitlines()
    assert f"[{topic}-1/ledger attempts 1, ValueError: invalid literal for int() with base 10: " in text[0]
    assert text[0].endswith("] a\\x00\\xff")
    assert "\x1b" not in text[0]
    assert text[1].endswith("] no letter")
    assert invoke(*read, "--raw").stdout_bytes == b"a\x00\xff\nno letter\n"


def test_a_header_that_is_damaged_does_not_end_it() -> None:
    result = as_dict(Message(bytes(16), b"x", 1, 5, Source(), ext=b"[1]"))
    assert (result["headers"], result["tag"], result["body"]) == (None, None, "x")
    assert "not a JSON object" in result["header_error"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02T02:00", 86400 + 7200 - 3600 * 5),
        ("1970-01-02T02:00Z", 86400 + 7200),
        ("1970-01-02T02:00+02:00", 86400),
    ],
)
def test_a_time_is_local_unless_it_has_an_offset(monkeypatch: pytest.MonkeyPatch, text: str, seconds: int) -> None:
    monkeypatch.setenv("TZ", "EAST-5")
    time.tzset()
    try:
        start = parse_start(click.Context(tail), click.Argument(["start"]), text)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert start == StartFrom.timestamp(seconds)
    (option,) = (param for param in tail.params if param.name == "start")
    assert "local time, unless it ends in Z or an offset" in (getattr(option, "help", None) or "")


@pytest.mark.parametrize(
    ("text", "seconds"), [("-90s", 90), ("-1h", 3600), ("-1h30m", 5400), ("-2d", 172800), ("-1w", 604800), ("-0s", 0)]
)
def test_a_time_before_now_is_relative(text: str, seconds: int) -> None:
    assert start_of(text, 1_000_000.0) == StartFrom.timestamp(1_000_000 - seconds)


@pytest.mark.parametrize("words", [("beginning", "oldest"), ("end", "latest")])
def test_the_words_of_the_dashboard_are_understood(words: tuple[str, str]) -> None:
    first, second = (start_of(word, 1_000_000.0) for word in words)
    assert first == second
    assert first is not None


def test_a_signal_is_its_ordinary_end(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    invoke("pub", topic, "--partition", "0", stdin="a")
    with tailing(cluster, topic, "--from", "beginning", "--partition", "0", "--raw") as process:
        assert process.stdout.readline() == b"a\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")


def test_a_signal_before_its_own_end_interrupts_it(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    invoke("pub", topic, "--partition", "0", stdin="a")
    with tailing(cluster, topic, "--from", "beginning", "--partition", "0", "--raw", "--count", "600") as process:
        assert process.stdout.readline() == b"a\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")


def test_it_ends_quietly_when_its_reader_goes(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    """It used to be a failure, so that ``set -o pipefail`` ended scripts."""
    with tailing(cluster, topic, "--from", "beginning", "--partition", "0", "--json") as process:
        process.stdout.close()
        invoke("pub", topic, "--partition", "0", stdin="a\nb\nc\n")
        assert process.wait(120) == 0
        assert process.stderr.read() == b""


def test_it_tells_when_it_is_cut_off_and_when_it_reads_again(invoke: Invoke, name: str) -> None:
    with DevCluster(nsqlookupds=1, nsqds=1, time_scale=0.02) as lonely:
        lonely.create_topic(name, 1, 1)
        invoke("pub", name, stdin="a", lookupd=lonely.lookupd[0])
        with tailing(lonely, name, "--from", "beginning", "--raw") as process:
            assert process.stdout.readline() == b"a\n"
            lonely.kill("nsqd-0")
            result = iter(process.stderr.readline, b"")
            lost = next(line for line in result if b"cannot be read now" in line)
            lonely.start("nsqd-0")
            back = next(line for line in result if b"again" in line)
            invoke("pub", name, stdin="b", lookupd=lonely.lookupd[0])
            assert process.stdout.readline() == b"b\n"
    assert lost == f"warning: partitions of {name} cannot be read now; waiting\n".encode()
    assert back == f"warning: all partitions of {name} are read again\n".encode()


def test_what_is_not_wanted_is_not_taken(invoke: Invoke, name: str) -> None:
    """A whole window was taken and put back, with an attempt more for each."""
    with DevCluster(plain=True, nsqlookupds=1, nsqds=1) as plain:
        (lookupd,) = plain.lookupd
        assert invoke("pub", name, stdin="\n".join(map(str, range(20))), lookupd=lookupd).exit_code == 0
        assert invoke("channel", "create", name, "c", lookupd=lookupd).exit_code == 0
        taken = ("tail", name, "--channel", "c", "--consume")
        first = invoke(*taken, "-n", "2", "--json", lookupd=lookupd)
        rest = invoke(*taken, "-n", "18", "--json", lookupd=lookupd)
    attempts = [json.loads(line)["attempts"] for found in (first, rest) for line in found.stdout.splitlines()]
    assert attempts == [1] * 20
