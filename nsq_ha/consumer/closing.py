"""How a consumer drains.

Messages that nobody will answer are returned to nsqd at once: those that were not handed out, and those of a task that
leaves or has ended. The close waits for messages that a running handler or task holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.message import State

if TYPE_CHECKING:
    from nsq_ha.consumer.shell import ConsumerShell


async def drain(shell: ConsumerShell) -> None:
    """Stop asking for messages, return those that nobody will answer, and wait until the rest is answered.

    If cancelled, it stops waiting for answers.
    """
    machine = shell.machine
    while not machine.subscriptions.are_stopped:
        shell.changed.clear()
        await shell.changed.wait()
    waits = bool(machine.handed_out() or machine.in_state(State.GIVING_UP))
    machine.return_left(monotonic(), waits=waits)
    for message in machine.in_state(State.QUEUED):
        machine.hand_back(message, monotonic(), waits=waits)
    while True:
        shell.drain()
        if not machine.unanswered or not _may_answer(shell):
            return
        shell.changed.clear()
        await shell.changed.wait()
        machine.return_left(monotonic())


def _may_answer(shell: ConsumerShell) -> bool:
    """Return whether a running handler or task may answer a message."""
    machine = shell.machine
    return machine.is_run or bool(machine.in_state(State.GIVING_UP) or machine.handed_out())
