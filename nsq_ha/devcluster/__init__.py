"""A whole cluster in one process: real servers in pure Python, with controls for their faults.

It speaks the HTTP of nsqlookupd and nsqd and the TCP protocol of nsqd on the
loopback; it replicates, elects and fails like the real cluster. It writes nothing
to disk. The documentation lists what it does not do.

``host`` is the ground: clock, delays, chance and switches. On it stand ``storage``
(logs and channels), ``nsqd`` (processes and TCP), ``control`` (who leads), ``http``
(routes), and :class:`DevCluster`. Imports point down this list only.
"""

from nsq_ha.devcluster.cluster import DevCluster
from nsq_ha.devcluster.control.changes import ChangeRefusedError

__all__ = ["ChangeRefusedError", "DevCluster"]
