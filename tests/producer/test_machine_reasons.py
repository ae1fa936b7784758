"""Why a publish failed, in words."""

from nsq_ha.errors import (
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    TopicNotFoundError,
)
from nsq_ha.policy.topology import TopicMeta, TopicView, unanswered
from nsq_ha.producer.reasons import topic_trouble, wrapped
from nsq_ha.producer.state import ProducerTopic, PublishRequest
from tests.producer.driven import NODES, PLAIN, Driven

TOPIC = "orders"


def trouble(view: TopicView, cause: NsqError | None = None) -> NsqError | None:
    """Return why a topic cannot be used whose lookups found ``view``."""
    topic = ProducerTopic(TOPIC, 0.0, view, cause, ("http://a:1", "http://b:1"))
    topic.names_partitions = view.partition_num > 0
    return topic_trouble(topic)


def test_each_reason_why_a_topic_cannot_be_used_has_its_text() -> None:
    known = TopicView(TOPIC, TopicMeta(1), {0: NODES[0]}, complete=True, exists=True)
    assert trouble(known) is None
    absent = trouble(TopicView(TOPIC, None, {}, complete=False, exists=False))
    assert type(absent) is TopicNotFoundError
    assert str(absent) == str(TopicNotFoundError.named(TOPIC))
    down = LookupUnavailableError("down")
    assert trouble(unanswered(TOPIC), down) is down
    silent = trouble(unanswered(TOPIC))
    assert type(silent) is LookupUnavailableError
    assert str(silent) == (
        "no nsqlookupd named a partition of topic 'orders' in time (http://a:1: has not answered yet; http://b:1:"
        " has not answered yet)"
    )
    empty = TopicView(TOPIC, None, {}, complete=False, exists=True)
    assert "http://a:1: named no partition; http://b:1: named no partition" in str(trouble(empty))
    noted = TopicView(TOPIC, None, {}, complete=False, exists=True, note="Topic has no channel")
    waiting = trouble(noted)
    assert type(waiting) is NoLeaderError
    assert str(waiting) == (
        "topic 'orders' accepts no messages yet: nsqlookupd says 'Topic has no channel': subscribe to it once, or"
        " start nsqlookupd with -allow-write-with-nochannels"
    )
    other = trouble(TopicView(TOPIC, None, {}, complete=False, exists=True, note="busy"))
    assert str(other) == "topic 'orders' accepts no messages yet: nsqlookupd says 'busy'"
    assert trouble(noted, down) is down
    plain = TopicView(TOPIC, None, {}, complete=False, exists=False, is_plain=True)
    assert str(trouble(plain)) == (
        "no nsqlookupd lists an nsqd for topic 'orders' (asked http://a:1, http://b:1): start nsqd with the option"
        " -lookupd-tcp-address; one that already runs registers again within 30 s after nsqlookupd was restarted"
    )
    sent = wrapped(PublishRequest(topic=TOPIC, size=1, limit=1.0), down)
    assert (str(sent), sent.partition, sent.attempts, sent.maybe_stored) == (
        "publish to orders not sent: down",
        None,
        0,
        False,
    )


def test_a_publish_that_was_not_written_says_what_it_waited_for() -> None:
    driven = Driven(NODES[0])
    driven.opens = False
    connecting = driven.publish(limit=0.5)
    driven.wait(0.6)
    assert str(connecting.error).endswith("not sent: connecting to h:1 was not complete in time")
    driven.opens = True
    driven.open(driven.attempts[0])
    driven.view(None)
    first = driven.publish(keys=("k",), partition=0, limit=0.5)
    behind = driven.publish(keys=("k",), partition=0, limit=0.4)
    driven.wait(0.6)
    assert str(first.error).endswith("the leader h:1 did not answer in time")
    assert str(behind.error).endswith("not sent: the publish still waited behind earlier ones to the leader h:1")
    unchecked = Driven(NODES[0])
    unchecked.checks = False
    waiting = unchecked.publish(limit=0.5)
    unchecked.wait(0.6)
    assert str(waiting.error).endswith("not sent: there was no connection to the leader in time")


def test_an_nsqd_that_left_a_plain_cluster_is_named() -> None:
    driven = Driven(PLAIN[0])
    view = TopicView("t", TopicMeta(1, is_partitioned=False), {}, True, True, {0: PLAIN[0]}, is_plain=True)
    driven.machine.viewed(driven.topic, view, driven.now)
    request = driven.publish(limit=0.5)
    driven.wait(0.6)
    assert "no nsqlookupd lists nsqd h:1 for topic 't' now" in str(request.error)
