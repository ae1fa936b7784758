"""``nsq-ha doctor``: each check finds what it is for, and clusters of both kinds pass."""

import asyncio
import dataclasses
import json
import socket
import ssl
import time
import uuid
from pathlib import Path

import pytest

from nsq_ha import TlsConfig
from nsq_ha.admin import (
    AdminClient,
    ChannelStats,
    ClusterState,
    ClusterStats,
    LookupdState,
    NodeStats,
    PartitionDescription,
    TopicDescription,
)
from nsq_ha.admin.findings import TOLD, Facts, Finding, findings_of, is_loopback
from nsq_ha.admin.memory import Memory, Sighting
from nsq_ha.admin.reading import Reading
from nsq_ha.cli import doctor, seen
from nsq_ha.cli.cluster import ClusterAccess
from nsq_ha.cli.doctor import ahead, certificates, round_trip
from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from tests.cli.conftest import Invoke
from tests.cli.test_stat import channel, partition
from tests.support import web
from tests.support.certificates import CA_FILE
from tests.support.waiting import eventually

A, B = Node("10.0.0.1", 4150, 4151), Node("10.0.0.2", 4150, 4151)
LISTED = (A.address, B.address)
LOOKUPDS = (LookupdState("http://a:4161", True, "", LISTED), LookupdState("http://b:4161", False, "", LISTED))
STATE = ClusterState(is_plain=False, stable=True, lookupds=LOOKUPDS, loads=())
PLAIN = ClusterState(
    is_plain=True, stable=None, lookupds=tuple(dataclasses.replace(each, leads=False) for each in LOOKUPDS), loads=()
)
HELD = partition("orders", 0, channel("billing", 3))
META = TopicMeta(partition_num=1, replica=2)
ENTRY = PartitionDescription(0, A, True, ("10.0.0.1:1:4150:1", "10.0.0.2:1:4150:2"), HELD)


def described(entry: PartitionDescription = ENTRY, meta: TopicMeta = META, note: str = "") -> TopicDescription:
    view = TopicView("orders", meta, {0: entry.leader} if entry.leader else {}, complete=True, exists=True)
    return TopicDescription(view, (entry,), note)


def stats(*nodes: NodeStats) -> ClusterStats:
    return ClusterStats(nodes or (NodeStats(A, "1.0", "OK", 1, (HELD,)), NodeStats(B, "1.0", "OK", 1)))


FACTS = Facts(
    reading=Reading(0.0, stats=stats(), cluster=STATE, details={"orders": described()}), clocks={"http://a:4161": 0.5}
)


def with_changes(**changes: object) -> Facts:
    """The facts with other values; ``cluster``, ``stats`` and ``details`` are those of the reading."""
    of_reading = {name: changes.pop(name) for name in ("cluster", "stats", "details") if name in changes}
    reading = dataclasses.replace(FACTS.reading, **of_reading)  # type: ignore[arg-type]  # its fields
    return dataclasses.replace(FACTS, reading=reading, **changes)  # type: ignore[arg-type]  # its fields


def found(facts: Facts) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings_of(facts)}


def with_lookupds(*lookupds: LookupdState, stable: bool | None = True) -> ClusterState:
    return dataclasses.replace(STATE, lookupds=lookupds, stable=stable)


HAS_ONE, HAS_NONE = (dataclasses.replace(PLAIN.lookupds[n], nsqds=LISTED[:size]) for n, size in enumerate((1, 0)))
SILENT = dataclasses.replace(LOOKUPDS[1], error="refused")
LOCAL = Node("127.0.0.1", 4150, 4151)


def entry(meta: TopicMeta = META, note: str = "", **changes: object) -> dict[str, object]:
    """The topic's description, whose one partition has these other values."""
    return {"details": {"orders": described(dataclasses.replace(ENTRY, **changes), meta, note)}}  # type: ignore[arg-type]


def consumed(*channels: ChannelStats) -> dict[str, object]:
    """Statistics of a topic of which each partition has one of the channels."""
    held = tuple(partition("orders", number, each) for number, each in enumerate(channels))
    return {"stats": stats(NodeStats(A, partitions=held))}


