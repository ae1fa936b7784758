import json
from typing import Any

import pytest

from nsq_ha.admin import AdminClient, TopicDescription
from nsq_ha.policy.topology import TopicView
from tests.cli.conftest import Invoke


def test_a_topic_is_created_listed_described_and_deleted(invoke: Invoke, name: str) -> None:
    created = invoke("topic", "create", name, "--partitions", "4", "--ordered")
    assert created.exit_code == 0
    result = json.loads(created.stdout)
    assert (result["topic"], result["partitions"], sorted(result["leaders"])) == (name, 4, ["0", "1", "2", "3"])

    listed = [json.loads(line) for line in invoke("topic", "list").stdout.splitlines()]
    figures = {"partitions": 4, "messages": 0, "depth": 0, "bytes": 0}
    assert {"topic": name, "ordered": True, "extended": False, **figures} in listed

    described = json.loads(invoke("topic", "describe", name).stdout)
    assert (described["ordered"], described["extended"], described["replicas"]) == (True, False, 3)
    assert [entry["partition"] for entry in described["partitions"]] == [0, 1, 2, 3]
    assert all(entry["writable"] and entry["messages"] == 0 for entry in described["partitions"])

    deleted = invoke("topic", "delete", name, "--yes")
    assert (deleted.exit_code, deleted.stdout, deleted.stderr) == (0, "", f"deleted {name}\n")
    gone = invoke("topic", "describe", name)
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert gone.stderr == f"Error: there is no topic '{name}': create it (nsq-ha topic create {name})\n"


def unknown(topic: str) -> TopicDescription:
    """What a description says while a topic grows, and two nsqlookupds name different numbers of partitions."""
    return TopicDescription(TopicView(topic, None, {}, complete=False, exists=True), (), "")


@pytest.mark.parametrize(
    "command", [("topic", "describe"), ("channel", "list"), ("dead-letters", "list"), ("trace", "7", "--trace-id")]
)
def test_a_topic_whose_partitions_are_not_known_is_not_shown_as_empty(
    invoke: Invoke, topic: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def describe(_: AdminClient, topic: str, **__: Any) -> TopicDescription:  # noqa: ANN401
        return unknown(topic)

    monkeypatch.setattr(AdminClient, "describe", describe)
    result = invoke(*command, *(("--topic", topic) if command[0] == "trace" else (topic,)))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: the nsqlookupds do not agree how many partitions topic '{topic}' has: try again in some seconds\n"
    )


def test_options_of_a_topic_reach_the_cluster(invoke: Invoke, name: str) -> None:
    assert invoke("topic", "create", name, "-r", "2", "--extended", "--register-channels").exit_code == 0
    result = json.loads(invoke("topic", "describe", name).stdout)
    assert (result["replicas"], result["extended"], result["register_channels"]) == (2, True, True)


def test_a_description_shows_channels_and_depths(invoke: Invoke, topic: str) -> None:
    invoke("channel", "create", topic, "billing")
    assert invoke("pub", topic, stdin="a\nb\nc").exit_code == 0
    result = json.loads(invoke("topic", "describe", topic).stdout)
    assert result["depth"] == {"billing": 3}
    assert sum(entry["channels"]["billing"]["depth"] for entry in result["partitions"]) == 3

    table = invoke("topic", "describe", topic, "--table").stdout
    assert f"{topic}: 2 partitions, 3 replicas" in table
    assert "billing" in table
    assert "127.0.0.1:" in table


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--replicas", "5"), "this takes 5 nsqds, and the cluster has 3; ask for fewer --replicas"),
        (
            ("--partitions", "2", "--no-multi-part"),
            "this takes 6 nsqds, and the cluster has 3; ask for fewer --replicas, fewer --partitions, or --multi-part",
        ),
    ],
)
def test_too_few_nodes_are_reported_with_what_to_do(
    invoke: Invoke, name: str, arguments: tuple[str, ...], hint: str
) -> None:
    refused = invoke("topic", "create", name, *arguments)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.endswith(hint + "\n")
    assert len(refused.stderr.splitlines()) == 1
