"""The result of asking the nsqlookupds, or fixed nodes, once."""

from __future__ import annotations

import msgspec

from nsq_ha.errors import LookupUnavailableError
from nsq_ha.policy.topology import LookupAnswer


class Round(msgspec.Struct, frozen=True):
    """The result of one round.

    Attributes:
        answers: The usable answers that arrived in time.
        error: None if there is an answer.
    """

    answers: tuple[LookupAnswer, ...]
    error: LookupUnavailableError | None
