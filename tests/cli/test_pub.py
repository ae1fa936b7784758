import json
import os
import re
from collections import defaultdict

import pytest

from nsq_ha.cli.app import app
from nsq_ha.devcluster import AuthGrant, DevCluster
from tests.cli.conftest import Invoke


def bodies(invoke: Invoke, topic: str, count: int, *arguments: str) -> list[bytes]:
    result = invoke("tail", topic, "--from", "beginning", "-n", str(count), "--raw", *arguments)
    assert result.exit_code == 0
    return result.stdout_bytes.splitlines()


def test_each_line_is_a_message_and_the_last_one_is_whole(invoke: Invoke, topic: str) -> None:
    result = invoke("pub", topic, stdin=b"one\n\ntwo\r\n\xff\xfethree")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("published 3 of 3 lines in ")
    assert result.stderr.endswith("; 1 empty lines skipped\n")
    assert sorted(set(bodies(invoke, topic, 3))) == [b"one", b"two", b"\xff\xfethree"]


def test_no_input_is_no_failure(invoke: Invoke, topic: str) -> None:
    result = invoke("pub", topic, stdin=b"")
    assert result.exit_code == 0
    assert result.stderr.startswith("published 0 of 0 lines in ")


def test_keys_of_a_field_stay_in_order(invoke: Invoke, ordered: str) -> None:
    lines = [json.dumps({"user": f"u{number % 7}", "n": number}) for number in range(300)]
    result = invoke("pub", ordered, "--key-field", "user", "--trace", "--receipts", stdin="\n".join(lines))
    assert result.exit_code == 0
    receipts = {receipt["line"]: receipt for receipt in map(json.loads, result.stdout.splitlines())}
    assert sorted(receipts) == list(range(1, 301))
    assert all(receipt["internal_id"] and receipt["trace_id"] for receipt in receipts.values())
    assert all(receipt["raw_size"] > len(line) for line, receipt in zip(lines, receipts.values(), strict=True))
    places = defaultdict(list)
    for number in range(300):
        receipt = receipts[number + 1]
        places[number % 7].append((receipt["partition"], receipt["offset"]))
    assert all(place == sorted(place) and len({partition for partition, _ in place}) == 1 for place in places.values())


def test_lines_that_fail_are_named_and_the_others_published(invoke: Invoke, ordered: str) -> None:
    lines = [b'{"u":"a"}', b"no json", b"[1]", b'{"u":true}', b'{"x":1}', b"x" * (1024 * 1024 + 1), b'{"u":"b"}']
    result = invoke("pub", ordered, "--key-field", "u", stdin=b"\n".join(lines))
    assert result.exit_code == 1
    *failures, summary = result.stderr.splitlines()
    failures.sort()  # by line
    assert [failure.split(":")[:2] for failure in failures] == [[f"line {n}", " not stored"] for n in (2, 3, 4, 5, 6)]
    assert [failure.partition("not stored: ")[2] for failure in failures[1:4]] == [
        "not a JSON object, so it has no field 'u' (--key-field)",
        "field 'u' (--key-field) must be text or an integer, not True",
        "field 'u' (--key-field) is missing",
    ]
    assert summary.startswith("published 2 of 7 lines in ")
    assert summary.endswith("; 5 failed, 0 of them may be stored")


def test_json_lines_are_checked_and_published_as_they_stand(invoke: Invoke, topic: str) -> None:
    result = invoke("pub", topic, "--jsonl", stdin='{"b": 1,  "a": 2}\n{broken\n"text"')
    assert result.exit_code == 1
    assert result.stderr.startswith("line 2: not stored: not JSON")
    assert sorted(set(bodies(invoke, topic, 2))) == [b'"text"', b'{"b": 1,  "a": 2}']


def test_it_stops_at_once_however_many_may_be_under_way(invoke: Invoke, ordered: str) -> None:
    lines = '{"u":"a"}\nbad\n' + '{"u":"a"}\n' * 5000
    result = invoke("pub", ordered, "--key-field", "u", "--stop-on-error", stdin=lines)
    assert result.exit_code == 1
    assert "published 1 of 2 lines" in result.stderr


