import json
import os
import signal
import sys

import pytest

from nsq_ha.cli.dev import Wanted, WantedTopic
from tests.cli.conftest import Invoke
from tests.support.processes import running

COMMAND = (sys.executable, "-m", "nsq_ha.cli", "dev")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("orders", Wanted("orders", 1, ordered=False)),
        ("orders:4", Wanted("orders", 4, ordered=False)),
        ("orders:4:ordered", Wanted("orders", 4, ordered=True)),
    ],
)
def test_topics_as_people_write_them(text: str, wanted: Wanted) -> None:
    assert WantedTopic().convert(text, None, None) == wanted


@pytest.mark.parametrize(
    "text", ["", ":2", "a:", "a:0", "a:256", "a:99999999999", "a:2:other", "a:2:ordered:x", "a b:1"]
)
def test_other_topics_are_refused(invoke: Invoke, text: str) -> None:
    assert invoke("dev", "--topic", text).exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_a_signal_and_can_be_used(invoke: Invoke, number: int) -> None:
    arguments = ["--nsqds", "2", "--nsqlookupds", "1", "--topic", "orders:2:ordered", "--json"]
    with running([*COMMAND, *arguments]) as process:
        assert process.stdout is not None
        result = json.loads(process.stdout.readline())
        assert len(result["lookupd"]) == 1
        assert sorted(result["nsqds"]) == ["nsqd-0", "nsqd-1"]
        assert result["topics"] == ["orders"]
        [lookupd] = result["lookupd"]
        assert invoke("pub", "orders", "--key", "a", stdin="hello", lookupd=lookupd).exit_code == 0
        tailed = invoke("tail", "orders", "--from", "beginning", "-n", "1", "--raw", lookupd=lookupd)
        assert tailed.stdout == "hello\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, b"", b"")


def test_people_get_addresses_and_an_example_to_paste() -> None:
    with running([*COMMAND, "--table"], env=os.environ | {"COLUMNS": "100"}) as process:
        assert process.stdout is not None
        result = b""
        while b"Ctrl-C" not in result:
            line = process.stdout.readline()
            assert line
            result += line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0
    assert result.count(b"nsqd-") == 3
    assert result.count(b"nsqlookupd-") == 2
    assert b"export NSQ_HA_LOOKUPD=http://127.0.0.1:" in result
    assert b"nsq-ha pub" in result


def test_a_port_can_be_fixed_and_a_taken_one_is_reported(invoke: Invoke, unused_tcp_port: int) -> None:
    arguments = ["--port", str(unused_tcp_port), "--nsqds", "1"]
    with running([*COMMAND, *arguments]) as process:
        assert process.stdout is not None
        result = json.loads(process.stdout.readline())
        assert result["lookupd"][0] == f"http://127.0.0.1:{unused_tcp_port}"
        refused = invoke("dev", *arguments)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: ")
    assert f"port {unused_tcp_port} of 127.0.0.1: " in refused.stderr
    assert "in use" in refused.stderr
