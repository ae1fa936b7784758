"""What is said of a blocked event loop, and how long it only waited for a CPU."""

import logging
import math
from pathlib import Path

import pytest

from nsq_ha.consumer.clock import Heartbeats, cpu_times


def test_a_system_that_does_not_count_the_time_without_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    monkeypatch.setattr("nsq_ha.consumer.clock._SCHEDSTAT", path)
    assert math.isnan(cpu_times()[1])
    for text in ("0 0 0\n", "odd"):
        path.write_text(text)
        assert math.isnan(cpu_times()[1])
    path.write_text("2000000000 1500000000 7\n")
    assert cpu_times()[1] == 1.5


async def test_a_machine_that_is_too_busy_is_not_taken_for_code_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heartbeats = Heartbeats("orders/ch", 2.0)
    heartbeats.blocked(8.0, "handle", 7.5)
    heartbeats.blocked(8.0, "handle", 0.5)
    heartbeats.blocked(12.0, "handle", 11.0)
    assert heartbeats.interval == 9.0
    assert caplog.messages == [
        (
            "orders/ch: the event loop had to wait 7.5 of 8.0 s for a CPU. No heartbeat is answered during that time,"
            " and nsqd closes a connection after 2 or 3 heartbeat intervals (2 s each). Give the process more CPU: the"
            " machine is too busy, or the container's limit too low. New connections ask for heartbeats every 6.0 s"
        ),
        (
            "orders/ch: the handler handle blocked the event loop for 8.0 s. No heartbeat is answered during that time,"
            " and nsqd closes a connection after 2 or 3 heartbeat intervals (2 s each). Make the handler a plain"
            " function (def), or run blocking code with asyncio.to_thread. New connections ask for heartbeats every"
            " 6.0 s"
        ),
        (
            "orders/ch: the event loop had to wait 11.0 of 12.0 s for a CPU: new connections ask for heartbeats every"
            " 9.0 s"
        ),
    ]


async def test_a_block_on_a_system_that_does_not_tell_names_both_causes(caplog: pytest.LogCaptureFixture) -> None:
    heartbeats = Heartbeats("orders/ch", 2.0)
    heartbeats.blocked(8.0, None, math.nan)
    assert "with asyncio.to_thread. If no code blocks it, the machine is too busy. New" in caplog.text
