"""Refusals because of a server's limits: name the option of the client and the flag of nsqd.

The answer to IDENTIFY names the limits of RDY (``max_rdy_count``) and of the message timeout (``max_msg_timeout``). The
others are known only from a refusal:

==================  ==============================  ===================================
the server says     the option of the client        the flag of nsqd
==================  ==============================  ===================================
message too big     ``max_message_bytes``           ``--max-msg-size``
body too big        ``max_batch_bytes``             ``--max-body-size``
DPUB timeout        ``defer`` of a publish          ``--max-req-timeout``
RDY count           ``max_in_flight``               ``--max-rdy-count``
msg timeout         ``msg_timeout``                 ``--max-msg-timeout``
heartbeat interval  ``heartbeat_interval``          ``--max-heartbeat-interval``
output buffer ...   ``output_buffer_timeout``,      ``--max-output-buffer-timeout``,
                    ``output_buffer_bytes``         ``--max-output-buffer-size``
sample rate         ``sample_rate``                 (none: the limit is fixed)
==================  ==============================  ===================================

A requeue delay above ``--max-req-timeout`` is not refused: both kinds of nsqd shorten it.

Source: youzan/nsq ``nsqdserver/protocol_v2.go``, ``nsqd/client_v2.go``; nsqio/nsq ``nsqd/protocol_v2.go``,
``nsqd/client_v2.go``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.errors import ServerError

_TOO_BIG: Final = r"(?:MPUB |DPUB |PUB )?(message|body) too big [0-9]{1,10} > ([0-9]{1,19})"
_OUT_OF_RANGE: Final = r"(DPUB timeout|RDY count) [0-9]{1,19} out of range 0-([0-9]{1,19})"
_INVALID: Final = r"IDENTIFY ([a-z ]{1,30}) \(-?[0-9]{1,19}\) is invalid"

_OPTIONS: Final = {
    "heartbeat interval": ("heartbeat_interval", "--max-heartbeat-interval"),
    "output buffer timeout": (
        "output_buffer_timeout",
        "--max-output-buffer-timeout (or --min-output-buffer-timeout)",
    ),
    "output buffer size": ("output_buffer_bytes", "--max-output-buffer-size"),
    "msg timeout": ("msg_timeout", "--max-msg-timeout"),
    "sample rate": ("sample_rate", ""),
}
"""By the words of a refused IDENTIFY: the option, and the flag."""


def with_advice(error: ServerError) -> ServerError:
    """Return a refusal with the setting to change on either side.

    Args:
        error: The server's answer.

    Returns:
        An error of the same class and code; ``error`` itself if it is about no limit.
    """
    advice = _ADVICE.get(error.code)
    text = None if advice is None else advice(error.detail)
    return error if text is None else type(error)(error.code, f"{error.detail}: {text}")


def _about_size(detail: str) -> str | None:
    found = re.fullmatch(_TOO_BIG, detail)
    if found is None:
        return None
    kind, limit = found.groups()
    if kind == "message":
        return (
            f"split the message, or start nsqd with a larger --max-msg-size; with max_message_bytes={limit} the client"
            " refuses such messages before it sends them"
        )
    return f"set max_batch_bytes={limit} for smaller batches, or start nsqd with a larger --max-body-size"


def _about_settings(detail: str) -> str | None:
    found = re.fullmatch(_INVALID, detail)
    option, flag = _OPTIONS.get(found[1], ("", "")) if found is not None else ("", "")
    if not option:
        return None
    remedy = f"; change it, or nsqd's {flag}" if flag else ""
    return f"nsqd does not accept this value of the option {option}{remedy}"


def _about_body(detail: str) -> str | None:
    return _about_size(detail) or _about_settings(detail)


def _about_range(detail: str) -> str | None:
    found = re.fullmatch(_OUT_OF_RANGE, detail)
    if found is None:
        return None
    if found[1] == "RDY count":
        return f"set max_in_flight={found[2]}, or start nsqd with a larger --max-rdy-count"
    longest = f"{int(found[2]) / 1000:g} s"
    return f"nsqd delays a message by at most {longest}: lower defer, or start nsqd with a larger --max-req-timeout"


_ADVICE: Final = {"E_BAD_MESSAGE": _about_size, "E_BAD_BODY": _about_body, "E_INVALID": _about_range}
