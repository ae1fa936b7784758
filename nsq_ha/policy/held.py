"""A failed message of an ordered channel, held here until it is asked for again.

The server drops a delayed REQ on an ordered channel without a word and brings
the message back only after its own timeout, so the delay is spent here: the
message is touched meanwhile, and then asked for with a REQ without delay.

The invariant: from the failure to the REQ the server never times the message
out, whatever the handler had used up before it failed and however long the
back-off is. A TOUCH keeps a message only up to ``max_msg_timeout`` from its
delivery, so a longer back-off is cut short.

Source: failures reference 3.10, 4 (Consumer 4); protocol reference 9.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOUCH_SHARE: Final = 0.5
"""A message that is held is touched each time this share of the message timeout has passed."""


class Look(NamedTuple):
    """What is to be done now, and when to look again.

    Attributes:
        is_over: Send REQ without delay; nothing else is to be done.
        touch: Send TOUCH.
        again_at: When to look again.
    """

    is_over: bool
    touch: bool
    again_at: float


class Held:
    """One message that waits. :meth:`look` is called at once, and then whenever it said.

    Attributes:
        until: When it is asked for again.
    """

    __slots__ = ("_touch_interval", "until")

    def __init__(
        self, now: float, delay: float, delivered_at: float, *, msg_timeout: float, max_msg_timeout: float
    ) -> None:
        """Begin to hold it.

        Args:
            now: The time.
            delay: Seconds of back-off.
            delivered_at: When the message came.
            msg_timeout: Seconds after which the server times a message out that was not touched.
            max_msg_timeout: Seconds from the delivery for which touching helps.
        """
        self._touch_interval = msg_timeout * TOUCH_SHARE
        # What is on its way, and a clock that is a little off, must not cost it its last moment.
        self.until = min(now + delay, delivered_at + max_msg_timeout - self._touch_interval)

    def look(self, now: float) -> Look:
        """Tell what is to be done now.

        The first look touches, too: the handler may have used up nearly all of the timeout.
        """
        if now >= self.until:
            return Look(is_over=True, touch=False, again_at=now)
        return Look(is_over=False, touch=True, again_at=min(now + self._touch_interval, self.until))
