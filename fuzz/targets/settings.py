"""The options of clients in a TOML file and in environment variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuzz.target import Target
from nsq_ha.errors import ConfigError
from nsq_ha.options.config import ClientConfig, ConsumerConfig, ProducerConfig
from nsq_ha.options.environment import MAX_FILE_BYTES, config_of, settings_of
from nsq_ha.redaction import forget

_KINDS: Final[tuple[type[ClientConfig], ...]] = (ProducerConfig, ConsumerConfig, ClientConfig)


def run_settings(data: bytes) -> None:
    """A file, and after a zero byte each a variable; the only error is that of a wrong option."""
    how, content = data[:1].ljust(1, b"\0")[0], data[1:]
    toml, *variables = content.decode("utf-8", "surrogateescape").split("\0")
    # TOML is read as UTF-8; variables may be any bytes.
    toml = toml.encode("utf-8", "surrogateescape")[:MAX_FILE_BYTES].decode("utf-8", "replace")
    environ = {name: value for name, equals, value in (each.partition("=") for each in variables) if equals}
    kind = _KINDS[how % 3]
    try:
        settings = settings_of(kind, environ, toml, "nsq.toml")
        config = config_of(kind, settings, {})
    except ConfigError as error:
        assert str(error)
        return
    finally:
        forget()  # each input may have a secret of its own
    assert config.lookupd or config.nsqd
    assert set(settings.places) == set(settings.options)


def seeds_of_settings() -> Iterator[bytes]:
    """Yield files and variables that are right, or nearly so."""
    yield (
        b'\0lookupd = ["127.0.0.1:4161"]\ntls.ca_file = "/none"\n[producer]\nwindow = 7\nbackoff.initial = "1s"\n'
        b"[consumer]\nmax_in_flight = 10\n\0NSQ_HA_WINDOW=5"
    )
    yield b'\3nsqd = "a:1,b:2"\ntls = false\ncompression = "snappy"\n[consumer]\ntag = "t"\n'
    yield b"\1\0NSQ_HA_LOOKUPD=http://a:1\0NSQ_HA_MAX_IN_FLIGHT=10\0NSQ_HA_START_FROM=msgcount:1"
    yield b"\1\0NSQ_HA_LOOKUPD=h:1\0NSQ_HA_EXT_FILTER_KIND=regexp\0NSQ_HA_EXT_FILTER_KEY=a\0NSQ_HA_EXT_FILTER_VALUE=^b"
    yield b"\2lookupd = 'h:1'\nauth_secret = 'x'\nheartbeat_interval = 1e300\nlocal_addr = '::1'\nhostname = '\xc3'"
    yield b"\0a = [[[[[[[[" + b"[" * 3000
    yield b"\0\0NSQ_HA_LOKUPD=x\0NSQ_HA_LOOKUPD="


TARGETS: Final = (Target("settings", "options in a TOML file and in variables", run_settings, seeds_of_settings, 1),)
