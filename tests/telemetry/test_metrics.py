"""What metrics say, in which format, and how they are served."""

import gc
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final, Literal

import pytest

from nsq_ha import Producer, prometheus
from nsq_ha.errors import ConfigError
from nsq_ha.process import metrics
from nsq_ha.process.clients import Clients, clients
from nsq_ha.stats import Health, ProducerPartition, ProducerStats
from tests.support.stage import TOPIC, Stage

LIMIT: Final = 60.0

SAMPLE: Final = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)+)\} (\S+)')
LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"')

Page = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parsed(page: str) -> Page:
    """Read a page as strictly as Prometheus does: help, type, then the metric's samples, each series once."""
    found: Page = {}
    assert page == "" or page.endswith("\n")
    lines = iter(page.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name = line.split()[2]
            _, _, named, kind = next(lines).split()
            assert (named, kind) == (name, "counter" if name.endswith("_total") else "gauge")
            assert name not in found
            found[name] = {}
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] == next(reversed(found))
        labels = tuple(LABEL.findall(match[2]))
        assert labels not in found[match[1]]
        found[match[1]][labels] = float(match[3])
    return found


def value(page: Page, name: str, **labels: str) -> float:
    [found] = [each for key, each in page[name].items() if labels.items() <= dict(key).items()]
    return found


class FakeClient:
    """A client of which only the name matters."""

    def __init__(self) -> None:
        self.calls = 0

    def stats(self) -> ProducerStats:
        raise NotImplementedError

    def health(self) -> Health:
        raise NotImplementedError

    def watched(self) -> None:
        self.calls += 1


async def all_metrics(stage: Stage) -> Page:
    """Publish and consume; return what the exporter prints then."""
    async with stage.consumer(max_in_flight=7, max_rate=2.5) as consumer, stage.producer() as producer:
        await producer.publish(TOPIC, b"x" * 10)
        await producer.publish_many(TOPIC, [b"x"] * 4)
        (await stage.nsqd.subscriber()).message(b"x")
        async with await anext(consumer):
            return parsed(prometheus.text())


async def test_every_metric_is_printed(stage: Stage) -> None:
    page = await all_metrics(stage)
    assert page.keys() == {metric.prometheus_name for metric in metrics.METRICS}
    assert value(page, "nsq_ha_producer_published_total", client="producer-1") == 5
    place = {"topic": TOPIC, "partition": "0"}
    assert value(page, "nsq_ha_producer_partition_published_total", client="producer-1", **place) == 5
    assert value(page, "nsq_ha_consumer_partition_in_flight", client="consumer-1", channel="ch", **place) == 1
    assert value(page, "nsq_ha_consumer_max_in_flight", topic=TOPIC, channel="ch") == 7
    assert value(page, "nsq_ha_consumer_max_rate_per_second", topic=TOPIC, channel="ch") == 2.5
    assert value(page, "nsq_ha_consumer_partition_led_by", leader=stage.nsqd.node.address, **place) == 1
    assert value(page, "nsq_ha_client_healthy", client="consumer-1") == 1
    assert value(page, "nsq_ha_client_lookups_total", client="producer-1") >= 1
    assert value(page, "nsq_ha_client_lookup_time_seconds_total", client="producer-1") > 0
    assert prometheus.text() == ""


def exported(metric: metrics.Metric) -> str:
    """Return its name after OpenTelemetry's "Prometheus and OpenMetrics Compatibility"."""
    unit = re.sub(r"\{[^}]*\}", "", metric.unit)
    suffix = {"": "", "s": "_seconds", "By": "_bytes", "1": "_ratio", "/s": "_per_second"}[unit]
    return metric.name.replace(".", "_") + suffix + ("_total" if metric.kind == "counter" else "")


def test_names_follow_the_rules_of_both_systems() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    for metric in metrics.METRICS:
        assert re.fullmatch(r"nsq_ha(\.[a-z][a-z_]*)+", metric.name)
        assert re.fullmatch(r"[A-Z1][^\n]+\.", metric.text)
        assert metric.prometheus_name == exported(metric)


