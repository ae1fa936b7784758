"""What somebody may have meant who wrote the name of an option, or a word, that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

_THEIRS: Final = {
    "auth_secret": ("auth", "auth_token", "secret", "token"),
    "backoff": ("reconnect_interval",),
    "compression": ("deflate", "snappy"),
    "connect_timeout": ("dial_timeout",),
    "handler_backoff": ("backoff_multiplier", "max_backoff_duration"),
    "lookup_jitter": ("lookupd_poll_jitter",),
    "lookup_timeout": ("lookupd_connect_timeout", "lookupd_request_timeout"),
    "lookupd": (
        "address",
        "addresses",
        "bootstrap_servers",
        "brokers",
        "host",
        "hosts",
        "lookupd_address",
        "lookupd_addresses",
        "lookupd_http_address",
        "lookupd_http_addresses",
        "server",
        "servers",
        "url",
    ),
    "max_attempts": ("max_retries", "max_tries", "retries"),
    "max_in_flight": ("prefetch", "prefetch_count"),
    "max_lookup_interval": ("lookupd_poll_interval",),
    "max_rate": ("messages_per_second", "rate", "rate_limit", "throttle"),
    "msg_timeout": ("message_timeout",),
    "nsqd": ("nsqd_tcp_address", "nsqd_tcp_addresses"),
    "ordered": ("enable_ordered",),
    "output_buffer_bytes": ("output_buffer_size",),
    "publish_timeout": ("pub_timeout", "timeout"),
    "requeue_backoff": ("default_requeue_delay", "max_requeue_delay", "requeue_delay"),
    "sharding": ("hasher",),
    "strategy": ("pub_strategy",),
    "tag": ("desired_tag",),
    "tls": (
        "ssl",
        "ssl_context",
        "tls_config",
        "tls_insecure_skip_verify",
        "tls_options",
        "tls_root_ca_file",
        "tls_v1",
    ),
    "trace": ("enable_trace",),
}
"""Our names of options, and those of other clients and queues, which often resemble another option of ours more."""

OTHER_NAMES: Final[Mapping[str, str]] = {their: ours for ours, theirs in _THEIRS.items() for their in theirs}
"""Names of options in other clients, and ours."""


def own_name(name: object) -> str | None:
    """Return our name for an option of another client. None if it is none."""
    if not isinstance(name, str):
        return None
    given = name.lower().replace("-", "_")
    return OTHER_NAMES.get(given.removeprefix("nsq") if given.startswith("nsqlookupd") else given)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    known = list(known)
    if (own := own_name(name)) in known:
        return f": did you mean {own!r}?"
    near = difflib.get_close_matches(name.lower(), known) if isinstance(name, str) else []
    # A misspelt name of another client resembles another option of ours more, as "lookupd_tls" may.
    if isinstance(name, str) and (theirs := difflib.get_close_matches(name.lower(), OTHER_NAMES, 1, 0.85)):
        near = [OTHER_NAMES[theirs[0]]] if OTHER_NAMES[theirs[0]] in known else near
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""
