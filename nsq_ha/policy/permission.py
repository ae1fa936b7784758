"""Whether a command that nsqd refused for lack of permission is sent once more.

nsqd asks its auth server at AUTH, keeps the permissions for their ``ttl``, and then asks again with the secret that it
got at AUTH. So a connection that worked may be refused because the secret has been replaced, because a permission was
withdrawn, or because the auth server did not answer; and a permission granted since then is unknown to nsqd until the
``ttl`` is over. A new connection sends the present secret and gets the present permissions. If these do not suffice,
nothing else will help.

=========================================  =======================
refusal                                    what to do
=========================================  =======================
the first since a command was accepted     connect again, once
another one without an accepted command    report it
without a secret, or for another reason    report it
=========================================  =======================

nsqd checks PUB each time, and SUB only once: a subscribed connection is never refused later.

Source: server protocol 4; nsqio/nsq and youzan/nsq ``CheckAuth``, ``IsAuthorized``.
"""

from __future__ import annotations

from typing import Final

RENEWABLE: Final = frozenset({"E_UNAUTHORIZED", "E_AUTH_FAILED"})
"""Codes of refusals that another AUTH may end. nsqd closes the connection after each of them."""


def renews(code: str, *, has_secret: bool, failures: int) -> bool:
    """Return whether to connect again and to repeat the refused command.

    Args:
        code: The code of the refusal.
        has_secret: This client sends AUTH if nsqd asks for it.
        failures: Failures since nsqd accepted a command.
    """
    return code in RENEWABLE and has_secret and failures == 0
