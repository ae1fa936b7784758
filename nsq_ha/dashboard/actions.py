"""What an operator may do from the dashboard: a table of actions, each with the words of its confirmation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nsq_ha.admin.words import counted
from nsq_ha.dashboard.figures import whole
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_PARTITIONS, check_channel, check_partition, check_topic, shown

if TYPE_CHECKING:
    from nsq_ha.admin import AdminClient
    from nsq_ha.admin.reading import Reading

LIMIT: Final = 30.0
"""Seconds for one action."""

LONG: Final = 150.0
"""Seconds for one that copies or elects."""


Scope = Literal["topic", "channel", "partition", "nsqd"]
"""What an action is for; that of an nsqd concerns one topic there."""


class ActionTarget(NamedTuple):
    """What an action is for.

    Attributes:
        topic: The topic.
        channel: The channel; empty if the action is for another thing.
        partition: The partition. None if the action is for another thing.
        to: What the form asks for besides: the new leader (empty to let the cluster choose), or a number.
        nsqd: ``host:port`` of the nsqd; empty if the action is for another thing.
    """

    topic: str
    channel: str = ""
    partition: int | None = None
    to: str = ""
    nsqd: str = ""

    @property
    def subject(self) -> str:
        """How events name it."""
        if self.channel:
            return f"{self.topic}/{self.channel}"
        if self.partition is not None:
            return f"{self.topic}-{self.partition}"
        return f"{self.topic} at {self.nsqd}" if self.nsqd else self.topic

    @property
    def name(self) -> str:
        """What is typed to confirm a loss."""
        return self.channel or self.topic

    @property
    def arguments(self) -> tuple[str | int | None, ...]:
        """What the method of an admin client takes."""
        if self.partition is not None:
            return self.topic, self.partition, self.to or None
        return self.topic, *(each for each in (self.channel, self.nsqd, int(self.to or 0)) if each)


class Action(NamedTuple):
    """A change.

    Attributes:
        label: The text of its button.
        effect: What it does, for its confirmation.
        done: The text of its event.
        is_lossy: Messages are lost, so the name must be typed.
        scope: What it is for.
        only: It needs a server of this kind; empty for both.
        asks: What its form asks for: a field of the target, and its label.
    """

    label: str
    effect: str
    done: str
    is_lossy: bool = False
    scope: Scope = "channel"
    only: Literal["partitioned", "plain", ""] = ""
    asks: tuple[str, str] | None = None


ACTIONS: Final[Mapping[str, Action]] = {
    "pause": Action(
        "Pause",
        "Its consumers stay connected and get no messages until it is resumed. Those in flight can still be finished.",
        "an operator paused it",
    ),
    "unpause": Action(
        "Resume",
        "Its consumers get messages again.",
        "an operator resumed it",
    ),
    "skip": Action(
        "Skip",
        "All messages of the channel are dropped, those that wait and new ones, until skipping is stopped.",
        "an operator had it skip its messages",
        is_lossy=True,
        only="partitioned",
    ),
    "unskip": Action(
        "Stop skipping",
        "New messages are delivered again. Those that were skipped stay dropped.",
        "an operator had it stop skipping",
        only="partitioned",
    ),
    "empty": Action(
        "Empty",
        "All messages of the channel that are not finished are dropped, delayed ones, too. Other channels keep theirs.",
        "an operator emptied it",
        is_lossy=True,
    ),
    "move-leader": Action(
        "Move leader",
        "Another replica becomes the leader. Publishing and reading pause for a moment; no message is lost.",
        "an operator moved its leader",
        scope="partition",
        only="partitioned",
    ),
    "reset": Action(
        "Deliver all again",
        "Its consumers get all messages again that the topic still holds, from the oldest on.",
        "an operator moved it to the oldest message",
        only="partitioned",
    ),
    "delete-channel": Action(
        "Delete channel",
        "The channel and its messages are gone. Stop its consumers first: they would create it again.",
        "an operator deleted it",
        is_lossy=True,
    ),
    "create-channel": Action(
        "Create channel",
        "It gets all messages that are published from now on, and on a plain topic without channel those that wait.",
        "an operator created it",
        asks=("channel", "Name of the channel"),
    ),
    "delete-topic": Action(
        "Delete topic",
        "The topic, its channels and all messages are gone. Stop its producers first: they may create it again.",
        "an operator deleted the topic",
        is_lossy=True,
        scope="topic",
    ),
    "create-topic": Action(
        "Create topic",
        "Uses the default number of replicas. For other settings, run nsq-ha topic create.",
        "an operator created the topic",
        scope="topic",
        asks=("to", "Partitions (1 on a plain cluster)"),
    ),
    "expand": Action(
        "Add partitions",
        "Keys move to other partitions, so the order of a key is not kept across the change. There is no way back.",
        "an operator added partitions",
        scope="topic",
        only="partitioned",
        asks=("to", "New total number of partitions"),
    ),
    "pause-topic": Action(
        "Pause topic",
        "Its channels get no new messages until it is resumed; the nsqds keep them.",
        "an operator paused the topic",
        scope="topic",
        only="plain",
    ),
    "unpause-topic": Action(
        "Resume topic",
        "Its channels get messages again.",
        "an operator resumed the topic",
        scope="topic",
        only="plain",
    ),
    "empty-topic": Action(
        "Empty topic",
        "The messages that are in no channel yet, since the topic is paused or has none, are dropped. Channels keep"
        " theirs.",
        "an operator emptied the topic",
        is_lossy=True,
        scope="topic",
        only="plain",
    ),
    "tombstone": Action(
        "Tombstone",
        "Those who look the topic up do not find this nsqd: producers on a partitioned cluster, until it is restored;"
        " new consumers on a plain one, for some time.",
        "an operator tombstoned the nsqd for the topic",
        scope="nsqd",
    ),
    "restore": Action(
        "Restore",
        "Those who look the topic up find this nsqd again.",
        "an operator restored the nsqd for the topic",
        scope="nsqd",
        only="partitioned",
    ),
}


async def run(admin: AdminClient, name: str, target: ActionTarget) -> None:
    """Do an action, which is named like the method of an admin client."""
    scope, timeout = ACTIONS[name].scope, LIMIT
    end = {"channel": "_channel", "nsqd": "_node"}.get(scope, "")
    if scope == "topic" and target.to:
        timeout = LONG
    await getattr(admin, name.replace("-", "_").removesuffix(end) + end)(*target.arguments, timeout=timeout)


def _number(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= number <= MAX_PARTITIONS:
        raise ConfigError(f"the number of partitions must be 1..{MAX_PARTITIONS}, not {shown(text)}")
    return number


def target_of(action: Action, fields: Mapping[str, str], *, is_asked: bool = False) -> ActionTarget:
    """Return what a form names.

    Args:
        action: The action.
        fields: The fields of the form.
        is_asked: The form is still to come, which asks for the rest.

    Raises:
        ConfigError: A name is not legal, or something is missing.
    """
    asked = action.asks[0] if action.asks is not None and is_asked else ""
    name = fields.get("topic", "")
    topic = check_topic(name) if name or not is_asked else ""
    to = fields.get("to", "").strip()[:300]
    if action.scope == "topic":
        is_number = action.asks is not None and not is_asked
        return ActionTarget(topic, to=str(_number(to or "1")) if is_number else "")
    if action.scope == "nsqd":
        return ActionTarget(topic, nsqd=fields.get("nsqd", "")[:300])
    if action.scope == "channel":
        return ActionTarget(topic, "" if asked == "channel" else check_channel(fields.get("channel", "")))
    return ActionTarget(topic, partition=check_partition(whole(fields, "partition")), to=to)


def refusal(name: str, target: ActionTarget, reading: Reading) -> str:
    """Return why an action cannot be done now; empty if it can."""
    return _refused_by_cluster(name, reading) or _refused_for_target(name, target, reading)


def _refused_by_cluster(name: str, reading: Reading) -> str:
    action = ACTIONS[name]
    if action.only and (action.only == "plain") is not reading.is_plain:
        return f"only a {action.only} nsqd can do this"
    if reading.unanswered:
        return "no nsqlookupd answers: without one, nothing can be changed"
    is_led = reading.is_plain or reading.cluster is None or reading.stable is not None
    if not is_led and action.scope != "channel":
        return "no nsqlookupd leads: until one does, topics and leaders cannot be changed"
    if name in ("move-leader", "expand") and reading.stable is False:
        return (
            "the cluster is unstable: it refuses this until all replicas are there, some minutes after a node returned"
        )
    return ""


def _refused_for_target(name: str, target: ActionTarget, reading: Reading) -> str:
    has = 1 + max(reading.partitions(target.topic), default=-1)
    if name == "expand" and target.to and int(target.to) <= has:
        return f"it has {counted(has, 'partition')} already: give a larger number"
    channel = reading.channels.get((target.topic, target.channel))
    if name == "unskip" and channel is not None and not channel.skipped:
        return "the channel is not skipped"  # there, the server would drop all that waits
    nsqd = reading.nsqds.get(target.nsqd)
    if nsqd is not None and target.topic not in (nsqd.topics if reading.is_plain else nsqd.leads):
        return "it does not have the topic" if reading.is_plain else "it leads no partition of the topic"
    is_new = reading.is_plain and target.topic in reading.listed and target.topic not in reading.topics
    late = "no nsqd has the topic yet: it gets its channels with its first message"
    is_there, text = {
        "partition": ((target.topic, target.partition or 0) in reading.holders, "no nsqd reports this partition"),
        "nsqd": (nsqd is not None, "the cluster lists no such nsqd"),
        "topic": (name == "create-topic" or target.topic in reading.names, "there is no such topic"),
        "channel": (
            channel is not None or name == "create-channel",
            late if is_new else "no nsqd reports this channel",
        ),
    }[ACTIONS[name].scope]
    return "" if is_there else text


def possible(reading: Reading, *names: str) -> list[str]:
    """Return the actions that the kind of cluster has."""
    kind = "plain" if reading.is_plain else "partitioned"
    return [name for name in names if ACTIONS[name].only in ("", kind)]
