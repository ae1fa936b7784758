"""What somebody may have meant who wrote the name of an option, or a word, that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

OTHER_NAMES: Final[Mapping[str, str]] = {
    "backoff_multiplier": "handler_backoff",
    "default_requeue_delay": "requeue_backoff",
    "deflate": "compression",
    "desired_tag": "tag",
    "dial_timeout": "connect_timeout",
    "enable_ordered": "ordered",
    "enable_trace": "trace",
    "hasher": "sharding",
    "lookupd_connect_timeout": "lookup_timeout",
    "lookupd_http_address": "lookupd",
    "lookupd_http_addresses": "lookupd",
    "lookupd_poll_interval": "max_lookup_interval",
    "lookupd_poll_jitter": "lookup_jitter",
    "lookupd_request_timeout": "lookup_timeout",
    "max_backoff_duration": "handler_backoff",
    "max_requeue_delay": "requeue_backoff",
    "max_tries": "max_attempts",
    "nsqd_tcp_address": "nsqd",
    "nsqd_tcp_addresses": "nsqd",
    "output_buffer_size": "output_buffer_bytes",
    "pub_strategy": "strategy",
    "pub_timeout": "publish_timeout",
    "reconnect_interval": "backoff",
    "requeue_delay": "requeue_backoff",
    "snappy": "compression",
    "tls_config": "tls",
    "tls_insecure_skip_verify": "tls",
    "tls_options": "tls",
    "tls_root_ca_file": "tls",
    "tls_v1": "tls",
}
"""Names of options in pynsq, gnsq and go-nsq, and ours; they often resemble another option more."""


def own_name(name: object) -> str | None:
    """Return our name for an option of another client. None if it is none."""
    return OTHER_NAMES.get(name.lower().replace("-", "_")) if isinstance(name, str) else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    known = list(known)
    if (own := own_name(name)) in known:
        return f": did you mean {own!r}?"
    near = difflib.get_close_matches(name.lower(), known) if isinstance(name, str) else []
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
