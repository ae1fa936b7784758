"""What a machine does, as a text that tests compare."""

import re

from nsq_ha.errors import NsqError
from nsq_ha.policy.timing import Warned
from nsq_ha.policy.topology import Node


class Story:
    """Collects ``events`` with their times; the first time is 100."""

    now = 100.0

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self._last: dict[object, str] = {}

    def tell(self, *things: object, unless_as: object = None) -> None:
        """Record an event, unless it equals the last one, or the last one of its subject."""
        text = " ".join(self.word(thing) for thing in things if thing is not None and thing != "")
        if text not in {self._last.get(None), self._last.get(unless_as)}:
            self.events.append((self.now, text))
        self._last[None] = self._last[unless_as] = text

    def kind(self, action: object) -> str:
        """Return how it names a kind of action; nothing if the action has a name."""
        name = type(action).__name__.removeprefix("Write").removesuffix("Connection").lower()
        return "" if hasattr(action, "what") else name

    def word(self, thing: object) -> str:
        """Return how it names something."""
        if isinstance(thing, NsqError):
            return f"'{thing}'"
        if isinstance(thing, Node):
            return thing.address
        if isinstance(thing, Warned):
            return f"after {thing.seconds:.2f} s and {thing.failures}"
        return f"{thing:.3g}" if isinstance(thing, float) else str(thing)

    def facts(self) -> list[str]:
        """Return what is known in the end."""
        raise NotImplementedError

    def story(self) -> str:
        """Return what has happened since the last call, each moment with its seconds; and what is known in the end.

        The quoted text before is ``=``.
        """
        told: list[str] = []
        at, quoted = -1.0, "="
        for now, text in self.events:
            told += [f"| {now - 100.0:.2f}:" if now != at else ",", text.replace(quoted, "=")]
            at = now
            quoted = found[0] if (found := re.search("'.*'", text)) else quoted
        self.events.clear()
        return " ".join([*told, "|", *self.facts()]).replace(" ,", ",")

    def told(self, text: str) -> None:
        """Assert that just this has happened since the last call."""
        assert self.story().split() == text.split()