ANSWER, STABLE, AGREE, REGISTER = ("nsqlookupds", "stability", "agreement of nsqlookupds", "registration of nsqds")
NSQDS, REACHED, WRITABLE, SETTINGS = ("nsqds", "connections to nsqds", "leaders", "settings of topics")
CONSUMED, CLOCKS = "channels", "clocks"
ONE_MISSES = dataclasses.replace(PLAIN, lookupds=(HAS_ONE, HAS_NONE))
PAUSED = channel("c", paused=True)


@pytest.mark.parametrize(
    ("check", "changes", "status", "text"),
    [
        (ANSWER, {"cluster": with_lookupds(LOOKUPDS[0], SILENT)}, "failed", TOLD),
        (ANSWER, {"cluster": with_lookupds(LOOKUPDS[0])}, "warning", "there is only one"),
        (STABLE, {"cluster": with_lookupds(LOOKUPDS[1])}, "failed", TOLD),
        (STABLE, {"cluster": with_lookupds(*LOOKUPDS, stable=None)}, "warning", "does not say"),
        (STABLE, {"cluster": with_lookupds(*LOOKUPDS, stable=False)}, "warning", TOLD),
        (AGREE, {"differing": {"orders": [0, 2]}}, "failed", "orders partition 0, 2"),
        (AGREE, {"differing": {"orders": []}}, "failed", "about orders"),
        (REGISTER, {"cluster": ONE_MISSES}, "warning", TOLD),
        (NSQDS, {"stats": ClusterStats(())}, "failed", "list no nsqd"),
        (NSQDS, {"stats": stats(NodeStats(A, error="hangs"))}, "failed", TOLD),
        (NSQDS, {"stats": stats(NodeStats(A, "1.0", "disk full", 1))}, "failed", TOLD),
        (NSQDS, {"stats": stats(NodeStats(A, "1.0"), NodeStats(B, "1.1"))}, "warning", "differ: 1.0, 1.1"),
        (REACHED, {"unreachable": {A.address: "refused"}}, "failed", "10.0.0.1:4150 (refused)"),
        (REACHED, {"stats": stats(NodeStats(LOCAL))}, "failed", "name 127.0.0.1"),
        (WRITABLE, entry(leader=None, writable=False), "failed", "cannot be written: orders-0"),
        (WRITABLE, entry(writable=False, note="no majority"), "failed", "cannot be written: orders-0 (no majority)"),
        (
            WRITABLE,
            entry(stats=dataclasses.replace(HELD, is_leader=False)),
            "failed",
            "does not know that it leads: orders-0 at 10.0.0.1:4150",
        ),
        (WRITABLE, entry(replicas=ENTRY.replicas[:1]), "warning", "orders-0 (1 of 2)"),
        (WRITABLE, entry(replicas=ENTRY.replicas[:1]) | {"stats": stats(NodeStats(A, error="hangs"))}, "warning", TOLD),
        (SETTINGS, entry(dataclasses.replace(META, ordered=True)), "failed", "orders-0 is not ordered"),
        (SETTINGS, entry(stats=dataclasses.replace(HELD, extended=True)), "failed", "orders-0 is extended"),
        (CONSUMED, consumed(channel("c", 1234, clients=0)), "failed", TOLD),
        (CONSUMED, consumed(PAUSED), "warning", TOLD),
        (CLOCKS, {"clocks": {"http://a:4161": -7.0}}, "warning", "http://a:4161 is 7 s behind"),
        (CLOCKS, {"clocks": {"http://a:4161": 7.0}}, "warning", "http://a:4161 is 7 s ahead"),
    ],
)
def test_what_is_wrong_has_a_remedy(check: str, changes: dict[str, object], status: str, text: str) -> None:
    finding = found(with_changes(**changes))[check]
    assert finding.status == status
    assert text in finding.text
    assert finding.remedy or text == TOLD