def test_it_does_not_wait_for_a_line_that_never_comes(
    cluster: DevCluster, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv("NSQ_HA_LOOKUPD", cluster.lookupd[0])
    with os.fdopen(reading) as stream, os.fdopen(writing, "wb", buffering=0) as never_closed:
        monkeypatch.setattr("sys.stdin", stream)
        never_closed.write(b"no json\n")
        with pytest.raises(SystemExit):
            app(["pub", topic, "--jsonl", "--stop-on-error"])
    assert "published 0 of 1 lines" in capsys.readouterr().err


def test_one_line_that_a_topic_does_not_take_stops_no_other(invoke: Invoke, ordered: str) -> None:
    lines = [json.dumps({"body": f"m{number}", "key": "k"}) for number in range(40)]
    lines[7] = json.dumps({"body": "no such partition", "partition": 9})
    lines[30] = json.dumps({"body": "headers", "key": "k", "headers": {"a": "b"}})
    result = invoke("pub", ordered, "--from-tail", stdin="\n".join(lines))
    assert result.exit_code == 1
    first, second, summary = result.stderr.splitlines()
    assert first.startswith("line 8: not stored: ")
    assert second.startswith("line 31: not stored: ")
    assert summary.startswith("published 38 of 40 lines")
    found = bodies(invoke, ordered, 38)
    assert found == [b"m%d" % number for number in range(40) if number not in (7, 30)]


def test_headers_and_tag_go_with_extended_topics(cluster: DevCluster, invoke: Invoke, name: str) -> None:
    cluster.create_topic(name, 1, 3, extended=True)
    result = invoke("pub", name, "--header", "region=eu", "--header", "note=a=b", "--tag", "blue", "--trace", stdin="x")
    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    message = json.loads(invoke("tail", name, "--from", "beginning", "-n", "1").stdout)
    assert (message["headers"], message["tag"], message["body"]) == ({"region": "eu", "note": "a=b"}, "blue", "x")
    assert message["trace_id"] > 0


@pytest.mark.few(every=2)
@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ((), "is ordered: give --key-field, --key or --partition"),
        (("--partition", "4"), "has partitions 0..3, not 4"),
        (("--key", "k", "--tag", "t"), "is not extended"),
        (("--key", "k", "--header", "a=b"), "is not extended"),
    ],
)
def test_what_every_line_would_be_refused_for_is_refused_at_once(
    invoke: Invoke, ordered: str, arguments: tuple[str, ...], result: str
) -> None:
    refused = invoke("pub", ordered, *arguments, stdin="a\nb\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert result in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_an_unknown_topic_is_never_created(invoke: Invoke, name: str) -> None:
    refused = invoke("pub", name, stdin="a")
    assert refused.exit_code == 1
    assert f"nsq-ha topic create {name}" in refused.stderr
    assert name not in invoke("topic", "list").stdout


def test_a_cluster_that_takes_no_writes_fails_each_line_in_time(invoke: Invoke, name: str) -> None:
    with DevCluster(time_scale=0.02) as broken:
        broken.create_topic(name, 1, 3)
        for node in broken.nsqds:
            broken.refuse_writes(node)
        result = invoke("pub", name, "--timeout", "4", stdin="a\nb\n", lookupd=broken.lookupd[0])
    assert result.exit_code == 1
    assert sorted(line.split(":")[0] for line in result.stderr.splitlines() if line.startswith("line")) == [
        "line 1",
        "line 2",
    ]
    failures = [line for line in result.stderr.splitlines() if line.startswith("line")]
    assert all(line.count("stored") == 1 for line in failures)
    assert "published 0 of 2 lines" in result.stderr


def test_a_refused_secret_is_reported_once_and_ends_it(invoke: Invoke, name: str) -> None:
    with DevCluster(nsqds=1, nsqlookupds=1, time_scale=0.02, auth={"sesame": AuthGrant()}) as guarded:
        guarded.create_topic(name, 1, 1)
        refused = invoke("pub", name, stdin="a\n" * 2000, lookupd=guarded.lookupd[0])
    assert (refused.exit_code, refused.stdout) == (1, "")
    line, summary = refused.stderr.splitlines()
    assert re.match(r"line \d+: publish to \S+ not sent: .* requires AUTH: give --auth-secret-file$", line)
    assert summary.startswith("published 0 of ")
