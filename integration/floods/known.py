"""Refusals that the real servers are known to give: each code of an nsqd, and each one recorded of an nsqlookupd."""

import json
from collections.abc import Iterator
from typing import Any, Final

from integration.floods.case import BOTH, CONSUMER, PRODUCER, Case, Moment
from nsq_ha.policy.permission import RENEWABLE
from tests.golden import load
from tests.support.nsqd import error

_CODES: Final[list[dict[str, Any]]] = load("error_codes")["codes"]
_UNASKED: Final = {"*", "FIN", "REQ", "TOUCH"}
"""Commands that are answered only when they are refused."""
_NEVER_TO_SUB: Final = {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"}
_OTHERWISE: Final = {"E_SUB_EXTEND_FORBIDDON", "E_SUB_EXTEND_NEED", "E_SUB_ORDER_IS_MUST"}
"""After these a consumer may subscribe in another way."""


def _to_nsqds() -> Iterator[Case]:
    for known in _CODES:
        code = known["code"]
        ends = None if code in _NEVER_TO_SUB | _OTHERWISE else not known["retriable"]
        for command, clients in (("SUB", CONSUMER), ("PUB", PRODUCER)):
            yield Case(
                group="known errors",
                name=f"{code} to {command}",
                data=error(f"{code} {command} refused"),
                moment=Moment.ANSWER,
                clients=clients,
                ends=ends,
                # Only a new connection has other permissions; each publish that is refused may try one.
                reconnects=4.0 if code in RENEWABLE else 2.0,
            )
        if _UNASKED.intersection(known["on"]):
            yield Case(group="known errors", name=f"{code}, not asked", data=error(f"{code} refused"), clients=BOTH)


def _to_lookups() -> Iterator[Case]:
    files = "lookup_http", "lookup_leadership", "plain/lookupd_http"
    steps = [step for file in files for exchange in load(file)["exchanges"] for step in exchange["steps"]]
    refusals = {
        (step["body_text"] if "body_text" in step else json.dumps(step["body"]), step["status"])
        for step in steps
        if step["dir"] == "http" and step.get("status", 200) != 200
    }
    for body, status in sorted(refusals):
        # A producer believes that there is no such topic, and its calls say so.
        clients = CONSUMER if "Key not found" in body else BOTH
        yield Case(group="known refusals", name=f"{status} {body}", answer=(body.encode(), status), clients=clients)


CASES: Final = (*_to_nsqds(), *_to_lookups())
