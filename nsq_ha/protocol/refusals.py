"""Error frames: whether one answers a request, what it says of a publish, and which setting would help.

A refusal because of a server's limits gets the option of the client and the flag of nsqd added to its text.
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

The partitioned nsqd and upstream's from 1.1.0 on shorten a requeue delay above ``--max-req-timeout``. Older ones refuse
it, close the connection and name the limit in nanoseconds, see :func:`longest_delay`.

Source: youzan/nsq ``nsqdserver/protocol_v2.go``, ``nsqd/client_v2.go``; nsqio/nsq ``nsqd/protocol_v2.go``,
``nsqd/client_v2.go``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import OverloadedError, RemoteProtocolError, ServerError, server_error
from nsq_ha.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK

NEVER_ANSWERS: Final = frozenset(("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"))
"""Codes of errors that answer no request."""

FINAL: Final = frozenset(
    (
        "E_AUTH_ERROR",
        "E_AUTH_FAILED",
        "E_AUTH_FIRST",
        "E_BAD_BODY",
        "E_BAD_MESSAGE",
        "E_BAD_PARTITION",
        "E_BAD_TOPIC",
        "E_INVALID",
        "E_PUB_TOO_MUCH_WAITING",
        "E_TOPIC_NOT_EXIST",
        "E_UNAUTHORIZED",
    )
)
"""Codes of publishes that both kinds of nsqd refuse before they store anything, and after which they read nothing more
from the connection (``FatalClientErr``): what follows on it is not stored, either."""

PUBLISH_REFUSALS: Final = FINAL | {
    "E_DPUB_FAILED",
    "E_EXT_NOT_SUPPORT",
    "E_FAILED_ON_NOT_LEADER",
    "E_FAILED_ON_NOT_WRITABLE",
    "E_INVALID_JSON_HEADER",
    "E_MPUB_FAILED",
    "E_PUB_FAILED",
    "INVALID_TRACE_ID",
}
"""Error codes that refuse a publish, of partitioned and upstream nsqds."""

_TOO_BIG: Final = r"(?:MPUB |DPUB |PUB )?(message|body) too big [0-9]{1,10} > ([0-9]{1,19})"
_OUT_OF_RANGE: Final = r"(DPUB timeout|RDY count) [0-9]{1,19} out of range 0-([0-9]{1,19})"
_DELAY: Final = r"REQ timeout [0-9]{1,19} out of range 0-([0-9]{1,19})"
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


def refuses_publish(error: ServerError) -> bool:
    """Return whether ``error`` means that a publish was not stored.

    An unknown code, or one of another command, says nothing about the publish;
    later answers on this connection cannot be trusted either. An upstream nsqd that
    fails to write one message of an MPUB has stored those before it.
    """
    is_partly_stored = error.code == "E_MPUB_FAILED" and error.detail.startswith("MPUB failed ")
    if is_partly_stored and not error.detail.endswith(" exiting"):
        return False
    return error.code in PUBLISH_REFUSALS or isinstance(error, OverloadedError)


def read_error(data: bytes) -> ServerError:
    """Return the error in an error frame.

    Raises:
        RemoteProtocolError: It has no error.
    """
    if not data:
        raise RemoteProtocolError("nsqd sent an empty error frame")
    if data.startswith(OK) or data in (HEARTBEAT, CLOSE_WAIT):
        raise RemoteProtocolError(
            f"an error frame contains {excerpt(data)}, which is not an error: the stream is damaged"
        )
    return with_advice(server_error(data))


def refused_option(error: ServerError) -> str | None:
    """Return the option whose value nsqd refused at IDENTIFY. None if it refused something else."""
    found = re.match(_INVALID, error.detail)
    return None if found is None else _OPTIONS.get(found[1], (None,))[0]


def longest_delay(error: ServerError) -> float | None:
    """Return the longest delay of a requeue that nsqd accepts, in seconds. None if it refused something else."""
    found = re.fullmatch(_DELAY, error.detail) if error.code == "E_INVALID" else None
    return None if found is None else int(found[1]) / 1e9


def with_advice(error: ServerError) -> ServerError:
    """Return a refusal with the setting to change on either side.

    Args:
        error: The server's answer.

    Returns:
        An error of the same class and code; ``error`` itself if it is about no limit.
    """
    for pattern, about in _ADVICE.get(error.code, ()):
        found = re.fullmatch(pattern, error.detail)
        text = "" if found is None else about(*found.groups())
        if text:
            return type(error)(error.code, f"{error.detail}: {text}")
    return error


def _about_size(kind: str, limit: str) -> str:
    if kind == "message":
        return (
            f"split the message, or start nsqd with a larger --max-msg-size; with max_message_bytes={limit} the client"
            " refuses such messages before it sends them"
        )
    return f"set max_batch_bytes={limit} for smaller batches, or start nsqd with a larger --max-body-size"


def _about_settings(words: str) -> str:
    option, flag = _OPTIONS.get(words, ("", ""))
    if not option:
        return ""
    remedy = f"; change it, or nsqd's {flag}" if flag else ""
    return f"nsqd does not accept this value of the option {option}{remedy}"


def _about_range(what: str, limit: str) -> str:
    if what == "RDY count":
        return f"set max_in_flight={limit}, or start nsqd with a larger --max-rdy-count"
    longest = f"{int(limit) / 1000:g} s"
    return f"nsqd delays a message by at most {longest}: lower defer, or start nsqd with a larger --max-req-timeout"


_ADVICE: Final[Mapping[str, tuple[tuple[str, Callable[..., str]], ...]]] = {
    "E_BAD_MESSAGE": ((_TOO_BIG, _about_size),),
    "E_BAD_BODY": ((_TOO_BIG, _about_size), (_INVALID, _about_settings)),
    "E_INVALID": ((_OUT_OF_RANGE, _about_range),),
}
