"""The admin client for threads."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final, Self, Unpack

from nsq_ha import admin
from nsq_ha.options.environment import admin_from_env
from nsq_ha.options.keywords import AdminOptions
from nsq_ha.options.types import TlsConfig
from nsq_ha.sync.facade import Facade, waits

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

    create_topic = waits(admin.AdminClient.create_topic)
    delete_topic = waits(admin.AdminClient.delete_topic)
    update_topic = waits(admin.AdminClient.update_topic)
    pause_topic = waits(admin.AdminClient.pause_topic)
    unpause_topic = waits(admin.AdminClient.unpause_topic)
    empty_topic = waits(admin.AdminClient.empty_topic)
    expand = waits(admin.AdminClient.expand)
    channels = waits(admin.AdminClient.channels)
    create_channel = waits(admin.AdminClient.create_channel)
    delete_channel = waits(admin.AdminClient.delete_channel)
    pause_channel = waits(admin.AdminClient.pause_channel)
    unpause_channel = waits(admin.AdminClient.unpause_channel)
    skip_channel = waits(admin.AdminClient.skip_channel)
    unskip_channel = waits(admin.AdminClient.unskip_channel)
    empty_channel = waits(admin.AdminClient.empty_channel)
    reset_channel = waits(admin.AdminClient.reset_channel)
    set_offset = waits(admin.AdminClient.set_offset)
    move_leader = waits(admin.AdminClient.move_leader)
    stats = waits(admin.AdminClient.stats)
    describe = waits(admin.AdminClient.describe)
    topics = waits(admin.AdminClient.topics)
    cluster = waits(admin.AdminClient.cluster)
    tombstone_node = waits(admin.AdminClient.tombstone_node)
    restore_node = waits(admin.AdminClient.restore_node)
    find_message = waits(admin.AdminClient.find_message)
    nodes = waits(admin.AdminClient.nodes)
    look = waits(admin.AdminClient.look)
