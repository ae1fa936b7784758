"""The embedded nsqd answers the recorded exchanges as the real one did, but for those that the docs list."""

from collections.abc import Iterator
from typing import Any

import pytest

from nsq_ha.devcluster import AuthGrant, AuthRule, DevCluster
from tests.devcluster.prefaces import prepare
from tests.devcluster.replay import Mismatch, Replay, first_target
from tests.devcluster.stage import Stage
from tests.devcluster.unmatched import unmatched
from tests.devcluster.wire import LIMIT
from tests.golden import TCP_FILES, load
from tests.support.certificates import server_context

GRANTS = {
    "good": AuthGrant(
        authorizations=(AuthRule(topic="proto_.*"),), identity="joe", identity_url="http://auth.example/joe"
    ),
    "pubonly": AuthGrant(authorizations=(AuthRule(permissions=("publish",)),), identity="pub"),
    "none": AuthGrant(authorizations=()),
}
"""What the auth server of the recorded nsqd answered."""
EXCHANGES = [
    pytest.param(file, exchange, id=f"{file}/{exchange['name']}")
    for file in TCP_FILES
    for exchange in load(file)["exchanges"]
]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with DevCluster() as cluster:
        stage = Stage(cluster)
        yield stage
        stage.close()


@pytest.fixture(scope="module")
def stage_with_tls() -> Iterator[Stage]:
    with DevCluster(tls=server_context()) as cluster:
        stage = Stage(cluster, "proto_u")
        yield stage
        stage.close()


@pytest.fixture(scope="module")
def stage_tls_required() -> Iterator[Stage]:
    with DevCluster(nsqds=2, tls=server_context(), tls_required=True) as cluster:
        stage = Stage(cluster, "proto_u")
        yield stage
        stage.close()


@pytest.fixture(scope="module")
def stage_with_auth() -> Iterator[Stage]:
    with DevCluster(nsqds=1, auth=GRANTS) as cluster:
        stage = Stage(cluster, "proto_a")
        yield stage
        stage.close()


@pytest.fixture
def stage_of_its_own() -> Iterator[Stage]:
    with DevCluster() as cluster:
        stage = Stage(cluster, "proto_lead", "proto_lead2")
        yield stage
        stage.close()


def play(stage: Stage, name: str, exchange: dict[str, Any], limit: float = LIMIT) -> None:
    replay = Replay(stage, exchange, stage.address(*first_target(exchange, stage.default)))
    replay.limit = limit
    try:
        prepare(replay, name)
        replay.run()
    finally:
        replay.close()


@pytest.mark.parametrize(("file", "exchange"), EXCHANGES)
def test_exchange(file: str, exchange: dict[str, Any], request: pytest.FixtureRequest) -> None:
    name = f"{file}/{exchange['name']}"
    special = {"auth": "stage_with_auth", "leadership": "stage_of_its_own", "upgrade": "stage_with_tls"}
    needs = special.get(file, "stage")
    if exchange["name"].startswith("tls_required"):
        needs = "stage_tls_required"
    stage: Stage = request.getfixturevalue(needs)
    if name in unmatched():
        with pytest.raises(Mismatch):
            play(stage, name, exchange, limit=0.3)
    else:
        play(stage, name, exchange)
