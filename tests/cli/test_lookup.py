import json
import os
import subprocess
import sys

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node
from tests.cli.conftest import Invoke

A, B = Node("127.0.0.1", 1, 2), Node("127.0.0.1", 3, 4)


def test_all_nsqlookupds_are_asked_though_one_is_named(cluster: DevCluster, invoke: Invoke, ordered: str) -> None:
    result = invoke("lookup", ordered)
    assert result.exit_code == 0
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert {answer["lookupd"] for answer in answers} == set(cluster.lookupd)
    assert [answer["leads"] for answer in answers] == [True, False]
    for answer in answers:
        assert (answer["agree"], answer["partition_num"], answer["ordered"]) == (True, 4, True)
        for partition, described in answer["partitions"].items():
            leader = cluster.leader(ordered, int(partition))
            assert leader is not None
            assert described == {"leader": cluster.nsqds[leader], "writable": True}


def test_an_unknown_topic_is_reported_for_each(invoke: Invoke, name: str) -> None:
    result = invoke("lookup", name, "--table")
    assert result.exit_code == 1
    assert result.stdout.count("does not know the topic") == 2
    what_to_do = f"Error: there is no topic '{name}': create it (nsq-ha topic create {name})\n"
    assert result.stderr == what_to_do
    result = invoke("lookup", name, "--json")
    assert (result.exit_code, result.stderr) == (1, what_to_do)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(answer["exists"], answer["agree"]) for answer in answers] == [(False, True)] * 2


def test_one_that_is_down_is_shown_and_the_others_answer(invoke: Invoke, name: str) -> None:
    with DevCluster(time_scale=0.02) as broken:
        broken.create_topic(name, 2, 3)
        broken.kill("nsqlookupd-1")
        result = invoke("lookup", name, "--table", "--lookupd", ",".join(broken.lookupd))
        assert result.exit_code == 1
        assert broken.lookupd[1].removeprefix("http://") + " does not answer: " in result.stdout.replace(" (leads)", "")
        assert broken.lookupd[0].removeprefix("http://") in result.stdout


def test_a_partition_that_takes_no_writes_is_shown(invoke: Invoke, name: str) -> None:
    with DevCluster(time_scale=0.02) as broken:
        broken.create_topic(name, 1, 2)
        follower = broken.followers(name)[0]
        broken.kill(follower)
        # The nsqlookupds learn of it a little later.
        result = (invoke("lookup", name, "--table", "--lookupd", broken.lookupd[0]).stdout for _ in range(100))
        assert any("(not writable)" in table for table in result)


@pytest.mark.few(1)
@pytest.mark.parametrize("command", [("lookup", "--json"), ("stat", "--table")])
def test_a_reader_that_ends_is_no_error(cluster: DevCluster, ordered: str, command: tuple[str, ...]) -> None:
    """The exit code is what a shell shows for a program that SIGPIPE ended; tables used to end with 1."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "nsq_ha.cli", *command, ordered, "--lookupd", cluster.lookupd[0]],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")
