"""A whole cluster in one process: real servers in pure Python, with controls for their faults.

It implements the HTTP of nsqlookupd and nsqd and the TCP protocol of nsqd on the
loopback; it replicates, elects and fails like the real cluster. It writes nothing
to disk. The documentation lists what it does not do.

The layers, from the bottom: ``host`` (clock, delays, randomness and switches), ``nodes`` (a process and its
ports), ``storage`` (logs and channels), ``nsqd`` (nsqds and TCP), ``control`` (nsqlookupds and elections),
``http`` (routes), and :class:`DevCluster`. A layer imports only those below it. Modules that begin with ``plain``
imitate upstream's servers, those that begin with ``any`` have what both kinds share.
"""

from nsq_ha.devcluster.auth import AuthGrant, AuthRule
from nsq_ha.devcluster.cluster import DevCluster
from nsq_ha.devcluster.control.changes import ChangeRefusedError

__all__ = ["AuthGrant", "AuthRule", "ChangeRefusedError", "DevCluster"]
