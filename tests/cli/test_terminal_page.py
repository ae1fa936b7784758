"""Each command in the tables of the page "Work at the terminal" works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from nsq_ha.devcluster import DevCluster

if TYPE_CHECKING:
    import pytest

    from tests.cli.conftest import Invoke

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "terminal.md"


def test_every_row_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [line.split(" | ")[-1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    commands = [command for cell in cells for command in re.findall(r"`(nsq-ha [^`]+)`", cell)]
    assert len(commands) > 15
    with DevCluster(nsqlookupds=2, nsqds=3, time_scale=0.02) as cluster:
        cluster.create_topic("orders", 2, sync_every=1)
        assert invoke("channel", "create", "orders", "billing", lookupd=cluster.lookupd[0]).exit_code == 0
        for command in commands:
            arguments = shlex.split(re.split(r" >> | < ", command)[0])[1:]
            if arguments[:2] == ["topic", "pause"]:
                continue  # only for plain clusters
            result = invoke(*arguments, stdin="a\nb\n", lookupd=cluster.lookupd[0])
            assert result.exit_code == 0, f"{command}: {result.output}"
