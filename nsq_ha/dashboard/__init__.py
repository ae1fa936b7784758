"""Show a cluster in the browser, live: nodes, topics, channels, leader changes and single messages.

It asks the cluster through :class:`nsq_ha.admin.AdminClient` only, once per interval whatever the number of browsers.
``nsq-ha dashboard`` starts it.
"""

from nsq_ha.dashboard.app import serve
from nsq_ha.dashboard.options import DashboardOptions

__all__ = ["DashboardOptions", "serve"]
