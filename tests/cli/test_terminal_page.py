"""Each command in the tables of the page "Work at the terminal" works."""

import json
import re
import shlex
from pathlib import Path

import pytest

from nsq_ha.devcluster import DevCluster
from tests.cli.conftest import Invoke

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "terminal.md"
TABLES = PAGE.read_text("utf-8").partition("## Coming from the tools of NSQ")[2]


REFUSED = {False: (["topic", "pause"], ["topic", "resume"], ["topic", "empty"]), True: (["node", "restore"],)}
"""What only the other kind of cluster can do, by whether the cluster is a plain one."""


ENDLESS = ("tail",)
"""What runs until Ctrl-C."""


@pytest.mark.few(1)
@pytest.mark.parametrize("plain", [False, True])
def test_every_row_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, plain: bool) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [line.split(" | ")[-1] for line in TABLES.splitlines() if line.startswith("| ")]
    commands = [command for cell in cells for command in re.findall(r"`(nsq-ha [^`]+)`", cell)]
    assert len(commands) > 15
    with DevCluster(plain=plain, nsqlookupds=2, nsqds=3, time_scale=0.02) as cluster:
        lookupd = ",".join(cluster.lookupd)
        cluster.create_topic("orders") if plain else cluster.create_topic("orders", 2, sync_every=1)
        assert invoke("channel", "create", "orders", "billing", lookupd=lookupd).exit_code == 0
        nodes = [json.loads(line) for line in invoke("node", "list", lookupd=lookupd).stdout.splitlines()]
        nsqd = next(node["nsqd"] for node in nodes if "orders" in (node["topics"] if plain else node["leads"]))
        for command in commands:
            arguments = shlex.split(re.split(r" >> | < ", command)[0].replace("127.0.0.1:4150", nsqd))[1:]
            if arguments[0] in ENDLESS:
                arguments += ["--idle", "1"]
            result = invoke(*arguments, stdin="a\nb\n", lookupd=lookupd)
            code = 1 if arguments[:2] in REFUSED[plain] else 0
            assert result.exit_code == code, f"{command}: {result.output}"
