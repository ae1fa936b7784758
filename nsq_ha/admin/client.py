"""The admin client: what its calls promise.

Producers and consumers do not use this package. The calls are in ``topics``, ``channels``, ``cluster``
and ``statistics``.

The invariant: every call ends within its ``timeout``, and may be repeated.

Source: server protocol 11; server failures 2.
"""

from __future__ import annotations

from nsq_ha.admin.channels import ChannelAdmin
from nsq_ha.admin.statistics import LookAdmin


class AdminClient(LookAdmin, ChannelAdmin):
    """Administers topics through the nsqlookupds. Use it as an async context manager.

    It works with partitioned and with plain (upstream) clusters, and finds the kind out by their answers. The
    nsqlookupds of a plain cluster are independent: give the addresses of all. A change goes to each of them.

    A change returns when the cluster shows it. Every method raises :class:`ConfigError` for wrong arguments, before
    anything is sent; :class:`ServerError` with the server's text if the server refuses; :class:`TransportError` if a
    required nsqd does not answer; and :class:`DiscoveryError` if no nsqlookupd answers, or if ``timeout`` (seconds, for
    the whole call) is over. If some servers show the change and others do not, that is a
    :class:`~nsq_ha.errors.ChangeIncompleteError`, which names them. After a timeout or a cancellation the change may
    still happen: repeat the call, or describe the topic.

    Args:
        lookupd: HTTP address of one nsqlookupd or several. The client discovers the others of a partitioned cluster.
        question_timeout: Seconds for one request to one server.
        lookupd_tls: TLS for ``https://`` addresses. None trusts the system's authorities.
        tls: TLS for the HTTPS of nsqds that refuse plain HTTP because they run with ``-tls-required``. None trusts the
            system's authorities. A plain nsqd names the port. The partitioned one does not: its ``-https-address``
            must have the port after that of its ``-http-address``, as by default (4152 and 4151).

    Raises:
        ConfigError: An address or ``question_timeout`` is not legal, or ``lookupd_tls`` or ``tls`` cannot be used.
    """
