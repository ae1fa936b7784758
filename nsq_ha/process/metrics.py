"""The metrics of producers and consumers: their names, and how each is read from ``stats()``.

``nsq_ha.prometheus`` and ``nsq_ha.telemetry`` publish them. Names have dots, as OpenTelemetry's do; Prometheus' are
made from them by the same rule that OpenTelemetry's exporters follow, so one dashboard serves both.

The invariants: a metric's values are read when somebody asks, so that publishing and consuming do not pay for them; a
series belongs to one open client, so that the sum of a counter over clients never decreases by a client's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from nsq_ha.process.clients import Named, clients
from nsq_ha.stats import ConsumerStats, ProducerStats

Scope = Literal["client", "producer", "producer.partition", "consumer", "consumer.partition"]
"""What a metric has one series of."""

_MESSAGE: Final = "{message}"
_CALL: Final = "{call}"
_LOOKUP: Final = "{lookup}"
_SECONDS: Final = "s"
_BYTES: Final = "By"
_RATE: Final = "{message}/s"
_SUFFIXES: Final = {_SECONDS: "_seconds", _BYTES: "_bytes", _RATE: "_per_second"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        scope: What it has one series of.
        field: The last part of its name.
        kind: ``counter``: it only grows. ``gauge``: it may also fall.
        unit: Its unit, by the Unified Code for Units of Measure. Never 1, which would add ``_ratio`` to a name.
        text: What it says.
        read: Returns the value, from what ``scope`` names. None for no value now.
    """

    scope: Scope
    field: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    read: Callable[[Any], float | None]

    @property
    def name(self) -> str:
        """Its name for OpenTelemetry."""
        return f"nsq_ha.{self.scope}.{self.field}"

    @property
    def prometheus_name(self) -> str:
        """Its name for Prometheus."""
        name = self.name.replace(".", "_") + _SUFFIXES.get(self.unit, "")
        return f"{name}_total" if self.kind == "counter" else name


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        labels: What the series belongs to.
        value: The value.
    """

    labels: dict[str, str]
    value: float


def _count(scope: Scope, field: str, text: str, unit: str = _MESSAGE, source: str = "") -> Metric:
    """Return a counter; ``source`` is what to read, if not ``field``."""
    path = source or field
    return Metric(scope, field, "counter", unit, text, attrgetter(f"stats.{path}" if scope == "client" else path))


def _gauge(scope: Scope, field: str, text: str, unit: str = _MESSAGE, source: str = "") -> Metric:
    return Metric(scope, field, "gauge", unit, text, attrgetter(source or field))


def _published(scope: Scope) -> list[Metric]:
    return [
        _count(scope, "published", "Messages that nsqd acknowledged."),
        _count(scope, "failed", "Messages whose publish failed."),
        _count(scope, "uncertain", "Failed messages that may be stored nevertheless."),
        _count(scope, "timed_out", "Failed messages that reached their time limit."),
        _count(scope, "retries", "Publish commands taken back after a refusal or a lost connection.", "{command}"),
        _count(scope, "reconnects", "Connections after the first one of a partition.", "{connection}"),
        _gauge(scope, "queued", "Publish calls that are not written yet.", _CALL),
        _gauge(scope, "in_flight", "Publish commands that are written and not answered.", "{command}"),
    ]


def _consumed(scope: Scope) -> list[Metric]:
    return [
        _count(scope, "delivered", "Deliveries of messages."),
        _count(scope, "finished", "Messages whose FIN was sent."),
        _count(scope, "requeued", "Messages whose REQ was sent."),
        _count(scope, "timed_out", "Messages that nsqd took back, since they were not answered in time."),
        _count(scope, "returned", "Messages that were unanswered when their connection ended."),
        _count(scope, "skipped", "Messages that a filter of the client finished."),
        _count(scope, "finished_unhandled", "Copies of messages that were finished before, finished again unhandled."),
        _count(scope, "reconnects", "Subscriptions after the first one of a partition.", "{connection}"),
        _gauge(scope, "queued", "Messages that arrived and were not handed out."),
        _gauge(scope, "in_flight", "Messages that arrived and were not answered."),
        _gauge(scope, "ready", "Messages that the client asked for (RDY)."),
    ]


def _partition(scope: Scope) -> list[Metric]:
    flags: dict[tuple[str, str], Callable[[Any], float | None]] = {
        ("connected", "1 if there is a connection that can be used, else 0."): lambda each: each.state == "connected",
        ("has_trouble", "1 if the partition does not work now, else 0."): lambda each: each.trouble is not None,
        ("led_by", "1, with the address of the leader as a label."): lambda each: None if each.leader is None else 1,
    }
    return [
        *(Metric(scope, field, "gauge", "{partition}", text, read) for (field, text), read in flags.items()),
        _gauge(scope, "heartbeat_age", "Time since the last heartbeat.", _SECONDS),
    ]


METRICS: Final[Sequence[Metric]] = (
    _gauge("client", "healthy", "1 if the client is healthy, else 0.", "{client}", "is_healthy"),
    _count("client", "lookups", "Rounds of lookups at the nsqlookupds.", _LOOKUP),
    _count("client", "lookup_failures", "Rounds of lookups that no nsqlookupd answered.", _LOOKUP),
    _count("client", "lookup_time", "Time that all rounds of lookups took.", _SECONDS, "lookup_seconds"),
    _count("client", "leader_changes", "Changes of a partition's leader that lookups showed.", "{change}"),
    *_published("producer"),
    _gauge("producer", "pending", "Bodies that are not acknowledged.", _BYTES, "pending_bytes"),
    *_published("producer.partition"),
    *_partition("producer.partition"),
    *_consumed("consumer"),
    _count("consumer", "given_up", "Messages that were given up."),
    _gauge("consumer", "max_in_flight", "The limit of messages in flight."),
    _gauge("consumer", "max_rate", "The limit of messages a second, if there is one.", _RATE),
    _count("consumer", "limited_time", "Time that messages waited for the limit.", _SECONDS, "limited_seconds"),
    _count("consumer", "handled", "Calls of the handler that ended.", _CALL),
    _count("consumer", "handler_time", "Time that all calls of the handler took.", _SECONDS, "handler_seconds"),
    *_consumed("consumer.partition"),
    *_partition("consumer.partition"),
    _gauge("consumer.partition", "lag", "Time from the publish to the arrival of the last message.", _SECONDS),
)
"""All metrics."""


class _Reading(NamedTuple):
    is_healthy: bool
    stats: ProducerStats | ConsumerStats


def read(named: Iterable[Named] | None = None) -> Iterator[tuple[Metric, list[Sample]]]:
    """Read all metrics.

    Args:
        named: The clients. None for all open clients of the process.

    Yields:
        Each metric and its values; there may be none.
    """
    subjects: dict[str, list[tuple[dict[str, str], Any]]] = {metric.scope: [] for metric in METRICS}
    for each in clients.all() if named is None else named:
        _add(subjects, each)
    for metric in METRICS:
        samples = []
        for labels, subject in subjects[metric.scope]:
            value = metric.read(subject)
            if value is not None:
                more = {"leader": subject.leader} if metric.field == "led_by" else {}
                samples.append(Sample(labels | more, +value))  # a truth value becomes a number
        yield metric, samples


def _add(subjects: dict[str, list[tuple[dict[str, str], Any]]], named: Named) -> None:
    stats, labels = named.client.stats(), {"client": named.name}
    subjects["client"].append((labels, _Reading(named.client.health().is_healthy, stats)))
    if isinstance(stats, ConsumerStats):
        labels = {**labels, "topic": stats.topic, "channel": stats.channel}
    subjects[named.kind].append((labels, stats))
    for partition in stats.partitions:
        of_partition = {**labels, "topic": partition.topic, "partition": str(partition.partition)}
        subjects[f"{named.kind}.partition"].append((of_partition, partition))