def test_label_values_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = ProducerPartition(
        topic='a"b\\c\nd', partition=0, leader=None, state="idle", queued=0, in_flight=0, published=1, failed=0,
        uncertain=0, timed_out=0, retries=0, reconnects=0, heartbeat_age=None, trouble=None,
    )  # fmt: skip
    stats = ProducerStats(
        partitions=(partition,), queued=0, in_flight=0, pending_bytes=0, published=1, failed=0, uncertain=0,
        timed_out=0, retries=0, reconnects=0, lookups=0, lookup_failures=0, lookup_seconds=0.0, leader_changes=0,
    )  # fmt: skip

    class One(FakeClient):
        def stats(self) -> ProducerStats:
            return stats

        def health(self) -> Health:
            return Health(is_healthy=False, reason="no")

    one, known = One(), Clients()
    monkeypatch.setattr(metrics, "clients", known)
    known.opened("producer", one)
    page = parsed(prometheus.text())
    [labels] = page["nsq_ha_producer_partition_published_total"]
    assert dict(labels)["topic"] == r"a\"b\\c\nd"
    assert value(page, "nsq_ha_client_healthy") == 0
    assert "nsq_ha_producer_partition_led_by" not in page
    assert "nsq_ha_producer_partition_heartbeat_age_seconds" not in page


# ---------------------------------------------------------------- names of clients


def names(known: Clients) -> list[str]:
    return [each.name for each in known.all()]


def test_a_name_is_free_again_after_a_client_has_closed() -> None:
    known = Clients()
    first, second, third = FakeClient(), FakeClient(), FakeClient()
    known.opened("consumer", first)
    known.opened("consumer", second)
    known.opened("producer", third)
    assert names(known) == ["consumer-1", "consumer-2", "producer-1"]
    known.closed(first)
    known.closed(first)
    assert names(known) == ["consumer-2", "producer-1"]
    known.opened("consumer", first)
    assert names(known) == ["consumer-1", "consumer-2", "producer-1"]


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_client_that_is_never_closed_is_not_kept_alive(kind: Literal["producer", "consumer"]) -> None:
    known = Clients()
    client = FakeClient()
    known.opened(kind, client, on_watched=client.watched)
    del client
    gc.collect()
    assert names(known) == []
    known.watched()
    other = FakeClient()
    known.opened(kind, other, on_watched=other.watched)
    known.watched()
    assert (names(known), other.calls) == ([f"{kind}-1"], 1)


def test_a_forked_process_has_no_clients_at_first() -> None:
    known, client = Clients(), FakeClient()
    known.opened("producer", client)
    known.forget()
    assert names(known) == []
    known.opened("producer", client)
    assert names(known) == ["producer-1"]


async def test_only_open_clients_are_known(stage: Stage) -> None:
    producer, refused = stage.producer(), Producer(lookupd="http://127.0.0.1:1")
    assert names(clients) == []
    async with producer, refused:
        assert names(clients) == ["producer-1", "producer-2"]
    assert names(clients) == []


# ---------------------------------------------------------------- the page


@pytest.fixture
def server() -> Iterator[prometheus.MetricsServer]:
    with prometheus.serve(0) as server:
        yield server


def test_the_page_is_served_on_the_loopback(server: prometheus.MetricsServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(server.url, timeout=LIMIT) as answer:  # noqa: S310
        assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
        assert parsed(answer.read().decode()) == parsed(prometheus.text())
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(f"{server.url}x", timeout=LIMIT):  # noqa: S310
        pass
    with caught.value as error:
        assert (error.code, error.read()) == (404, b"the metrics are at /metrics\n")


def test_dns_is_not_asked_for_the_name_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is often a program's event loop that calls this, and DNS may take seconds."""
    monkeypatch.setattr(socket, "getfqdn", lambda _: pytest.fail("DNS was asked"))
    with prometheus.serve(0, "0.0.0.0") as server:  # noqa: S104 - what this is about
        assert server.url.startswith("http://0.0.0.0:")


def test_a_port_that_is_in_use_is_named(server: prometheus.MetricsServer) -> None:
    port = int(server.url.split(":")[2].partition("/")[0])
    with pytest.raises(ConfigError, match=rf"cannot be served at 127\.0\.0\.1:{port}: .*choose another port"):
        prometheus.serve(port)
    with pytest.raises(ConfigError, match="cannot be served"):
        prometheus.serve(70_000)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_closes_without_the_thread_that_serves() -> None:
    with prometheus.serve(0) as server:
        child = os.fork()
        if child == 0:  # pragma: no cover - in another process
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                server.close()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with urllib.request.urlopen(server.url, timeout=LIMIT) as answer:  # noqa: S310
            assert answer.status == 200


def test_the_loopback_of_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    with prometheus.serve(0, "::1") as server, urllib.request.urlopen(server.url, timeout=LIMIT) as answer:  # noqa: S310
        assert answer.status == 200
