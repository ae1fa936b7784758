import contextlib
import json
import os
import re
import signal
import socket
from pathlib import Path

import click
import pytest

from nsq_ha.cli import dev
from nsq_ha.cli.dev import Wanted, WantedTopic
from nsq_ha.options.checks import DEFAULT_PORT
from tests.cli.conftest import Invoke
from tests.devcluster.wire import Wire, identify
from tests.support import web
from tests.support.certificates import CA_FILE, KEY_FILE
from tests.support.ports import fixed_ports
from tests.support.programs import COMMAND_LINE, NSQ_HA, Program


def running(*arguments: str, columns: str = "100") -> Program:
    return Program(COMMAND_LINE, NSQ_HA, "dev", *arguments, env=os.environ | {"COLUMNS": columns})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("orders", Wanted("orders", 1, ordered=False)),
        ("orders:4", Wanted("orders", 4, ordered=False)),
        ("orders:4:ordered", Wanted("orders", 4, ordered=True)),
        ("orders:4:extended:ordered", Wanted("orders", 4, ordered=True, extended=True)),
    ],
)
def test_topics_as_people_write_them(text: str, wanted: Wanted) -> None:
    assert WantedTopic().convert(text, None, None) == wanted


@pytest.mark.parametrize("text", ["", ":2", "a:", "a:0", "a:256", "a:2:", "a:2:other", "a:2:ordered:ordered", "a b:1"])
def test_other_topics_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        WantedTopic().convert(text, None, None)


def test_it_runs_until_a_signal_and_can_be_used(invoke: Invoke) -> None:
    arguments = ["--nsqds", "2", "--nsqlookupds", "1", "--json"]
    arguments += ["--topic", "orders:2:ordered", "--topic", "mails:2:extended"]
    with running(*arguments) as process:
        result = json.loads(process.stdout.readline())
        assert len(result["lookupd"]) == 1
        assert sorted(result["nsqds"]) == ["nsqd-0", "nsqd-1"]
        assert result["topics"] == ["orders", "mails"]
        [lookupd] = result["lookupd"]
        again = invoke("topic", "create", "orders", "--partitions", "2", "--ordered", lookupd=lookupd)
        assert (again.exit_code, again.stderr) == (0, "")  # the same topic, so no note either
        assert invoke("pub", "mails", "--header", "kind=bill", stdin="hello", lookupd=lookupd).exit_code == 0
        assert invoke("pub", "orders", "--key", "a", stdin="hello", lookupd=lookupd).exit_code == 0
        tailed = invoke("tail", "orders", "--from", "beginning", "-n", "1", "--raw", lookupd=lookupd)
        assert tailed.stdout == "hello\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, b"", b"")


def test_people_get_addresses_and_an_example_to_paste() -> None:
    with running("--table") as process:
        result = b""
        while b"Ctrl-C" not in result:
            line = process.stdout.readline()
            assert line
            result += line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert result.count(b"nsqd-") == 3
    assert result.count(b"nsqlookupd-") == 2
    assert b"export NSQ_HA_LOOKUPD=http://127.0.0.1:" in result
    assert b"nsq-ha pub" in result


def test_one_that_has_moved_says_so_beside_its_json() -> None:
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # then it is taken anyway
            taken.bind(("127.0.0.1", DEFAULT_PORT))
            taken.listen()
        with running("--nsqds", "1") as process:
            json.loads(process.stdout.readline())
            assert b"Port 4161 is in use, maybe by another cluster" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


@pytest.mark.parametrize("kind", ["--plain", "--topic=orders:2"])
def test_the_example_to_paste_shows_its_message(invoke: Invoke, kind: str) -> None:
    with running(kind, "--table") as process:
        said = b""
        while b"Ctrl-C" not in said:
            said += process.stdout.readline()
        lookupd, tail, pub = re.findall(r"NSQ_HA_LOOKUPD=(\S+)|nsq-ha tail (.+) &|nsq-ha (pub .+)", said.decode())
        published = invoke(*pub[2].split(), stdin="hello", lookupd=lookupd[0])
        assert published.exit_code == 0
        assert invoke("tail", *tail[1].split(), "-n", "1", "--raw", lookupd=lookupd[0]).stdout == "hello\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def test_a_port_can_be_fixed_and_a_taken_one_is_reported(invoke: Invoke) -> None:
    port = fixed_ports()
    arguments = ["--port", str(port), "--nsqds", "1"]
    with running(*arguments) as process:
        result = json.loads(process.stdout.readline())
        assert result["lookupd"][0] == f"http://127.0.0.1:{port}"
        refused = invoke("dev", *arguments)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: ")
    assert f"port {port} of 127.0.0.1: " in refused.stderr
    assert "in use: give --port or --nsqd-port another number, or leave it out to use a free port" in refused.stderr


@pytest.mark.slow
def test_a_plain_cluster_with_tls() -> None:
    lookupd, nsqd = fixed_ports(2), fixed_ports(2)
    arguments = ["--plain", "--port", str(lookupd + 1), "--nsqd-port", str(nsqd), "--topic", "orders"]
    tls = ["--tls-cert", CA_FILE, "--tls-key", KEY_FILE]
    with running(*arguments, *tls) as process:
        told = json.loads(process.stdout.readline())
        assert told["lookupd"] == [f"http://127.0.0.1:{lookupd + 1}"]
        node = {"tcp": f"127.0.0.1:{nsqd}", "http": f"http://127.0.0.1:{nsqd + 1}"}
        assert told["nsqds"] == {"nsqd-0": node}
        answer = web.get(f"{told['lookupd'][0]}/lookup?topic=orders").json()
        assert [peer["tcp_port"] for peer in answer["producers"]] == [nsqd]
        with Wire(f"127.0.0.1:{nsqd}", b"  V2" + identify(tls_v1=True)) as wire:
            wire.frame()
            wire.secure()
            assert wire.answer() == b"OK"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", lookupd), 5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_the_examples_choose_the_topics(invoke: Invoke) -> None:
    refused = invoke("dev", "--examples", "--topic", "orders")
    assert (refused.exit_code, "give --examples or --topic, not both" in refused.stderr) == (2, True)


def test_options_of_tls_need_a_certificate(invoke: Invoke, tmp_path: Path) -> None:
    refused = invoke("dev", "--plain", "--tls-key", KEY_FILE)
    assert (refused.exit_code, "--tls-key needs --tls-cert" in refused.stderr) == (2, True)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    refused = invoke("dev", "--plain", "--tls-cert", str(wrong))
    assert (refused.exit_code, "cannot be used" in refused.stderr) == (2, True)


def test_a_plain_topic_has_no_partitions(invoke: Invoke) -> None:
    refused = invoke("dev", "--plain", "--topic", "orders:2")
    assert refused.exit_code == 1
    assert "topic orders: a plain cluster has no partitions" in refused.stderr


@pytest.mark.parametrize("taken", [(), (4150,), (4151,), (4160,), (4161,)])
def test_the_standard_ports_are_used_when_they_are_free(
    monkeypatch: pytest.MonkeyPatch, taken: tuple[int, ...]
) -> None:
    monkeypatch.setattr(dev, "are_free", lambda ports: not set(ports) & set(taken))
    ports = dev.ports_of(None, None, plain=True)
    assert ports[0] == (() if set(taken) & {4160, 4161} else (4161,))
    assert ports[1] == (() if set(taken) & {4150, 4151} else (4150,))
    assert dev.ports_of(1, 2, plain=True) == ((1,), (2,))
    assert dev.ports_of(None, None, plain=False) == (() if 4161 in taken else (4161,), ())
