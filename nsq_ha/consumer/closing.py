"""How a consumer drains.

Messages that nobody will answer are returned to nsqd at once: those that were not handed out, and those of a task that
leaves or has ended. The close waits for messages that a running handler or task holds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.base.unexpected import log_traceback
from nsq_ha.message import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.consumer.subscription import Subscription

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


async def drain(shell: ConsumerShell, subscriptions: Mapping[int, Subscription]) -> None:
    """Stop asking for messages, return those that nobody will answer, and wait until the rest is answered.

    If cancelled, it stops waiting for answers.
    """
    machine = shell.machine
    await asyncio.gather(*(subscription.link.stop() for subscription in tuple(subscriptions.values())))
    machine.return_failed(monotonic())
    left, queued = machine.returned(), machine.in_state(State.QUEUED)
    waits = _may_answer(shell) and machine.unanswered > len(left) + len(queued)
    for message in (*left, *queued):
        machine.hand_back(message, monotonic(), waits=waits)
    while True:
        shell.drain()
        if not machine.unanswered or not _may_answer(shell):
            return
        shell.changed.clear()
        await shell.changed.wait()
        for message in machine.returned():
            machine.return_at_close(message, monotonic())
        machine.return_failed(monotonic())


def _may_answer(shell: ConsumerShell) -> bool:
    """Return whether a running handler or task may answer a message."""
    return shell.machine.is_run or shell.giving_up.is_giving_up or bool(shell.machine.handed_out())


async def supervisor_ended(supervisor: asyncio.Task[None] | None, name: str) -> None:
    """Wait for the end of a consumer's own task; log its error if it died."""
    if supervisor is None:
        return
    await asyncio.wait({supervisor})
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log_traceback(log, f"{name}: the consumer's own task died", error)
