"""A whole cluster in one process: real servers in pure Python, with controls for their faults.

It speaks nsqlookupd's and nsqd's HTTP and nsqd's TCP protocol on the loopback,
replicates, elects, and fails as the real cluster does. Nothing is written to
disk. What it does not do is listed in the documentation.
"""

from nsq_ha.devcluster.cluster import DevCluster
from nsq_ha.devcluster.control.changes import ChangeRefusedError

__all__ = ["ChangeRefusedError", "DevCluster"]