def test_nsqlookupds_whose_state_was_not_read_are_not_well() -> None:
    """It said "ok  nsqlookupds answer: all 0", or "ok  nsqlookupds agree: 0 topics" alone."""
    reason = "lookupd names nsqlookupds of 2 clusters"
    facts = dataclasses.replace(
        FACTS, reading=dataclasses.replace(FACTS.reading, cluster=None, errors={"cluster": reason})
    )
    for check in ("nsqlookupds", "stability"):
        assert (found(facts)[check].status, reason in found(facts)[check].text) == ("failed", True)
    facts = dataclasses.replace(FACTS, reading=dataclasses.replace(FACTS.reading, errors={"topics": "refused"}))
    assert found(facts)["nsqlookupds"].text == "their topics cannot be read: refused"
    assert found(facts)["stability"].status == "ok"


def test_a_dead_nsqd_that_the_nsqlookupds_forgot_is_missed(invoke: Invoke, name: str) -> None:
    """It used to say "ok  nsqds answer: all 2", with exit code 0."""
    with DevCluster(nsqlookupds=1, nsqds=3, time_scale=0.02) as lonely:
        lonely.create_topic(name, 1, 3)
        (lookupd,) = lonely.lookupd
        assert invoke("node", "list", lookupd=lookupd).exit_code == 0
        address = lonely.nsqds["nsqd-2"]
        lonely.kill("nsqd-2")
        port = address.rpartition(":")[2]
        asyncio.run(eventually(lambda: port not in web.get(f"{lookupd}/nodes").text))
        result = invoke("doctor", "--table", lookupd=lookupd)
        assert result.exit_code == 1
        assert result.stdout.startswith(f"FAILED  incident: nsqd {address} ")
        listed = invoke("node", "list", lookupd=lookupd)
        assert (listed.exit_code, listed.stderr.startswith(f"nsqd {address} ")) == (1, True)
        assert address in listed.stdout
        unknown = invoke("node", "forget", "n:1", lookupd=lookupd)
        assert (unknown.exit_code, "n:1 is not remembered; these are: " in unknown.stderr) == (1, True)
        assert invoke("node", "forget", address, lookupd=lookupd).stderr == f"forgot {address}\n"
        assert address not in invoke("node", "list", lookupd=lookupd).stdout


def test_nsqlookupds_that_restart_and_that_are_gone(invoke: Invoke, name: str) -> None:
    """Topics were "gone" after a restart, and without nsqlookupds nobody was asked."""
    with DevCluster(plain=True, nsqlookupds=1, nsqds=2) as lonely:
        (lookupd,) = lonely.lookupd
        assert invoke("pub", name, stdin="a", lookupd=lookupd).exit_code == 0
        assert invoke("node", "list", lookupd=lookupd).exit_code == 0
        lonely.kill("nsqlookupd-0")
        for arguments in (("doctor",), ("node", "list"), ("stat",), ("top", "-n", "1")):
            result = invoke(*arguments, lookupd=lookupd)
            assert (result.exit_code, "Traceback" in result.output) == (0 if arguments[0] == "top" else 1, False)
            assert "no nsqlookupd answers" in result.output
            assert name in result.output or arguments[0] not in ("stat", "top")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_as_good_as_none(content: bytes) -> None:
    seen.path().parent.mkdir(parents=True)
    seen.path().write_bytes(content)
    assert seen.recall(["http://l"]).memory == Memory()
    seen.keep(["http://l"], Memory({"n:1": Sighting(5.0, A, frozenset({("orders", 0)}))}), 5.0)
    assert seen.recall(["http://other", "http://l"]).memory.nsqds["n:1"].node == A


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    seen.keep(["http://l"], Memory(), 5.0)
    assert seen.recall(["http://l"]).memory == Memory()


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container; `nsq-ha stat` used to end in a traceback instead of its figures."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("nsq_ha.cli.seen.Path.home", home)
    seen.keep(["http://l"], Memory(), 5.0)
    assert seen.recall(["http://l"]).memory == Memory()


