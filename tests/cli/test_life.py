"""``nsq-ha trace ID``: where one message is, and what happened to it."""

import json
from pathlib import Path

from nsq_ha import StartFrom, sync, tracelog
from nsq_ha.devcluster import DevCluster
from tests.cli.conftest import Invoke


def test_one_message_is_followed(cluster: DevCluster, invoke: Invoke, topic: str, tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    with (
        tracelog.write_to(log, topic),
        sync.Producer(lookupd=cluster.lookupd) as producer,
        sync.Consumer(topic, "billing", lookupd=cluster.lookupd, start_from=StartFrom.beginning()) as consumer,
        sync.Consumer(topic, "idle", lookupd=cluster.lookupd, max_in_flight=0),
    ):
        receipt = producer.publish(topic, b"\x1bpaid", partition=1, trace_id=4711)
        producer.publish(topic, b"other", partition=1, trace_id=4712)
        with next(consumer):
            pass
        with next(consumer):
            pass
    log.write_text(log.read_text() + "no json 4711\n")
    ident = str(receipt.internal_id)
    life = json.loads(invoke("trace", ident, "--topic", topic, "--json").stdout)
    assert (life["topic"], life["partition"], life["trace_id"], life["stored"]) == (topic, 1, 4711, True)
    assert (life["offset"], life["number"], life["events"]) == (receipt.offset, 1, [])
    assert life["channels"] == {"billing": "passed", "idle": "not passed"}

    both = invoke("trace", "4711", "--trace-id", "--log", str(log), "--json")
    life = json.loads(both.stdout)
    assert life["internal_id"] == receipt.internal_id
    assert [event["event"] for event in life["events"]] == ["publish", "delivery", "finish"]
    assert life["stored"]
    text = invoke("trace", "message", hex(receipt.internal_id or 0), "--log", str(log), "--table").stdout
    assert "delivery" in text
    assert "\x1b" not in text
    assert "channel billing" in text

    scanned = json.loads(invoke("trace", "4712", "--trace-id", "--topic", topic, "--json").stdout)
    assert (scanned["body"], scanned["trace_id"]) == ("other", 4712)
    offline = json.loads(invoke("trace", "4711", "--trace-id", "--log", str(log), "--offline", "--json").stdout)
    assert (offline["stored"], len(offline["events"])) == (False, 3)


def test_damaged_lines_of_a_log_end_nothing(invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    lines = [{"time_ns": 5}, {"time_ns": 10**30}, {"time_ns": -1}, {"time_ns": 10**400}]
    log.write_text("".join(json.dumps({"event": "finish", "internal_id": 7} | line) + "\n" for line in lines))
    command = ("trace", "7", "--log", str(log))
    result = invoke(*command, "--json")
    assert result.exit_code == 0
    assert [event["time_ns"] for event in json.loads(result.stdout)["events"]] == [5]
    assert "finish" in invoke(*command, "--table").stdout


def test_a_log_is_shown_although_nobody_answers(invoke: Invoke, nobody: str, tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    log.write_text('{"event":"publish","time_ns":5,"topic":"orders","internal_id":7,"trace_id":1,"offset":0}\n')
    result = invoke("trace", "7", "--log", str(log), "--json", lookupd=nobody)
    assert result.exit_code == 0
    life = json.loads(result.stdout)
    assert [event["event"] for event in life["events"]] == ["publish"]
    assert life["note"].startswith("no nsqlookupd gave a usable answer")


def test_a_message_that_is_not_there_is_a_failure(invoke: Invoke, topic: str) -> None:
    missing = invoke("trace", "99", "--trace-id", "--topic", topic)
    assert missing.exit_code == 1
    assert missing.stderr.startswith(f"Error: no message of topic '{topic}' has the trace id 99")


def test_it_says_what_it_needs(invoke: Invoke) -> None:
    assert "give --topic, --log, or both" in invoke("trace", "7").stderr
    assert invoke("trace", "7", "--offline", "--topic", "t").exit_code == 2
    assert invoke("trace", "7x", "--topic", "t").exit_code == 2


def test_equal_ids_of_plain_nsqds_are_named_as_such(plain: DevCluster, invoke: Invoke, tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    entry = {"event": "delivery", "time_ns": 5, "topic": "orders", "internal_id": 7, "trace_id": 0}
    plain.create_topic("orders")
    for nsqds, is_named in ((("n:1", "n:1"), False), (("n:1", "n:2"), True)):
        log.write_text("".join(json.dumps(entry | {"nsqd": nsqd}) + "\n" for nsqd in nsqds))
        found = invoke("trace", "7", "--log", str(log), "--table", lookupd=",".join(plain.lookupd))
        assert found.exit_code == 0
        assert ("each nsqd's lines are a message of its own" in found.stdout) is is_named
