"""Which cluster a command uses, and with which security settings: flags, variables, a file."""

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from nsq_ha import TlsConfig
from nsq_ha.cli import options
from nsq_ha.cli.app import app
from nsq_ha.cli.cluster import ClusterAccess
from nsq_ha.devcluster import DevCluster
from tests.support.certificates import CA_FILE, KEY_FILE, server_context

FILE = """
lookupd = ["https://prod:1"]
auth_secret = "hidden"
[tls]
server_name = "nsq.example"
[producer]
window = 7
"""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NSQ_HA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A TOML file, which the environment names."""
    file = tmp_path / "nsq.toml"
    file.write_text(FILE)
    monkeypatch.setenv("NSQ_HA_CONFIG", str(file))
    return file


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("s3cret\nnot this line\n")
    return file


Call = Callable[..., Result]


@pytest.fixture
def call() -> Call:
    """Run a command with variables."""

    def run(*arguments: str, stdin: str | None = None, **variables: str) -> Result:
        return CliRunner().invoke(app, arguments, input=stdin, env=variables, prog_name="nsq-ha")

    return run


# ---------------------------------------------------------------- what a cluster is


def test_a_flag_wins_over_a_variable_and_this_over_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClusterAccess.of().lookupd == ("https://prod:1",)
    assert ClusterAccess.of().producer().config.window == 7
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "variable:1")
    monkeypatch.setenv("NSQ_HA_WINDOW", "8")
    assert ClusterAccess.of(("http://flag:1",)).lookupd == ("http://flag:1",)
    assert ClusterAccess.of().lookupd == ("http://variable:1",)
    assert ClusterAccess.of().producer().config.window == 8


def test_flags_complete_the_tls_of_a_file(file: Path, secret: Path) -> None:
    cluster = ClusterAccess.of((), tls_ca=CA_FILE, cert=CA_FILE, key_file=KEY_FILE, auth_secret_file=str(secret))
    config = cluster.consumer("orders", "billing", max_in_flight=3).config
    files = TlsConfig(ca_file=CA_FILE, cert_file=CA_FILE, key_file=KEY_FILE)
    assert config.lookupd_tls == files
    assert config.tls == TlsConfig(ca_file=CA_FILE, cert_file=CA_FILE, key_file=KEY_FILE, server_name="nsq.example")
    assert (config.max_in_flight, config.lookupd) == (3, ("https://prod:1",))
    assert callable(config.auth_secret)
    assert config.auth_secret() == "s3cret"
    secret.write_text("changed")
    assert config.auth_secret() == "changed"
    assert "s3cret" not in repr(cluster)


def test_tls_of_nsqds_is_not_that_of_plain_nsqlookupds() -> None:
    config = ClusterAccess.of(("http://a:1",), tls_ca=CA_FILE).producer().config
    assert (config.tls, config.lookupd_tls) == (TlsConfig(ca_file=CA_FILE), None)
    ClusterAccess.of(("http://a:1",), tls_ca=CA_FILE).admin()


def test_tls_of_other_nsqlookupds_is_not_that_of_given_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--lookupd` with an address of http was refused where the environment says how to trust those of https."""
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "https://prod:1")
    monkeypatch.setenv("NSQ_HA_LOOKUPD_TLS_CA_FILE", CA_FILE)
    assert ClusterAccess.of().producer().config.lookupd_tls == TlsConfig(ca_file=CA_FILE)
    assert ClusterAccess.of(("http://dev:1",)).producer().config.lookupd_tls is None
    ClusterAccess.of(("http://dev:1",)).admin()


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty: its first line must be the secret"),
        (b"\nsecond", "is empty: its first line must be the secret"),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_a_file_that_holds_no_secret(call: Call, tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    refused = call("topic", "list", "--auth-secret-file", str(file))
    assert refused.exit_code == 2
    assert f"the secret's file '{file}' {reason}" in refused.stderr


def test_files_of_tls_that_cannot_be_used(call: Call, secret: Path) -> None:
    refused = call("pub", "orders", "--tls-ca", str(secret))
    assert refused.exit_code == 2
    assert f"TLS: ca_file '{secret}' cannot be used" in refused.stderr
    assert "in PEM format" in refused.stderr
    refused = call("pub", "orders", "--tls-key", KEY_FILE)
    assert (refused.exit_code, "--tls-key needs --cert" in refused.stderr) == (2, True)


# ---------------------------------------------------------------- with a cluster


@pytest.fixture(scope="module")
def secured() -> Iterator[DevCluster]:
    """A plain cluster whose nsqds demand TLS and a client certificate."""
    context = server_context()
    context.load_verify_locations(CA_FILE)
    context.verify_mode = ssl.CERT_REQUIRED
    with DevCluster(plain=True, nsqlookupds=1, nsqds=1, tls=context, tls_required=True) as cluster:
        yield cluster


def test_a_secured_cluster_by_flags(call: Call, secured: DevCluster, name: str) -> None:
    flags = ("--lookupd", secured.lookupd[0], "--tls-ca", CA_FILE, "--cert", CA_FILE, "--tls-key", KEY_FILE)
    published = call("pub", name, *flags, stdin="x")
    assert (published.exit_code, published.stdout) == (0, "")
    tailed = call("tail", name, "--channel", "c", "--consume", "-n", "1", "--raw", *flags)
    assert (tailed.exit_code, tailed.stdout) == (0, "x\n")
    failed = call("pub", name, "--lookupd", secured.lookupd[0], "--timeout", "3", stdin="x")
    assert failed.exit_code == 1
    assert "TLS" in failed.stderr


# ---------------------------------------------------------------- the shared options


def test_destructive_commands_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answers = iter(["y", "n"])

    def answer(prompt: str = "") -> str:
        asked.append(prompt)
        return next(answers)

    options.confirm("Delete it?", yes=True)
    with pytest.raises(click.UsageError, match="give --yes"):
        options.confirm("Delete it?", yes=False)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    options.confirm("Delete it?", yes=False)
    with pytest.raises(click.Abort):
        options.confirm("Delete it?", yes=False)
    assert [text.startswith("Delete it? [y/N]") for text in asked] == [True, True]


def test_ctrl_c_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(click.exceptions.Exit) as caught:
        options.confirm("Delete it?", yes=False)
    assert caught.value.exit_code == 130


def test_deleting_a_topic_without_an_answer_deletes_nothing(call: Call, cluster: DevCluster, topic: str) -> None:
    flags = ("--lookupd", cluster.lookupd[0])
    refused = call("topic", "delete", topic, *flags)
    assert (refused.exit_code, "give --yes" in refused.stderr) == (2, True)
    assert call("topic", "describe", topic, *flags).exit_code == 0
