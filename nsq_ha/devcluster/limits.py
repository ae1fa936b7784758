"""What the nsqds accept, as with the real ones' flags ``-max-...``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsq_ha.protocol.server.identify import HA_LIMITS
from nsq_ha.protocol.server.plain_identify import PLAIN_LIMITS

if TYPE_CHECKING:
    from nsq_ha.protocol.server.stream import Limits


def limits_of(
    *,
    plain: bool,
    max_msg_size: int | None,
    max_body_size: int | None,
    max_msg_timeout: float | None,
    max_req_timeout: float | None,
    max_heartbeat_interval: float | None,
    max_rdy_count: int | None,
) -> Limits:
    """Return the limits of the nsqds; None is the default of the real one's flag. Times are in seconds.

    Raises:
        ValueError: One is below 1.
    """
    given = {
        "max_message_bytes": max_msg_size,
        "max_body_bytes": max_body_size,
        "max_msg_timeout": _milliseconds(max_msg_timeout),
        "max_delay": _milliseconds(max_req_timeout),
        "max_heartbeat": _milliseconds(max_heartbeat_interval),
        "max_ready_count": max_rdy_count,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    if min(changed.values(), default=1) < 1:
        raise ValueError("a limit of the nsqds (max_...) must be above 0")
    return replace(PLAIN_LIMITS if plain else HA_LIMITS, **changed)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
