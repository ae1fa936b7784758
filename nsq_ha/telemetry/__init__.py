"""Spans and metrics for OpenTelemetry; needs the extra ``otel``.

:func:`enable` once, at the start of the program, is all: the producers and consumers of the process, also those of
``nsq_ha.sync``, then report to the providers that the program has set. Only the API of OpenTelemetry is imported; the
program chooses the SDK and where spans and metrics go.
"""

from __future__ import annotations

try:
    import opentelemetry.trace  # noqa: F401 - is it there?
except ImportError as _error:
    raise ImportError("nsq_ha.telemetry needs OpenTelemetry's API: install nsq_ha[otel]") from _error

from nsq_ha.telemetry.switch import disable, enable, process

__all__ = ["disable", "enable", "process"]
