"""The metrics of a cluster, for Prometheus: also what no client can tell, since all of them may be dead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.causes import expected, incidents
from nsq_ha.process.metrics import Sample

if TYPE_CHECKING:
    from nsq_ha.admin import ChannelStats
    from nsq_ha.admin.reading import FigureRow, Reading

PREFIX: Final = "nsq_ha_cluster_"

_OF_CHANNELS: Final[Mapping[str, tuple[str, Callable[[FigureRow, ChannelStats], float | None]]]] = {
    "channel_depth": ("Messages that wait.", lambda _, channel: channel.depth),
    "channel_in_flight": ("Messages that are delivered and not answered.", lambda _, channel: channel.in_flight),
    "channel_clients": ("Connections that consume.", lambda _, channel: channel.clients),
    "channel_lag_seconds": ("How long the oldest message waits; not on a plain cluster.", lambda row, _: row.lag),
    "channel_requeued_total": ("Requeues since the nsqds started.", lambda _, channel: channel.requeued),
    "channel_timed_out_total": ("Timeouts since the nsqds started.", lambda _, channel: channel.timed_out),
}


def metrics(reading: Reading) -> list[tuple[str, str, str, list[Sample]]]:
    """Return name, kind, text and values of each metric, by the newest look at a cluster."""
    found = [Sample({"trouble": e.trouble, "subject": e.subject, "level": e.level}, 1) for e in incidents(reading)]
    counts = zip(("nsqds_answering", "nsqds_expected"), expected(reading), strict=True)
    result = [(f"{PREFIX}incident", "gauge", "1 for each current problem.", found)]
    result += [(PREFIX + name, "gauge", "Number of nsqds.", [Sample({}, value)]) for name, value in counts]
    rows = [(row, row.channel) for row in reading.rows if row.channel is not None] if reading.is_fresh else []
    for name, (text, read) in _OF_CHANNELS.items():
        values = ((row, read(row, channel)) for row, channel in rows)
        samples = [Sample({"topic": r.topic, "channel": r.name}, value) for r, value in values if value is not None]
        result.append((PREFIX + name, "counter" if name.endswith("_total") else "gauge", text, samples))
    return result
