"""What an operator may do from the dashboard: a table of actions, each with the words of its confirmation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.checks import check_channel, check_partition, check_topic
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from nsq_ha.admin import AdminClient
    from nsq_ha.admin.reading import Reading

LIMIT: Final = 20.0
"""Seconds for one action."""


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """What an action is for.

    Attributes:
        topic: The topic.
        channel: The channel; empty if the action is for a partition.
        partition: The partition.
        to: ``host:port`` of the new leader; empty to let the cluster choose.
    """

    topic: str
    channel: str = ""
    partition: int = 0
    to: str = ""

    @property
    def subject(self) -> str:
        """How events name it."""
        return f"{self.topic}/{self.channel}" if self.channel else f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Action:
    """A change.

    Attributes:
        label: The text of its button.
        effect: What it does, for its confirmation.
        done: The text of its event.
        run: Does it.
        is_lossy: Messages are lost, so the name must be typed.
        is_partition: It is for a partition; otherwise for a channel.
        is_forked: It needs the partitioned server.
    """

    label: str
    effect: str
    done: str
    run: Callable[[AdminClient, ActionTarget], Awaitable[object]]
    is_lossy: bool = False
    is_partition: bool = False
    is_forked: bool = False


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action(
        "Pause",
        "Its consumers stay connected and get no messages until it is resumed. Those in flight can still be finished.",
        "an operator paused it",
        lambda admin, to: admin.pause_channel(to.topic, to.channel, timeout=LIMIT),
    ),
    "unpause": Action(
        "Resume",
        "Its consumers get messages again.",
        "an operator resumed it",
        lambda admin, to: admin.unpause_channel(to.topic, to.channel, timeout=LIMIT),
    ),
    "skip": Action(
        "Skip",
        "All messages of the channel are dropped, those that wait and new ones, until skipping is stopped.",
        "an operator had it skip its messages",
        lambda admin, to: admin.skip_channel(to.topic, to.channel, timeout=LIMIT),
        is_lossy=True,
        is_forked=True,
    ),
    "unskip": Action(
        "Stop skipping",
        "New messages are delivered again. Those that were skipped stay dropped.",
        "an operator had it stop skipping",
        lambda admin, to: admin.unskip_channel(to.topic, to.channel, timeout=LIMIT),
        is_forked=True,
    ),
    "empty": Action(
        "Empty",
        "All messages of the channel that are not finished are dropped, delayed ones, too. Other channels keep theirs.",
        "an operator emptied it",
        lambda admin, to: admin.empty_channel(to.topic, to.channel, timeout=LIMIT),
        is_lossy=True,
    ),
    "move-leader": Action(
        "Move leader",
        "Another replica becomes the leader. Publishing and reading pause for a moment; no message is lost.",
        "an operator moved its leader",
        lambda admin, to: admin.move_leader(to.topic, to.partition, to.to or None, timeout=LIMIT),
        is_partition=True,
        is_forked=True,
    ),
}


def target_of(action: Action, fields: Mapping[str, str]) -> ActionTarget:
    """Return what a form names.

    Raises:
        ConfigError: A name is not legal, or the partition is missing.
    """
    topic = check_topic(fields.get("topic", ""))
    if not action.is_partition:
        return ActionTarget(topic, check_channel(fields.get("channel", "")))
    text = fields.get("partition", "")
    if not (text.isascii() and text.isdigit()) or len(text) > 4:
        raise ConfigError("partition must be a whole number")
    return ActionTarget(topic, partition=check_partition(int(text)), to=fields.get("to", "").strip()[:300])


def refusal(name: str, target: ActionTarget, reading: Reading) -> str:
    """Return why an action cannot be done now; empty if it can."""
    action = ACTIONS[name]
    if action.is_forked and reading.is_plain:
        return "a plain nsqd has no such state"
    if action.is_partition:
        return "" if (target.topic, target.partition) in reading.holders else "no nsqd reports this partition"
    channel = reading.channels.get((target.topic, target.channel))
    if channel is None:
        return "no nsqd reports this channel"
    # On a channel that is not skipped, the server would drop all that waits.
    return "the channel is not skipped" if name == "unskip" and not channel.skipped else ""
