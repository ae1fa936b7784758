"""The command line takes the options of clients from the environment and a TOML file; flags win."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nsq_ha import Consumer, Producer
from nsq_ha.cli.app import app
from nsq_ha.devcluster import DevCluster
from tests.support.certificates import CA_FILE
from tests.support.https import https_of


@pytest.fixture
def file(cluster: DevCluster, tmp_path: Path) -> Path:
    """A TOML file that names the cluster."""
    path = tmp_path / "nsq.toml"
    path.write_text(
        f'lookupd = ["{cluster.lookupd[0]}"]\n[producer]\npublish_timeout = 20\nwindow = 7\n'
        '[consumer]\nmax_in_flight = 11\nmax_attempts = 3\non_give_up = "republish"\n'
    )
    return path


@pytest.fixture
def call(file: Path) -> Callable[..., Result]:
    """Run a command with the file, and other variables."""

    def run(*arguments: str, stdin: str | None = None, **variables: str) -> Result:
        environment = {"NSQ_HA_LOOKUPD": None, "NSQ_HA_CONFIG": str(file), **variables}
        return CliRunner().invoke(app, arguments, input=stdin, env=environment, prog_name="nsq-ha")

    return run


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each client that a command creates."""
    configs: list[Any] = []

    class SpyProducer(Producer):
        def __init__(self, **options: Any) -> None:  # noqa: ANN401
            super().__init__(**options)
            configs.append(self.config)

    class SpyConsumer(Consumer):
        def __init__(self, topic: str, channel: str, **options: Any) -> None:  # noqa: ANN401
            super().__init__(topic, channel, **options)
            configs.append(self.config)

    monkeypatch.setattr("nsq_ha.Producer", SpyProducer)
    monkeypatch.setattr("nsq_ha.Consumer", SpyConsumer)
    return configs


def test_every_command_finds_the_cluster_in_the_file(call: Callable[..., Result], topic: str, name: str) -> None:
    for arguments in (
        ("topic", "list"),
        ("topic", "describe", topic),
        ("topic", "create", f"{name}_2"),
        ("topic", "delete", f"{name}_2", "--yes"),
        ("lookup", topic),
        ("pub", topic),
        ("tail", topic, "--idle", "0.1"),
    ):
        result = call(*arguments, stdin="")
        assert result.exit_code == 0, f"{arguments}: {result.output}"


def test_publishing_uses_the_options_of_producers(call: Callable[..., Result], made: list[Any], topic: str) -> None:
    assert call("pub", topic, stdin="x").exit_code == 0
    assert call("pub", topic, "--timeout", "5", "--trace", stdin="x", NSQ_HA_WINDOW="8").exit_code == 0
    assert [(one.publish_timeout, one.window, one.trace) for one in made] == [(20, 7, False), (5, 8, True)]


def test_printing_uses_the_options_of_consumers(call: Callable[..., Result], made: list[Any], topic: str) -> None:
    assert call("tail", topic, "--idle", "0.1", NSQ_HA_PARTITIONS="1").exit_code == 0
    assert call("tail", topic, "--idle", "0.1", "--max-in-flight", "5", "-p", "0").exit_code == 0
    assert [(one.max_in_flight, one.partitions, one.on_give_up) for one in made] == [(11, (1,), None), (5, (0,), None)]


@pytest.mark.parametrize("command", [("topic", "list"), ("lookup", "t"), ("pub", "t"), ("tail", "t")])
def test_wrong_variables_are_wrong_usage(call: Callable[..., Result], command: tuple[str, ...]) -> None:
    result = call(*command, NSQ_HA_WINDOU="5")
    assert (result.exit_code, "did you mean NSQ_HA_WINDOW?" in result.output) == (2, True)
    result = call(*command, NSQ_HA_CONFIG="/does/not/exist.toml")
    assert (result.exit_code, "NSQ_HA_CONFIG names the file" in result.output) == (2, True)


def test_an_option_of_the_client_that_is_wrong_fails(call: Callable[..., Result], topic: str) -> None:
    result = call("pub", topic, stdin="x", NSQ_HA_WINDOW="many")
    assert (result.exit_code, "NSQ_HA_WINDOW must be a whole number" in result.output) == (1, True)


async def test_an_nsqlookupd_behind_https(
    call: Callable[..., Result], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq_ha.cli.cluster.QUESTION_TIMEOUT", 30.0)
    printed: list[str] = []
    with await asyncio.to_thread(DevCluster(nsqds=1, nsqlookupds=1, plain=True).__enter__) as cluster:
        async with https_of(cluster.lookupd[0]) as url:
            take = ("tail", name, "--channel", "c", "--consume", "-n", "1")
            for arguments in (("topic", "create", name), ("pub", name), ("lookup", name), take):
                result = await asyncio.to_thread(
                    call,
                    *arguments,
                    stdin="x",
                    NSQ_HA_LOOKUPD=url,
                    NSQ_HA_LOOKUPD_TLS_CA_FILE=CA_FILE,
                    NSQ_HA_LOOKUP_TIMEOUT="30",
                )
                assert result.exit_code == 0, f"{arguments}: {result.output}"
                printed.append(result.output)
    assert '"body":"x"' in printed[-1]
