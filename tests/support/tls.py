"""TLS on the loopback, and connections that are replaced at once."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import pytest

from nsq_ha import TlsConfig
from nsq_ha.engine import connection
from nsq_ha.policy.tls_renewal import WRITES_FOR, Lifetime, Phase
from nsq_ha.protocol import Identity
from tests.support.certificates import CA_FILE, server_context
from tests.support.stage import Stage

TLS: Final = TlsConfig(ca_file=CA_FILE)
"""What a client needs."""

PARTITIONED: Final = Identity(version="0.3.7-HA.1.13.0")
"""The answer of the partitioned nsqd to IDENTIFY."""

SOON: Final = 0.2
"""Age of a connection that is replaced, with :func:`replaced_soon`."""


def secure(stage: Stage, *, writes_for: float = WRITES_FOR) -> None:
    """Have the nsqds offer TLS, with the defect.

    Args:
        stage: The stage.
        writes_for: Seconds for which they can write.
    """
    context = server_context()
    for nsqd in stage.nsqds:
        nsqd.identity, nsqd.tls, nsqd.writes_for = PARTITIONED, context, writes_for


def replaced_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have connections replaced at the age of ``SOON``; other times are unchanged, to suit a busy machine."""

    class Early(Lifetime):
        @classmethod
        def of(cls, version: str, identified_at: float, chance: Callable[[], float]) -> Self | None:
            found = super().of(version, identified_at, chance)
            return None if found is None else found._replace(early=found.limit * Phase.DUE.value - SOON)

    monkeypatch.setattr(connection, "Lifetime", Early)


@contextmanager
def without_collector() -> Iterator[None]:
    """Free nothing that is in a cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
