"""What the producer's machine asks its owner to do."""

from __future__ import annotations

from typing import NamedTuple

from nsq_ha.errors import NsqError
from nsq_ha.policy.timing import Warned
from nsq_ha.producer.state import Lane, ProducerConn, ProducerTopic


class OpenConnection(NamedTuple):
    """Open a connection."""

    conn: ProducerConn


class CloseConnection(NamedTuple):
    """End a connection, or the attempt to open it."""

    conn: ProducerConn
    reason: NsqError


class CheckChannels(NamedTuple):
    """Make sure that a partition has the channels of the others, before a connection is used for it."""

    lane: Lane
    conn: ProducerConn


class LookUp(NamedTuple):
    """Look a topic up: soon, if what is known is old, often, or no longer often."""

    topic: ProducerTopic
    how: str


class ForgetTopic(NamedTuple):
    """Stop looking a topic up: nobody uses it."""

    topic: ProducerTopic


class KeysMove(NamedTuple):
    """Keys move to other partitions."""

    topic: ProducerTopic
    before: int
    after: int


class Report(NamedTuple):
    """Something to log, and to tell the application.

    Attributes:
        what: ``failed``, ``recovered``, ``connected``, ``disconnected``, ``refused``, ``moved`` or ``closing``.
        lane: The partition.
        error: Why.
        conn: The connection.
        outage: The facts, if there is a reason to warn.
    """

    what: str
    lane: Lane
    error: NsqError | None = None
    conn: ProducerConn | None = None
    outage: Warned | None = None


Action = OpenConnection | CloseConnection | CheckChannels | LookUp | ForgetTopic | KeysMove | Report
