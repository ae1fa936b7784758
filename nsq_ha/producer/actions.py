"""What the producer's machine asks its owner to do."""

from __future__ import annotations

from typing import NamedTuple

from nsq_ha.errors import NsqError
from nsq_ha.policy.timing import Warned
from nsq_ha.producer.state import Conn, Lane, Topic


class Open(NamedTuple):
    """Open a connection."""

    conn: Conn


class Close(NamedTuple):
    """End a connection, or the attempt to open it."""

    conn: Conn
    reason: NsqError


class Check(NamedTuple):
    """Make sure that a partition has the channels of the others, before a connection is used for it."""

    lane: Lane
    conn: Conn


class LookUp(NamedTuple):
    """Look a topic up: soon, if what is known is old, often, or no longer often."""

    topic: Topic
    how: str


class Forget(NamedTuple):
    """Stop looking a topic up: nobody uses it."""

    topic: Topic


class Repartitioned(NamedTuple):
    """Keys move to other partitions."""

    topic: Topic
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
    conn: Conn | None = None
    outage: Warned | None = None


Action = Open | Close | Check | LookUp | Forget | Repartitioned | Report
