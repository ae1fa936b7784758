"""AUTH: what each secret allows, and what one connection may do with the secret that it sent.

A real nsqd asks an auth server (``-auth-http-address``) at AUTH, and again when a command comes after the end of the
answer's ``ttl``. Here a table answers instead.

The invariant: secrets are compared and kept, and nothing else. They are in no text, no log line and no ``repr``.

Source: server protocol 4; youzan/nsq and nsqio/nsq ``internal/auth``, ``AUTH``, ``CheckAuth``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from nsq_ha.options.patterns import compile_regexp
from nsq_ha.protocol.server.gotext import quote

ANYTHING: Final = ".*"
DEFAULT_TTL: Final = 3600.0
_KNOWN: Final = ("subscribe", "publish")
_FAILED: Final = b"E_AUTH_FAILED AUTH failed"
_ESCAPED: Final = ((b"&", rb"\u0026"), (b"<", rb"\u003c"), (b">", rb"\u003e"))
"""How Go's encoder of JSON writes these characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthRule:
    """One entry of ``authorizations`` in an auth server's answer.

    Attributes:
        topic: Regular expression of Go (RE2). It may match anywhere in the topic's name: ``orders`` allows
            ``old_orders_2``, too; write ``^orders$`` for this topic alone.
        channels: Regular expressions for channels. One of them must also match the empty text before
            publishing is allowed, as nsqd demands. So ``(".*",)`` allows both, and ``()`` allows nothing.
        permissions: ``"publish"``, ``"subscribe"`` or both.

    Raises:
        ValueError: An expression is wrong or not supported here, or there is no such permission.
    """

    topic: str = ANYTHING
    channels: tuple[str, ...] = (ANYTHING,)
    permissions: tuple[Literal["publish", "subscribe"], ...] = ("publish", "subscribe")

    def __post_init__(self) -> None:
        for permission in self.permissions:
            if permission not in _KNOWN:
                raise ValueError(f"unknown permission {permission!r}: use 'publish' or 'subscribe'")
        for pattern in (self.topic, *self.channels):
            try:
                compile_regexp(pattern)
            except ValueError as error:
                raise ValueError(f"the regular expression {pattern!r} of an AuthRule is refused: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthGrant:
    """What a secret allows: an auth server's answer.

    Attributes:
        authorizations: What is allowed; nothing else is. An empty one refuses AUTH with ``E_UNAUTHORIZED``.
        ttl: Seconds for which nsqd relies on the answer. The first command behind it makes nsqd ask again. Not
            scaled by ``time_scale``.
        identity: Name of the client, as in nsqd's ``/stats``.
        identity_url: Page about the client.

    Raises:
        ValueError: ``ttl`` is not above 0.
    """

    authorizations: tuple[AuthRule, ...] = (AuthRule(),)
    ttl: float = DEFAULT_TTL
    identity: str = ""
    identity_url: str = ""

    def __post_init__(self) -> None:
        if not self.ttl > 0:
            raise ValueError(f"ttl must be above 0 seconds, not {self.ttl}")


def key_of(secret: str) -> bytes:
    """Return a secret as clients send it.

    Raises:
        ValueError: It is empty: no client can send it.
    """
    if not secret:
        raise ValueError("a secret of AUTH must not be empty: nsqd refuses it as E_BAD_BODY")
    return secret.encode()


class Credentials:
    """What one connection may do.

    Args:
        table: What each secret allows. None for a server without AUTH.
        now: Returns the time in seconds.
        capital: The texts of refusals begin with a capital letter, as those of the partitioned nsqd do.
    """

    def __init__(self, table: Mapping[bytes, AuthGrant] | None, now: Callable[[], float], *, capital: bool) -> None:
        self._table = table
        self._capital = capital
        self._now = now
        self._secret = b""
        self._grant: AuthGrant | None = None
        self._expires = 0.0

    def authenticate(self, secret: bytes) -> bytes | None:
        """AUTH: take the secret, and return the refusal. None if it is accepted."""
        if self._has_rules():
            return self._refused("E_INVALID", "already set")
        if self._table is None:
            return self._refused("E_AUTH_DISABLED", "disabled")
        self._secret = secret
        if not self._ask(self._table):
            return _FAILED
        return None if self._has_rules() else self._refused("E_UNAUTHORIZED", "no authorizations found")

    def _refused(self, code: str, text: str) -> bytes:
        return f"{code} AUTH {text.capitalize() if self._capital else text}".encode()

    def answer(self) -> bytes:
        """Return the answer to an accepted AUTH."""
        grant = self._grant or AuthGrant(authorizations=())
        shown = {
            "identity": grant.identity,
            "identity_url": grant.identity_url,
            "permission_count": len(grant.authorizations),
        }
        answer = msgspec.json.encode(shown)
        for char, escaped in _ESCAPED:
            answer = answer.replace(char, escaped)
        return answer

    def refusal(self, word: str, topic: str, channel: str = "") -> bytes | None:
        """Return why nsqd refuses a command. None if it allows it.

        Args:
            word: The command, as nsqd calls it in its texts.
            topic: The topic.
            channel: The channel; empty for publishing.
        """
        if self._table is None:
            return None
        if not self._has_rules() or self._grant is None:
            return f"E_AUTH_FIRST AUTH required before {word}".encode()
        if self._now() >= self._expires and not self._ask(self._table):
            return _FAILED
        if _allows(self._grant, topic, channel):
            return None
        names = " ".join(quote(name.encode("utf-8", "surrogateescape")) for name in (topic, channel))
        return f"E_UNAUTHORIZED AUTH failed for {word} on {names}".encode("utf-8", "surrogateescape")

    def shown(self) -> dict[str, Any]:
        """Return the fields of ``/stats``; nsqd leaves out the empty ones."""
        grant = self._grant
        if grant is None:
            return {}
        fields = {
            "authed": self._has_rules(),
            "auth_identity": grant.identity,
            "auth_identity_url": grant.identity_url,
        }
        return {name: value for name, value in fields.items() if value}

    def _has_rules(self) -> bool:
        """Return whether the last answer allows anything: nsqd counts a client without rules as one without AUTH."""
        return self._grant is not None and bool(self._grant.authorizations)

    def _ask(self, table: Mapping[bytes, AuthGrant]) -> bool:
        """Ask the table; keep the old answer if it knows none."""
        grant = table.get(self._secret)
        if grant is None:
            return False
        self._grant = grant
        self._expires = self._now() + grant.ttl
        return True


def _allows(grant: AuthGrant, topic: str, channel: str) -> bool:
    """Return whether a secret allows publishing, or with a channel subscribing."""
    needed = "subscribe" if channel else "publish"
    return any(
        needed in rule.permissions
        and compile_regexp(rule.topic).matches(topic)
        and any(compile_regexp(each).matches(channel) for each in rule.channels)
        for rule in grant.authorizations
    )
