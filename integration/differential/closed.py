"""Differences that were closed in the embedded cluster; each run tries them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from integration.differential.commands import Answer, Move, Operate, Publish, Stats, Subscribe

if TYPE_CHECKING:
    from integration.differential.commands import Command


class Closed(NamedTuple):
    """A difference that was closed.

    Attributes:
        what: What the real servers do, and the embedded ones did not.
        kind: Name of the kind of topic.
        commit: Closed it.
        commands: The shortest case that showed it.
    """

    what: str
    kind: str
    commit: str
    commands: tuple[Command, ...]


CLOSED: Final = (
    Closed(
        "a leader that did not give the last internal id leaves one out",
        kind="plain",
        commit="0f7b4377",
        commands=(Publish("PUB_TRACE"), Move(), Publish("PUB_TRACE")),
    ),
    Closed(
        "a new ordered channel is unknown to the next leader before its first FIN",
        kind="ordered",
        commit="b6330b75",
        commands=(
            Subscribe(0, "SUB_ORDERED", 0, 1),
            Publish("MPUB", 3),
            Move(),
            Subscribe(0, "SUB_ORDERED", 0, 1),
        ),
    ),
    Closed(
        "the next leader knows an ordered channel that an operator created",
        kind="ordered",
        commit="1887090f",
        commands=(Operate("/channel/create", 0), Move(), Stats()),
    ),
    Closed(
        "a message that waits for its delay counts as in flight, too",
        kind="plain",
        commit="844a3504",
        commands=(Subscribe(0, "SUB", 0, 1), Publish("PUB"), Answer("REQ", 0, "oldest", 900), Stats()),
    ),
)
