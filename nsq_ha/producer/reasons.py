"""Why a publish failed: the errors that the machine gives for what did not happen in time."""

from __future__ import annotations

from nsq_ha.errors import (
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    PublishError,
    ResponseTimeoutError,
    TopicNotFoundError,
)
from nsq_ha.producer.state import ConnectionStep, Lane, ProducerTopic, PublishRequest


def wrapped(request: PublishRequest, error: Exception) -> PublishError:
    """Return the error of a publish that failed because of ``error``; it says what is known of the message."""
    lane = request.lane
    if lane is None:
        failed = PublishError(str(error), topic=request.topic, partition=None, attempts=0, maybe_stored=False)
    else:
        failed = PublishError(
            str(error),
            topic=request.topic,
            partition=lane.number,
            attempts=request.attempts,
            maybe_stored=request.maybe_stored,
            nsqd=lane.plain_receipts[0].nsqd if request.attempts and lane.plain_receipts else None,
            name=lane.name,
        )
    failed.__cause__ = error
    return failed


def late(request: PublishRequest, topic: ProducerTopic) -> NsqError:
    """Return why a publish has not ended in time."""
    lane = request.lane
    if lane is None:
        return topic_trouble(topic) or ResponseTimeoutError(
            "timed out waiting behind earlier publishes to the same topic: raise timeout=, "
            "or publish smaller batches if a large one is before it"
        )
    if lane.trouble is not None:
        return lane.trouble
    if request.conn is not None:
        return ResponseTimeoutError(f"{leader_name(lane)} did not answer in time")
    if lane.opening is not None and lane.opening.step is ConnectionStep.OPENING:
        return ResponseTimeoutError(f"connecting to {lane.opening.node.address} was not complete in time")
    if lane.conn is None:
        return ResponseTimeoutError(f"there was no connection to {leader_name(lane)} in time")
    return ResponseTimeoutError(f"the publish still waited behind earlier ones to {leader_name(lane)}")


def leader_name(lane: Lane) -> str:
    """Return how texts name the leader of a partition."""
    name = "nsqd" if lane.number_on_wire is None else "the leader"
    return name if lane.conn is None else f"{name} {lane.conn.node.address}"


def no_leader(lane: Lane) -> NoLeaderError:
    """Return the error of a partition that has no leader now."""
    view = lane.topic.view
    if view.is_plain and lane.number in view.last_known:
        address = view.last_known[lane.number].address
        return NoLeaderError(
            f"no nsqlookupd lists nsqd {address} for topic {lane.topic.name!r} now: it stopped, or has to register"
            " again"
        )
    return NoLeaderError(f"{lane.name} has no leader that accepts writes now{view.cause}")


def topic_trouble(topic: ProducerTopic) -> NsqError | None:
    """Return why no partition can be chosen. None if one can."""
    view = topic.view
    if topic.names_partitions:
        return None
    if view.is_answered and not view.exists:
        return unknown(topic)
    if topic.lookup_error is None and view.note:
        cure = ""
        if "no channel" in view.note.lower():
            cure = ": subscribe to it once, or start nsqlookupd with -allow-write-with-nochannels"
        return NoLeaderError(f"topic {topic.name!r} accepts no messages yet: nsqlookupd says {view.note!r}{cure}")
    said = "named no partition" if view.is_answered else "has not answered yet"
    return topic.lookup_error or LookupUnavailableError(
        f"no nsqlookupd named a partition of topic {topic.name!r} in time", tuple((url, said) for url in topic.lookupds)
    )


def unknown(topic: ProducerTopic) -> TopicNotFoundError:
    """Return the error of a topic that no nsqlookupd knows."""
    if topic.view.is_plain:
        return TopicNotFoundError(
            f"no nsqlookupd lists an nsqd for topic {topic.name!r} (asked {', '.join(topic.lookupds)}):"
            " start nsqd with the option -lookupd-tcp-address; one that already runs registers again within 30 s"
            " after nsqlookupd was restarted"
        )
    return TopicNotFoundError.named(topic.name)
