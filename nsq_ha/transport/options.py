"""The options of a client, however they were given, checked before anything connects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nsq_ha.errors import ConfigError
from nsq_ha.transport.tls import ssl_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsq_ha.config import ClientConfig

_Config = TypeVar("_Config", bound="ClientConfig")


def options_of(
    kind: type[_Config], config: _Config | None, lookupd: str | Iterable[str], options: Mapping[str, Any]
) -> _Config:
    """Return the options as one value.

    Args:
        kind: What a value is made of when ``config`` is None.
        config: The options as a value. None to take them from the other two.
        lookupd: One nsqlookupd's HTTP address or several.
        options: Fields of ``kind`` by name.

    Raises:
        ConfigError: They are given both ways, the value is of another kind, an option is unknown or out of
            range, nothing tells where to connect to, or a file that TLS names
            cannot be used.
    """
    if config is not None and (options or lookupd):
        raise ConfigError("give either config= or options, not both")
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"config must be a {kind.__name__}, not {type(config).__name__}")
    config = config or kind.of({"lookupd": lookupd, **options})
    if not config.lookupd and not config.nsqd:
        raise ConfigError("give lookupd=, the address of an nsqlookupd")
    if config.tls is not None:
        ssl_context(config.tls)
    return config
