"""Check the extension header of a published message as nsqd does: its JSON and its trace id.

Other keys have no meaning in the protocol.

Source: server protocol 6, 10; youzan/nsq ``nsqdserver/protocol_v2.go``
``internalPubExtAndTrace`` and ``nsqd/message.go`` ``NewJsonExt``.
"""

from __future__ import annotations

import json
import re
from typing import Final

from nsq_ha.errors import MessageRefusedError
from nsq_ha.message import TAG_KEY, TRACE_KEY
from nsq_ha.protocol.encoding import MAX_TRACE_ID
from nsq_ha.protocol.ext_filter import decoded
from nsq_ha.protocol.server.gotext import quote

_DECIMAL: Final = re.compile(r"0*([0-9]{1,20})")
_BLANKS: Final = b" \t\n\r"
_MAX_SHOWN: Final = 80


def trace_id_of(header: bytes) -> int | None:
    """Return the trace id in a header, or None.

    Any JSON value is a header, but only an object can have a trace id. The first
    of repeated keys counts.

    Raises:
        MessageRefusedError: With the server's code: ``E_INVALID_JSON_HEADER``
            or ``INVALID_TRACE_ID``. The connection stays open.
    """
    try:
        value = json.loads(header.decode("utf-8", "surrogateescape"), object_pairs_hook=_first_wins)
    except (ValueError, RecursionError) as error:
        text = f"fail to parse json header:{_complaint(header, error)}"
        raise MessageRefusedError("E_INVALID_JSON_HEADER", text) from None
    if not isinstance(value, dict) or TRACE_KEY not in value:
        return None
    trace_id = value[TRACE_KEY]
    if not isinstance(trace_id, str):
        raise MessageRefusedError("INVALID_TRACE_ID", "passin trace id should be string")
    decimal = _DECIMAL.fullmatch(trace_id)
    if decimal is None or int(decimal[1]) > MAX_TRACE_ID:
        raise MessageRefusedError("INVALID_TRACE_ID", "invalid trace id")
    return int(decimal[1])


def tag_of(header: bytes) -> str:
    """Return the dispatch tag in a header; empty if there is none."""
    tag = decoded(header).get(TAG_KEY)
    return tag if isinstance(tag, str) else ""


def _first_wins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return dict(reversed(pairs))


def _complaint(header: bytes, error: Exception) -> str:
    """Describe the three most common faults like the server's JSON parser; other texts only begin like its texts."""
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        tail = error.doc[error.pos :].encode("utf-8", "surrogateescape")
        return f"unexpected tail: {_shortened(tail)}"
    text = header.lstrip(_BLANKS)
    inside = text[1:].lstrip(_BLANKS)
    if not text:
        fault = "cannot parse empty string; "
    elif text.startswith(b"{") and not inside.startswith(b'"'):
        fault = 'cannot parse object: cannot find opening \'"" for object key; '
        text = inside
    else:
        fault = ""
    return f"cannot parse JSON: {fault}unparsed tail: {_shortened(text)}"


def _shortened(text: bytes) -> str:
    return quote(text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN // 2] + b"..." + text[-_MAX_SHOWN // 2 :])
