"""Whether a command that nsqd refused for lack of permission is sent once more.

nsqd asks its auth server at AUTH, keeps the permissions for their ``ttl``, and then asks again with the secret that it
got at AUTH. ``E_AUTH_FAILED`` means that the secret is wrong, or that the auth server did not answer: nsqd does not
say which. ``E_UNAUTHORIZED`` means that the auth server did answer. A permission granted since then is unknown to nsqd
until the ``ttl`` is over, or until another connection sends AUTH.

===============================  ============================  ============================================
refusal of                       before the cluster accepted   after that
                                 a secret of this client
===============================  ============================  ============================================
AUTH                             report it                     connect again until the call's limit
a publish, ``E_AUTH_FAILED``     (AUTH comes first)            connect again until the call's limit
a publish, ``E_UNAUTHORIZED``    (AUTH comes first)            connect again once, then report it
SUB of a partition               report it                     connect again, for ever if it was subscribed
without a secret                 report it                     report it
===============================  ============================  ============================================

nsqd checks PUB each time, and SUB only once: a subscribed connection is never refused later.

Source: server protocol 4; nsqio/nsq and youzan/nsq ``CheckAuth``, ``IsAuthorized``.
"""

from __future__ import annotations

from typing import Final

RENEWABLE: Final = frozenset({"E_UNAUTHORIZED", "E_AUTH_FAILED"})
"""Codes of refusals that another AUTH may end. nsqd closes the connection after each of them."""


def renews(code: str, *, has_secret: bool, failures: int) -> bool:
    """Return whether to connect again and to repeat the refused publish.

    Args:
        code: The code of the refusal.
        has_secret: This client sends AUTH if nsqd asks for it.
        failures: Failures since nsqd accepted a command.
    """
    return has_secret and (code == "E_AUTH_FAILED" or (code in RENEWABLE and failures == 0))
