"""``nsq-ha browse`` on an embedded cluster: what it shows, and that it leaves no trace."""

import asyncio
import json
import os
import signal

import pytest
from click.testing import Result

from nsq_ha import sync
from nsq_ha.admin import browsing
from nsq_ha.admin.browsing import LogLook
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DiscoveryError, LookupUnavailableError
from tests.cli.conftest import Invoke
from tests.support.programs import COMMAND_LINE, NSQ_HA, Program


@pytest.fixture
def filled(cluster: DevCluster, name: str) -> str:
    """A topic with headers: ten messages in partition 1, whose publishers gave the key "a"."""
    topic = cluster.create_topic(name, 2, 3, sync_every=1, extended=True)
    with sync.Producer(lookupd=cluster.lookupd) as producer:
        for number in range(10):
            producer.publish(
                topic, f'{{"n":{number}}}'.encode(), key="a", trace_id=100 + number, headers={"half": str(number // 5)}
            )
    return topic


def bodies(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [json.loads(json.loads(line)["body"])["n"] for line in result.stdout.splitlines()]


def test_it_shows_stored_messages_and_touches_no_channel(cluster: DevCluster, invoke: Invoke, filled: str) -> None:
    assert bodies(invoke("browse", filled, "-n", "3")) == [7, 8, 9]
    assert bodies(invoke("browse", filled, "--from", "beginning", "-n", "3")) == [0, 1, 2]
    assert bodies(invoke("browse", filled, "--key", "a", "--header", "half=0")) == [0, 1, 2, 3, 4]
    assert bodies(invoke("browse", filled, "--trace-id", "104")) == [4]
    assert bodies(invoke("browse", filled, "--contains", '"n":6')) == [6]
    assert bodies(invoke("browse", filled, "--from", "-1h", "-n", "2")) == [0, 1]
    place = json.loads(invoke("browse", filled, "--trace-id", "104").stdout)
    in_part = ("browse", filled, "-p", str(place["partition"]))
    assert bodies(invoke(*in_part, "--from", "count:5", "-n", "2")) == [4, 5]
    assert bodies(invoke(*in_part, "--from", f"offset:{place['offset']}", "-n", "2")) == [4, 5]
    assert bodies(invoke(*in_part, "--from", "count:0", "-n", "1")) == [0]
    assert bodies(invoke(*in_part, "--from", "count:11")) == []
    text = invoke("browse", filled, "-n", "1", "--table", "--decode", "json").stdout
    assert text.endswith(' trace 109] {"half": "1"} {\n      "n": 9\n    }\n')
    own = invoke("browse", filled, "-n", "1", "--table", "--decode", "builtins:len").stdout
    assert own.endswith(" 7\n")
    failing = invoke("browse", filled, "-n", "1", "--table", "--decode", "json:JSONDecoder").stdout
    assert "[json:JSONDecoder failed: " in failing or "JSONDecoder object" in failing
    none = invoke("browse", filled, "--contains", "absent")
    assert (none.stdout, none.stderr) == ("", f"looked at 10 messages of {filled}, 0 of them match\n")
    assert json.loads(invoke("topic", "describe", filled).stdout)["depth"] == {}


def test_a_look_that_ends_early_says_how_to_go_on(invoke: Invoke, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with exit code 0 after 8 s, and nobody knew that there was more."""
    monkeypatch.setattr(browsing, "MAX_SCANNED", 4)
    only, place, found = ("browse", filled, "--contains", '"n":1'), "", None
    for _ in range(3):
        found = invoke(*only, *(("--from", place) if place else ()), "-n", "2")
        if found.stdout:
            break
        assert (found.exit_code, "go on with --from older:" in found.stderr) == (3, True)
        place = found.stderr.strip().rpartition(" ")[2]
    assert found is not None
    assert bodies(found) == [1]
    assert invoke("browse", filled, "--header", "=y").exit_code == 2


def test_new_messages_follow(cluster: DevCluster, filled: str) -> None:
    command = ("browse", filled, "-n", "1", "--follow", "--json")
    environment = os.environ | {"NSQ_HA_LOOKUPD": ",".join(cluster.lookupd)}
    with (
        Program(COMMAND_LINE, NSQ_HA, *command, env=environment) as process,
        sync.Producer(lookupd=cluster.lookupd) as producer,
    ):
        for number in (9, 10, 11):
            if number > 9:
                producer.publish(filled, f'{{"n":{number}}}'.encode(), key="a")
            assert json.loads(json.loads(process.stdout.readline())["body"])["n"] == number
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_what_cannot_be_read_is_not_said_to_be_absent(
    invoke: Invoke, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = f"{topic}-0 has no leader that answers, and is left out"

    async def browse(*_: object, **__: object) -> LogLook:
        return LogLook((), 0, {}, {}, (note,))

    monkeypatch.setattr(browsing, "browse", browse)
    result = invoke("browse", topic)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", f"warning: {note}\n")


def test_it_follows_through_an_outage_and_says_what_it_cannot_read(
    invoke: Invoke, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end without nsqlookupds, and to be silent about a partition that lost its leader."""
    nothing = LogLook((), 0, {}, {0: 1}, ())
    cut_off = nothing._replace(notes=(f"{topic}-0 cannot be read: refused",))
    slow = DiscoveryError("describing it did not finish")
    no_answer = LookupUnavailableError("no nsqlookupd answers", ())
    looks = iter((nothing, no_answer, slow, cut_off, cut_off, nothing, cut_off))

    async def browse(*_: object, **__: object) -> LogLook:
        look = next(looks, None)
        if look is None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        if not isinstance(look, LogLook):
            raise look or AssertionError
        return look

    monkeypatch.setattr(browsing, "browse", browse)
    monkeypatch.setattr("nsq_ha.cli.browse._AGAIN", 0.0)
    result = invoke("browse", topic, "--follow")
    assert (result.exit_code, result.stdout) == (0, "")
    cannot = f"warning: {topic}-0 cannot be read: refused"
    lost = "warning: no nsqlookupd answers"
    assert result.stderr.splitlines() == [
        f"{topic} has no messages there",
        lost,
        "warning: describing it did not finish",
        cannot,
        cannot,
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--from", "offset:5"), "is a place in one partition"),
        (("--from", "count:5"), "is a place in one partition"),
        (("--decode", "nothing"), "give one of text, json, hex, or MODULE:FUNCTION"),
        (("--decode", "no.such:thing"), "cannot be loaded"),
        (("--decode", "math:pi"), "is no function"),
    ],
)
def test_wrong_usage(invoke: Invoke, arguments: tuple[str, ...], reason: str) -> None:
    refused = invoke("browse", "orders", *arguments)
    assert (refused.exit_code, reason in refused.stderr) == (2, True), refused.stderr


def test_a_plain_cluster_is_refused(plain: DevCluster, invoke: Invoke, name: str) -> None:
    lookupd = plain.lookupd[0]
    invoke("pub", name, stdin="a", lookupd=lookupd)
    refused = invoke("browse", name, lookupd=lookupd)
    assert refused.exit_code == 1
    assert "whose nsqds show a message only to a consumer, which takes it away" in refused.stderr
