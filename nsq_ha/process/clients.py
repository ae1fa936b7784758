"""The open producers and consumers of the process, for whoever reads the statistics of all of them.

Owns their names: ``producer-1``, ``consumer-2``. A new client gets the lowest free number of its kind, so that a
process that opens clients again and again has few names.

The invariant: a client is in here from its start to its end, and nothing here keeps it alive.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar
from weakref import WeakMethod, ref

from nsq_ha.base.forks import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.stats import ConsumerStats, Health, ProducerStats

Kind = Literal["producer", "consumer"]

T = TypeVar("T")


class Client(Protocol):
    """A producer or a consumer."""

    def stats(self) -> ProducerStats | ConsumerStats:
        """Return its statistics."""

    def health(self) -> Health:
        """Return whether it works."""


class Named(NamedTuple):
    """An open client and its name.

    Attributes:
        kind: What it is.
        name: Its name, unique among the open clients of the process.
        client: The client.
    """

    kind: Kind
    name: str
    client: Client


class _Entry(NamedTuple):
    client: ref[Client]
    on_watched: WeakMethod[Callable[[], None]] | None
    on_exit: WeakMethod[Callable[[], Callable[[], None] | None]] | None


_NumberedKind = tuple[Kind, int]


class Clients:
    """Knows the open clients. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = Mutex()  # a garbage collection inside a block here may call it again
        self._entries: dict[_NumberedKind, _Entry] = {}

    def opened(
        self,
        kind: Kind,
        client: Client,
        *,
        on_watched: Callable[[], None] | None = None,
        on_exit: Callable[[], Callable[[], None] | None] | None = None,
    ) -> None:
        """Add a client.

        Args:
            kind: What it is.
            client: The client.
            on_watched: A method of the client, called when single messages begin or cease to be watched.
            on_exit: A method of the client, called if the process exits before the client is closed. What it returns
                is called when it was called for all clients, and waits.
        """
        watched = None if on_watched is None else WeakMethod(on_watched)
        exits = None if on_exit is None else WeakMethod(on_exit)
        with self._lock:
            self._remove(None)
            number = 1
            while (kind, number) in self._entries:
                number += 1
            self._entries[kind, number] = _Entry(ref(client), watched, exits)

    def closed(self, client: Client) -> None:
        """Remove a client; an unknown one is ignored."""
        with self._lock:
            self._remove(client)

    def all(self) -> list[Named]:
        """Return the open clients, by kind and number."""
        with self._lock:
            entries = sorted(self._entries.items())
        found = []
        for (kind, number), entry in entries:
            client = entry.client()
            if client is not None:
                found.append(Named(kind, f"{kind}-{number}", client))
        return found

    def watched(self) -> None:
        """Let the clients know that single messages begin or cease to be watched."""
        for method in _alive(entry.on_watched for entry in self._all_entries()):
            method()

    def exits(self) -> None:
        """Let the clients that nobody has closed know that the process exits."""
        for wait in [method() for method in _alive(entry.on_exit for entry in self._all_entries())]:
            if wait is not None:
                wait()

    def forget(self) -> None:
        """Forget all: in a forked process the clients of its parent do not run."""
        self._entries = {}

    def _all_entries(self) -> tuple[_Entry, ...]:
        with self._lock:
            return tuple(self._entries.values())

    def _remove(self, client: Client | None) -> None:
        """Remove a client; None stands for those that were collected."""
        for key, entry in tuple(self._entries.items()):
            if entry.client() is client:
                self._entries.pop(key, None)


def _alive(references: Iterable[WeakMethod[Callable[[], T]] | None]) -> list[Callable[[], T]]:
    methods = (None if reference is None else reference() for reference in references)
    return [method for method in methods if method is not None]


clients: Final = Clients()
"""The process's."""

atexit.register(clients.exits)  # after the clients for threads have been closed, which registers later

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clients.forget)
