"""What an operator may do from the dashboard: a table of actions, each with the words of its confirmation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nsq_ha.admin.words import counted, start_of
from nsq_ha.dashboard.figures import whole
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import check_channel, check_partition, check_topic

if TYPE_CHECKING:
    from nsq_ha.admin import AdminClient
    from nsq_ha.admin.reading import Reading

LIMIT: Final = 30.0
"""Seconds for one action."""

LONG: Final = 150.0
"""Seconds for one that elects."""

LONGEST: Final = 86400.0
"""Seconds for one that copies all that an nsqd has."""

Scope = Literal["topic", "channel", "partition", "message", "held", "nsqd", "cluster"]
"""What an action is for: a key of the needed parts of its target."""

_NEEDS: Final[Mapping[Scope, tuple[str, ...]]] = {
    "topic": ("topic",),
    "channel": ("topic", "channel"),
    "partition": ("topic", "partition"),
    "message": ("topic", "channel", "partition"),
    "held": ("topic", "nsqd"),
    "nsqd": ("nsqd",),
    "cluster": (),
}


class ActionTarget(NamedTuple):
    """What an action is for.

    Attributes:
        topic: The topic; empty if the action is for another thing, as for the next three.
        channel: The channel.
        partition: The partition; None for another thing.
        nsqd: ``host:port`` of the nsqd.
        given: What the form asks for besides, by the arguments of the method.
    """

    topic: str = ""
    channel: str = ""
    partition: int | None = None
    nsqd: str = ""
    given: Mapping[str, Any] = MappingProxyType({})

    @property
    def subject(self) -> str:
        """How events name it."""
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        if self.nsqd:
            return f"{place} at {self.nsqd}" if place else self.nsqd
        return (f"{place}/{self.channel}" if self.channel else place) or "the cluster"

    @property
    def name(self) -> str:
        """What is typed to confirm a loss."""
        return self.channel or self.topic

    @property
    def fields(self) -> dict[str, Any]:
        """Its parts by the arguments of the method, and the fields of forms."""
        parts = zip(self._fields, self[:4], strict=False)
        return {name: value for name, value in parts if value not in ("", None)} | dict(self.given)


class Field(NamedTuple):
    """What a form asks for.

    Attributes:
        name: The argument of the method that gets it.
        label: What it is.
        kind: How it is written: ``switch`` is on, off or as it is; ``replica`` is one of the partition's nsqds.
        hint: What stands in the empty field.
        is_needed: It must not be empty.
        is_plain: A plain cluster has it, too.
    """

    name: str
    label: str
    kind: Literal["number", "check", "switch", "text", "when", "replica"] = "number"
    hint: str = ""
    is_needed: bool = False
    is_plain: bool = False

    def read(self, fields: Mapping[str, str]) -> Any:  # noqa: ANN401 - as the argument of the method
        """Return what a form says; None if it says nothing.

        Raises:
            ConfigError: It cannot be used, or is missing.
        """
        text = fields.get(self.name, "").strip()[:300]
        if self.is_needed and not text:
            raise ConfigError(f"{self.label} is missing")
        if self.kind == "number":
            return whole(fields, self.name)
        if self.kind == "when":
            if (start := start_of(text or "oldest", time.time(), UTC)) is None:
                raise ConfigError(f"{self.label}: write {_WHEN}, not {text!r}")
            return start
        return (text == "1" if self.kind in ("check", "switch") else text) if text else None


_WHEN: Final = "oldest, latest, -15m, or a time in UTC such as 2026-01-31 09:00"
_CHANNEL: Final = (Field("channel", "Name of the channel", "text", is_needed=True, is_plain=True),)
_OF_TOPIC: Final = (
    Field("topic", "Name of the topic", "text", is_needed=True, is_plain=True),
    Field("first_channel", "First channel", "text", "gets messages from the first on", is_plain=True),
    Field("partitions", "Partitions", hint="1"),
    Field("replicas", "Replicas", hint="3, or the number of nsqds"),
    Field("retention_days", "Days that messages are kept", hint="as nsqd is set"),
    Field("sync_every", "Sync the disk after messages", hint="as nsqd is set"),
    Field("ordered", "Ordered: consumers read in order, and messages need a key", "check"),
    Field("extended", "Extended: messages may have headers and a tag", "check"),
    Field("disable_channel_auto_create", "Channels must be created before they are consumed", "check"),
)
_SETTINGS: Final = (
    *(each._replace(hint="as it is") for each in _OF_TOPIC[3:6]),
    Field("extended", "Extended: messages may have headers and a tag. It cannot be taken back", "check"),
    _OF_TOPIC[-1]._replace(kind="switch", label="Channels must be created first; yes deletes all that exist"),
)


class Action(NamedTuple):
    """A change; its name is that of a method of an admin client.

    Attributes:
        label: The text of its button.
        done: What was done, before its subject.
        effect: What it does, for its confirmation.
        only: It needs a server of this kind; empty for both.
        is_lossy: Messages are lost, so the name must be typed.
        asks: What its form asks for.
        limit: Seconds that it may take.
        scope: What it is for.
    """

    label: str
    done: str
    effect: str
    only: Literal["partitioned", "plain", ""] = ""
    is_lossy: bool = False
    asks: tuple[Field, ...] = ()
    limit: float = LIMIT
    scope: Scope = "channel"

    def loses(self, given: Mapping[str, Any]) -> bool:
        """Return whether messages are lost by what a form says."""
        return self.is_lossy or any(each.kind == "switch" and given.get(each.name) is True for each in self.asks)


_START: Final = (Field("start", "From", "when", "oldest, latest, -15m, or a time in UTC"),)
_NUMBER: Final = (Field("number", "Number of the message", is_needed=True),)
_TOTAL: Final = (Field("partitions", "New total number", is_needed=True),)
_TO: Final = (Field("to", "To", "replica"),)
_PARTITIONED_LOSS: Final = ("partitioned", True)

_KEYS_MOVE: Final = (
    "Keys move to other partitions: their order is not kept across the change, and there is no way back."
)
_COPIED: Final = "Other nsqds copy all that it holds, which may take hours and cannot be taken back. Then stop it."

_BY_SCOPE: Final[Mapping[Scope, Mapping[str, Action]]] = {
    "channel": {
        "pause-channel": Action("Pause", "paused", "Its consumers stay connected, and get nothing."),
        "unpause-channel": Action("Resume", "resumed", "Its consumers get messages again."),
        "skip-channel": Action("Skip", "began to skip", "Its messages are dropped, new ones too.", *_PARTITIONED_LOSS),
        "unskip-channel": Action(
            "Stop skipping", "stopped skipping", "New messages are delivered; the others stay dropped.", "partitioned"
        ),
        "empty-channel": Action("Empty", "emptied", "Its messages are dropped, deferred ones too.", is_lossy=True),
        "set-offset": Action(
            "Move",
            "moved",
            "Its consumers go on from there: some messages come again, or are left out.",
            "partitioned",
            asks=_START,
        ),
        "delete-channel": Action(
            "Delete channel", "deleted", "Stop its consumers first: they would create it again.", is_lossy=True
        ),
        "create-channel": Action("Create channel", "created", "It gets what is published from now on.", asks=_CHANNEL),
    },
    "message": {
        "finish-message": Action(
            "Finish",
            "finished a message of",
            "Nobody gets it again. A consumer must be running.",
            *_PARTITIONED_LOSS,
            _NUMBER,
        )
    },
    "topic": {
        "create-topic": Action("Create topic", "created", "Producers can use it at once.", asks=_OF_TOPIC, limit=LONG),
        "update-topic": Action(
            "Change settings",
            "changed the settings of",
            "Empty fields stay as they are.",
            "partitioned",
            asks=_SETTINGS,
            limit=LONG,
        ),
        "delete-topic": Action(
            "Delete topic", "deleted", "Stop its producers first: they may create it again.", is_lossy=True
        ),
        "expand": Action("Add partitions", "added partitions to", _KEYS_MOVE, "partitioned", asks=_TOTAL, limit=LONG),
        "pause-topic": Action("Pause topic", "paused", "The nsqds keep new messages back from its channels.", "plain"),
        "unpause-topic": Action("Resume topic", "resumed", "Its channels get messages again.", "plain"),
        "empty-topic": Action(
            "Empty topic", "emptied", "What is in no channel yet is dropped.", "plain", is_lossy=True
        ),
    },
    "partition": {
        "move-leader": Action(
            "Move leader", "moved the leader of", "Clients pause for a moment.", "partitioned", asks=_TO, limit=LONG
        )
    },
    "held": {
        "tombstone-node": Action(
            "Tombstone", "tombstoned", "Producers do not find the topic there; on a plain cluster, consumers."
        ),
        "restore-node": Action("Restore", "restored", "Those who look the topic up find it again.", "partitioned"),
    },
    "nsqd": {"remove-node": Action("Remove for good", "took everything from", _COPIED, "partitioned", limit=LONGEST)},
    "cluster": {
        "begin-upgrade": Action(
            "Begin upgrade", "began an upgrade of", "Until its end, no replicas are copied elsewhere.", "partitioned"
        ),
        "end-upgrade": Action("End upgrade", "ended the upgrade of", "Missing replicas are replaced.", "partitioned"),
    },
}
ACTIONS: Final[Mapping[str, Action]] = {
    name: action._replace(scope=scope) for scope, actions in _BY_SCOPE.items() for name, action in actions.items()
}


async def run(admin: AdminClient, name: str, target: ActionTarget) -> None:
    """Do an action."""
    arguments = target.fields
    channel = arguments.pop("first_channel", None)
    await getattr(admin, name.replace("-", "_"))(**arguments, timeout=ACTIONS[name].limit)
    if channel is not None:
        await admin.create_channel(target.topic, channel, timeout=LIMIT)


def target_of(action: Action, fields: Mapping[str, str], *, is_asked: bool = False) -> ActionTarget:
    """Return what a form names.

    Args:
        action: The action.
        fields: The fields of the form.
        is_asked: The form is still to come, which asks for the rest.

    Raises:
        ConfigError: A name is not legal, or something is missing.
    """
    asked = {each.name: each.read for each in action.asks}
    if is_asked:
        found: dict[str, Any] = {name: fields[name][:300] for name in asked if name in fields}
    else:
        found = {name: value for name, read in asked.items() if (value := read(fields)) is not None}
    checks: dict[str, Callable[[str], str]] = {"topic": check_topic, "channel": check_channel, "nsqd": str}
    for name in _NEEDS[action.scope]:
        if name == "partition":
            found[name] = check_partition(whole(fields, name))
        elif name not in asked or not is_asked:
            found[name] = checks[name](fields.get(name, "").strip()[:300])
    return ActionTarget(**{name: found.pop(name) for name in ActionTarget._fields if name in found}, given=found)


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
    if not is_led and action.scope not in ("channel", "message"):
        return "no nsqlookupd leads: until one does, topics and leaders cannot be changed"
    if name in ("move-leader", "expand") and reading.stable is False:
        return (
            "the cluster is unstable: it refuses this until all replicas are there, some minutes after a node returned"
        )
    return ""


def _refused_for_target(name: str, target: ActionTarget, reading: Reading) -> str:
    has, wanted = 1 + max(reading.partitions(target.topic), default=-1), target.given.get("partitions")
    if name == "expand" and isinstance(wanted, int) and wanted <= has:
        return f"it has {counted(has, 'partition')} already: give a larger number"
    scope, channel = ACTIONS[name].scope, reading.channels.get((target.topic, target.channel))
    if name == "unskip-channel" and channel is not None and not channel.skipped:
        return "the channel is not skipped"  # there, the server would drop all that waits
    nsqd = reading.nsqds.get(target.nsqd)
    if scope == "held" and nsqd and target.topic not in (nsqd.topics if reading.is_plain else nsqd.leads):
        return "it does not have the topic" if reading.is_plain else "it leads no partition of the topic"
    is_new = reading.is_plain and target.topic in reading.listed and target.topic not in reading.topics
    late = "no nsqd has the topic yet: it gets its channels with its first message"
    of_channel = channel is not None or name == "create-channel", late if is_new else "no nsqd reports this channel"
    of_nsqd = nsqd is not None, "the cluster lists no such nsqd"
    is_there, text = {
        "partition": ((target.topic, target.partition or 0) in reading.holders, "no nsqd reports this partition"),
        "topic": (name == "create-topic" or target.topic in reading.names, "there is no such topic"),
        "channel": of_channel,
        "message": of_channel,
        "held": of_nsqd,
        "nsqd": of_nsqd,
        "cluster": (True, ""),
    }[scope]
    return "" if is_there else text


def possible(reading: Reading, *names: str) -> list[str]:
    """Return the actions that the kind of cluster has."""
    kind = "plain" if reading.is_plain else "partitioned"
    return [name for name in names if ACTIONS[name].only in ("", kind)]
