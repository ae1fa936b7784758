"""The admin client for threads."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final, Self, Unpack

from nsq_ha import admin
from nsq_ha.options.environment import admin_from_env
from nsq_ha.options.keywords import AdminOptions
from nsq_ha.options.types import TlsConfig
from nsq_ha.sync.facade import Facade, method, waits

_QUESTIONS: Final = 30
"""Questions that a call without a time limit asks one after the other, at most."""


class AdminClient(Facade[admin.AdminClient]):
    """Administers topics from any thread: :class:`nsq_ha.admin.AdminClient` whose methods wait.

    Takes the same arguments. Use it with ``with``, or just call it: the first call starts it.
    """

    def __init__(
        self,
        lookupd: str | Iterable[str],
        *,
        question_timeout: float = 2.0,
        lookupd_tls: TlsConfig | ssl.SSLContext | None = None,
        tls: TlsConfig | ssl.SSLContext | None = None,
    ) -> None:
        """Check the arguments; connect to nothing yet."""
        urls = (lookupd,) if isinstance(lookupd, str) else tuple(lookupd)
        super().__init__(
            lambda: admin.AdminClient(urls, question_timeout=question_timeout, lookupd_tls=lookupd_tls, tls=tls)
        )
        self._call_limit = _QUESTIONS * question_timeout

    @classmethod
    def from_env(cls, **overrides: Unpack[AdminOptions]) -> Self:
        """Create a client from the environment, see :meth:`nsq_ha.admin.AdminClient.from_env`."""
        return cls(**admin_from_env(overrides))

    @method(waits(admin.AdminClient.create_topic))
    def create_topic(self) -> None: ...

    @method(waits(admin.AdminClient.delete_topic))
    def delete_topic(self) -> None: ...

    @method(waits(admin.AdminClient.update_topic))
    def update_topic(self) -> None: ...

    @method(waits(admin.AdminClient.pause_topic))
    def pause_topic(self) -> None: ...

    @method(waits(admin.AdminClient.unpause_topic))
    def unpause_topic(self) -> None: ...

    @method(waits(admin.AdminClient.empty_topic))
    def empty_topic(self) -> None: ...

    @method(waits(admin.AdminClient.expand))
    def expand(self) -> None: ...

    @method(waits(admin.AdminClient.channels))
    def channels(self) -> None: ...

    @method(waits(admin.AdminClient.create_channel))
    def create_channel(self) -> None: ...

    @method(waits(admin.AdminClient.delete_channel))
    def delete_channel(self) -> None: ...

    @method(waits(admin.AdminClient.pause_channel))
    def pause_channel(self) -> None: ...

    @method(waits(admin.AdminClient.unpause_channel))
    def unpause_channel(self) -> None: ...

    @method(waits(admin.AdminClient.skip_channel))
    def skip_channel(self) -> None: ...

    @method(waits(admin.AdminClient.unskip_channel))
    def unskip_channel(self) -> None: ...

    @method(waits(admin.AdminClient.empty_channel))
    def empty_channel(self) -> None: ...

    @method(waits(admin.AdminClient.set_offset))
    def set_offset(self) -> None: ...

    @method(waits(admin.AdminClient.move_leader))
    def move_leader(self) -> None: ...

    @method(waits(admin.AdminClient.stats))
    def stats(self) -> None: ...

    @method(waits(admin.AdminClient.view))
    def view(self) -> None: ...

    @method(waits(admin.AdminClient.describe))
    def describe(self) -> None: ...

    @method(waits(admin.AdminClient.topics))
    def topics(self) -> None: ...

    @method(waits(admin.AdminClient.cluster))
    def cluster(self) -> None: ...

    @method(waits(admin.AdminClient.tombstone_node))
    def tombstone_node(self) -> None: ...

    @method(waits(admin.AdminClient.restore_node))
    def restore_node(self) -> None: ...

    @method(waits(admin.AdminClient.remove_node))
    def remove_node(self) -> None: ...

    @method(waits(admin.AdminClient.begin_upgrade))
    def begin_upgrade(self) -> None: ...

    @method(waits(admin.AdminClient.end_upgrade))
    def end_upgrade(self) -> None: ...

    @method(waits(admin.AdminClient.find_message))
    def find_message(self) -> None: ...

    @method(waits(admin.AdminClient.finish_message))
    def finish_message(self) -> None: ...

    @method(waits(admin.AdminClient.nodes))
    def nodes(self) -> None: ...

    @method(waits(admin.AdminClient.look))
    def look(self) -> None: ...
