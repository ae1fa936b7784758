"""Floods: thousands of what is right by itself."""

from __future__ import annotations

from typing import Final

from integration.floods.case import CONSUMER, Case, Moment
from integration.floods.frames import HEARTBEAT
from tests.support.nsqd import error

CASES: Final = (
    Case(group="floods", name="10,000 heartbeats", data=HEARTBEAT * 10_000),
    Case(group="floods", name="100,000 heartbeats", data=HEARTBEAT * 100_000, is_long=True),
    Case(group="floods", name="10,000 refused FINs", data=error("E_FIN_FAILED FIN 0 failed") * 10_000),
    Case(group="floods", name="10,000 refusals", data=error("E_INVALID no") * 10_000),
    Case(
        group="floods",
        name="100,000 refused FINs",
        data=error("E_FIN_FAILED FIN 0 failed") * 100_000,
        clients=CONSUMER,
        is_long=True,
    ),
    Case(
        group="floods",
        name="200,000 heartbeats to IDENTIFY",
        data=HEARTBEAT * 200_000,
        moment=Moment.HELLO,
        is_long=True,
    ),
)
