"""The metrics of all open clients as observable instruments.

The invariant: instruments are made once for a provider, since the API cannot remove them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics as api
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from nsq_ha._version import __version__
from nsq_ha.base.clock import monotonic
from nsq_ha.base.forks import Mutex
from nsq_ha.process import metrics

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