@pytest.mark.parametrize(
    ("at", "before", "after", "seconds"),
    [(100, 100.2, 100.3, 0.0), (100, 100.9, 101.1, 0.0), (105, 100.2, 100.3, 4.7), (90, 100.0, 100.3, -9.0)],
)
def test_the_clock_of_a_server(at: float, before: float, after: float, seconds: float) -> None:
    assert ahead(at, before, after) == pytest.approx(seconds)


def test_certificates() -> None:
    assert certificates(ClusterAccess.of(("http://a:1",)), time.time()).status == "skipped"
    cluster = ClusterAccess.of(("http://a:1",), tls_ca=CA_FILE)
    assert certificates(cluster, 0.0).status == "ok"
    late = certificates(cluster, 2.0**40)
    assert (late.status, CA_FILE in late.text) == ("failed", True)


LEAF = f"""{ssl.PEM_HEADER}
MIIBajCCARCgAwIBAgIUOSTrV6TT4J2pYEamRnuYcRqOoR8wCgYIKoZIzj0EAwIwDDEKMAgGA1UEAwwBYzAeFw0yNjExMjcwMTAx
MzhaFw0zNjExMjQwMTAxMzhaMAwxCjAIBgNVBAMMAWMwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASfhrrabWFA+p9BMSnk9KIu
5Xk4hPyBObYL3m8XvPqRcPpjYBEZrcv0douv67h+O4twMTwF1p+foiDvyYK7K/39o1AwTjAdBgNVHQ4EFgQUX2FBIY/xytiteH4g
6Y9bunOIkPQwHwYDVR0jBBgwFoAUX2FBIY/xytiteH4g6Y9bunOIkPQwDAYDVR0TAQH/BAIwADAKBggqhkjOPQQDAgNIADBFAiEA
/ZeeGEKPvkSJGC99fqSBQtKZtQNySHFuYu01zDdrfeACIEp2AA5QXpbdNEP/wpTPrK+KWtaeGMdJ6ZbE65LWcwET
{ssl.PEM_FOOTER}
"""
"""A certificate that is none of an authority, valid until 2036-11-24 01:01:38 UTC."""


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_a_certificate_of_no_authority_expires_too(tmp_path: Path, option: str) -> None:
    """`ssl` does not show it, so an expired one was "ok"."""
    file = tmp_path / "leaf.pem"
    file.write_text(LEAF)
    cluster = ClusterAccess(("http://a:1",), TlsConfig(**{option: str(file)}), None, {})  # type: ignore[arg-type]
    end = 2_111_101_298
    assert [certificates(cluster, now).status for now in (end - 15 * 86400, end - 1, end + 1)] == [
        "ok",
        "warning",
        "failed",
    ]
    assert f"{file} (2036-11-24 01:01:38 UTC)" in certificates(cluster, end + 1.0).text


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("a.b", False)],
)
def test_the_loopback_is_known(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


# ---------------------------------------------------------------- the command


def test_a_partitioned_cluster(invoke: Invoke, cluster: DevCluster, topic: str) -> None:
    result = invoke("doctor", "--topic", topic, "--timeout", "120", "--json", lookupd=cluster.lookupd[0])
    findings = {entry["check"]: entry for entry in map(json.loads, result.stdout.splitlines())}
    wrong = {check: entry for check, entry in findings.items() if entry["status"] == "failed"}
    assert (result.exit_code, wrong, result.stderr) == (0, {}, "")
    assert findings["round trip"]["status"] == "ok"
    assert f"{topic}: 2 of 2" in findings["round trip"]["text"]
    assert findings["clocks"]["status"] == "ok"
    assert len(findings) == 11


async def test_an_nsqd_that_is_stopped_cannot_be_reached(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel accepts connections: doctor said that there is one to each nsqd."""
    monkeypatch.setattr(doctor, "_LIMIT", 0.6)
    async with AdminClient(cluster.lookupd) as admin:
        alive = (await admin.nodes())[0].node
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        node = Node("127.0.0.1", stopped.getsockname()[1], 0)
        found = await doctor.unreachable(stats(NodeStats(alive), NodeStats(node)))
    assert found == {node.address: "no answer within 1 s"}


async def test_a_topic_whose_partitions_are_not_known_is_sent_no_message(cluster: DevCluster, topic: str) -> None:
    """While a topic grows, two nsqlookupds name different numbers: doctor ended in a traceback."""
    unknown = TopicDescription(TopicView(topic, None, {}, complete=False, exists=True), (), "")
    found = await round_trip(ClusterAccess.of(tuple(cluster.lookupd)), unknown, 60.0)
    assert (found.status, found.text) == (
        "warning",
        f"not tried: the nsqlookupds do not agree how many partitions {topic} has",
    )


def test_options_of_consumers_do_not_fail_the_round_trip(
    invoke: Invoke, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to fail with advice about TLS, where a file says what to do with messages that are given up."""
    file = tmp_path / "nsq.toml"
    given_up = 'max_attempts = 3\non_give_up = "dead_letter"\ndead_letter_topic = "dead"'
    file.write_text(f"[consumer]\n{given_up}\nsample_rate = 1\n")
    monkeypatch.setenv("NSQ_HA_CONFIG", str(file))
    result = invoke("doctor", "--topic", topic, "--timeout", "120", "--json")
    findings = {entry["check"]: entry for entry in map(json.loads, result.stdout.splitlines())}
    assert findings["round trip"]["status"] == "ok", result.stdout
    assert result.exit_code == 0


def test_a_plain_cluster(invoke: Invoke, plain: DevCluster) -> None:
    topic = f"cli_{uuid.uuid4().hex[:10]}"
    lookupd = ",".join(plain.lookupd)
    assert invoke("pub", topic, stdin="a", lookupd=lookupd).exit_code == 0
    arguments = ("doctor", "--topic", topic, "--timeout", "120", "--table")
    text = " ".join(invoke(*arguments, lookupd=lookupd).stdout.split())
    assert "! round trip: not tried: topic" in text
    assert "1 message waits there for the first one, and this would take them away -> name a topic that is for" in text
    assert invoke("channel", "create", topic, "first", lookupd=lookupd).exit_code == 0
    assert json.loads(invoke("stat", topic, "--json", lookupd=lookupd).stdout.splitlines()[0])["depth"] == 1
    result = invoke(*arguments, lookupd=lookupd)
    assert f"    ok  round trip: {topic}: 1 of 1" in result.stdout
    assert result.exit_code == 0  # one message that nobody reads is no incident yet


def test_two_clusters(invoke: Invoke, cluster: DevCluster, plain: DevCluster) -> None:
    result = invoke("doctor", "--table", lookupd=f"{cluster.lookupd[0]},{plain.lookupd[0]}")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "FAILED agreement of nsqlookupds: lookupd names nsqlookupds of 2 clusters" in text
    assert f"{cluster.lookupd[0]} and {plain.lookupd[0]}" in text


def test_nobody_answers(invoke: Invoke, nobody: str) -> None:
    result = invoke("doctor", "--table", lookupd=nobody)
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    text = " ".join(result.stdout.split())
    assert text.startswith("FAILED incident: no nsqlookupd answers; clients that start find nothing")
    assert "(no nsqlookupd gave a usable answer" in text
    assert "-> start the nsqlookupds, or check the addresses" in text
    assert text.endswith("1 failed, 0 warnings")


def test_a_name_that_does_not_resolve_is_what_is_to_be_checked(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    result = invoke("doctor", "--json", lookupd="http://lokup.example:4161")
    findings = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["remedy"] for each in findings] == [
        "check the name for typing errors (--lookupd, NSQ_HA_LOOKUPD), and this machine's DNS"
    ]
    assert "its name cannot be resolved (Name or service not known)" in findings[0]["text"]


def test_a_topic_that_does_not_exist(invoke: Invoke) -> None:
    result = invoke("doctor", "--topic", "no_such_topic")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: there is no topic 'no_such_topic': create it (nsq-ha topic create no_such_topic)\n"
