"""The admin client for threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, Unpack

from nsq_ha import admin
from nsq_ha.options.environment import admin_from_env
from nsq_ha.sync.facade import Facade, waits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from nsq_ha.options.keywords import AdminOptions
    from nsq_ha.options.types import TlsConfig


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

    @classmethod
    def from_env(cls, **overrides: Unpack[AdminOptions]) -> Self:
        """Create a client from the environment, see :meth:`nsq_ha.admin.AdminClient.from_env`."""
        return cls(**admin_from_env(overrides))

    create_topic: Final = waits(admin.AdminClient.create_topic)
    delete_topic: Final = waits(admin.AdminClient.delete_topic)
    update_topic: Final = waits(admin.AdminClient.update_topic)
    pause_topic: Final = waits(admin.AdminClient.pause_topic)
    unpause_topic: Final = waits(admin.AdminClient.unpause_topic)
    empty_topic: Final = waits(admin.AdminClient.empty_topic)
    expand: Final = waits(admin.AdminClient.expand)
    channels: Final = waits(admin.AdminClient.channels)
    create_channel: Final = waits(admin.AdminClient.create_channel)
    delete_channel: Final = waits(admin.AdminClient.delete_channel)
    pause_channel: Final = waits(admin.AdminClient.pause_channel)
    unpause_channel: Final = waits(admin.AdminClient.unpause_channel)
    skip_channel: Final = waits(admin.AdminClient.skip_channel)
    unskip_channel: Final = waits(admin.AdminClient.unskip_channel)
    empty_channel: Final = waits(admin.AdminClient.empty_channel)
    reset_channel: Final = waits(admin.AdminClient.reset_channel)
    set_offset: Final = waits(admin.AdminClient.set_offset)
    move_leader: Final = waits(admin.AdminClient.move_leader)
    stats: Final = waits(admin.AdminClient.stats)
    describe: Final = waits(admin.AdminClient.describe)
    topics: Final = waits(admin.AdminClient.topics)
    cluster: Final = waits(admin.AdminClient.cluster)
    tombstone_node: Final = waits(admin.AdminClient.tombstone_node)
    restore_node: Final = waits(admin.AdminClient.restore_node)
    find_message: Final = waits(admin.AdminClient.find_message)
    nodes: Final = waits(admin.AdminClient.nodes)
    look: Final = waits(admin.AdminClient.look)
