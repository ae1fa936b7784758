"""The short form of the soak: half a minute with TLS, compression, changing secrets, and a fault each few seconds."""

import dataclasses
from collections.abc import Iterator
from typing import Final

import pytest

from integration.cluster import COMPRESSION_VARIABLE, TLS_VARIABLE
from integration.faults.bench import ORDERED, ORDINARY, Bench
from integration.faults.embedded import NODES, TIME_SCALE, Embedded, EmbeddedPlain
from integration.faults.rows import Target
from integration.faults.scenarios.chaos import chosen
from integration.faults.scenarios.soak import SCENARIOS, PlainSoak, Soak, soak
from integration.faults.secrets import Secrets
from integration.faults.threads import ThreadedLoad
from nsq_ha.devcluster import AuthGrant, DevCluster
from tests.support.certificates import CA_FILE, server_context
from tests.support.full import FULL

MINUTES: Final = 0.5
RATE: Final = 200.0 if FULL else 100.0
TTL: Final = 3.0
MORE_THAN_THE_RUN: Final = 600.0
FLAT: Final = {"memory MiB grown": 25.0, "descriptors grown": 24.0, "tasks grown": 60.0, "threads grown": 8.0}
"""What may have come since the first fault; of the cluster, too, which is in this process."""


@pytest.fixture
def secrets(request: pytest.FixtureRequest) -> Iterator[tuple[DevCluster, Secrets]]:
    with DevCluster(nsqds=NODES, time_scale=TIME_SCALE, plain=request.param, tls=server_context(), auth={}) as cluster:
        grant = AuthGrant(ttl=TTL)
        yield cluster, Secrets(lambda one: cluster.set_auth(one, grant), lambda one: cluster.set_auth(one, None))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TLS_VARIABLE, CA_FILE)
    monkeypatch.setenv(COMPRESSION_VARIABLE, "snappy")


@pytest.mark.few("partitioned")
@pytest.mark.timeout(60.0 * chosen(MINUTES)[0] + MORE_THAN_THE_RUN)
@pytest.mark.parametrize(
    ("secrets", "kinds", "is_sync"),
    [(False, (ORDERED, ORDINARY), False), (True, (ORDINARY,), False), (False, (ORDERED, ORDINARY), True)],
    ids=["partitioned", "plain", "sync"],
    indirect=["secrets"],
)
async def test_hours_in_short(secrets: tuple[DevCluster, Secrets], kinds: tuple[str, ...], *, is_sync: bool) -> None:
    cluster, changing = secrets
    is_plain = ORDERED not in kinds
    bench = Bench(EmbeddedPlain(cluster) if is_plain else Embedded(cluster), verbose=True)
    if is_sync:
        bench.make_load = ThreadedLoad
    scenario = dataclasses.replace(SCENARIOS[0], target=Target(extra=FLAT))
    row = await soak(
        bench,
        scenario,
        PlainSoak if is_plain else Soak,
        kinds=kinds,
        partitions=NODES,
        rate=RATE,
        minutes=MINUTES,
        secrets=changing,
    )
    assert not row.broken, "\n".join([str(row), *row.notes])
    assert not row.missed(), row
    assert row.faults >= 2
    for load in bench.loads:
        # A busy machine publishes less, and elects so late that some publishes reach their limit.
        assert load.audit.errors <= load.audit.started / 10, row
        assert load.audit.started > RATE / len(kinds) / 4 * MINUTES * 60.0 / 10
