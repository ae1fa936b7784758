"""Switch spans and metrics on and off for the whole process; the metrics are observable instruments.

The invariant: instruments are made once for a provider, since the API cannot remove them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics as api
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import TracerProvider

from nsq_ha._version import __version__
from nsq_ha.base.clock import monotonic
from nsq_ha.base.forks import Mutex
from nsq_ha.engine import observe
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.process import metrics
from nsq_ha.telemetry.spans import Spans

if TYPE_CHECKING:
    from nsq_ha.process.metrics import Metric, Sample


_FRESH: Final = 0.1
"""Seconds for which one reading serves the callbacks of all instruments."""


class Instruments:
    """Creates the instruments.

    Args:
        provider: Gets the metrics. None for the global one.

    Attributes:
        is_on: Whether they report anything.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self.is_on: bool = False
        self._provider = api.get_meter_provider() if provider is None else provider
        self._lock = Mutex()
        self._read_at = float("-inf")
        self._samples: dict[Metric, list[Sample]] = {}
        meter = api.get_meter("nsq_ha", __version__, self._provider)
        for metric in metrics.METRICS:
            create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
            observe = functools.partial(self._observe, metric)
            create(metric.name, callbacks=[observe], unit=metric.unit, description=metric.text)

    def is_of(self, provider: MeterProvider | None) -> bool:
        """Return whether these instruments report to ``provider``; None is the global one."""
        return self._provider is (api.get_meter_provider() if provider is None else provider)

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        if not self.is_on:
            return []
        with self._lock:
            if monotonic() - self._read_at > _FRESH:
                self._samples = dict(metrics.read())
                self._read_at = monotonic()
            return [Observation(sample.value, sample.labels) for sample in self._samples[metric]]


_lock: Final = Mutex()
_instruments: Instruments | None = None


def enable(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    spans: bool = True,
    metrics: bool = True,
) -> None:
    """Report spans and metrics of all producers and consumers of the process, whenever they were created.

    Call it after the program has set its providers. A second call replaces the first one.

    Args:
        tracer_provider: Gets the spans. None for the global provider.
        meter_provider: Gets the metrics. None for the global provider.
        spans: Whether to report spans.
        metrics: Whether to report metrics.
    """
    global _instruments  # noqa: PLW0603 - the process has one switch
    with _lock:
        observe.trace_spans(Spans(tracer_provider) if spans else None)
        if _instruments is not None and (not metrics or not _instruments.is_of(meter_provider)):
            _instruments.is_on = False
        if metrics:
            if _instruments is None or not _instruments.is_of(meter_provider):
                _instruments = Instruments(meter_provider)
            _instruments.is_on = True


def disable() -> None:
    """Report nothing any more. Spans that have begun are still ended."""
    with _lock:
        observe.trace_spans(None)
        if _instruments is not None:
            _instruments.is_on = False


@contextlib.contextmanager
def process(messages: Message | Iterable[Message]) -> Iterator[None]:
    """Put the code of a ``with`` block into a span that processes ``messages``; do nothing if spans are not enabled.

    Handlers of :meth:`nsq_ha.Consumer.run` and of workers have such a span without this. Use it if you iterate::

        async for message in consumer:
            with telemetry.process(message):
                async with message:
                    ...

    The span of one message is a child of the span that published it, as far as its headers name that. The span of
    several, as of a batch, has links to those.

    Args:
        messages: A message, or several of one topic.

    Raises:
        ConfigError: There is no message.
    """
    several = (messages,) if isinstance(messages, Message) else tuple(messages)
    if not several:
        raise ConfigError("process() needs at least one message")
    with observe.processing(several):
        yield
