"""The soak finds what must not happen, and passes on a cluster that is well."""

import pytest

from integration import soak
from integration.embedded import EmbeddedCluster


def test_every_failure_is_named() -> None:
    figures = soak.Figures(
        "plain", acknowledged=100, delivered=99, lost=1, not_again=4, unexplained_repeats=2, out_of_order=3
    )
    figures.errors.append("PublishError")
    figures.repeated_fates["FINISH"] = 2
    assert figures.broken(sampled=False) == [
        "1 errors: PublishError",
        "2 repeats without a reason (2 of fate FINISH)",
        "3 out of order",
        "1 acknowledged and not delivered",
        "4 requeued or ignored and not delivered again",
    ]


@pytest.mark.timeout(900)
async def test_features_run_on_the_embedded_cluster() -> None:
    cluster = EmbeddedCluster()
    try:
        chosen = [one for one in soak.features(cluster) if one.name in ("ordered", "headers", "batches-traced")]
        rows = await soak.soak(cluster, chosen, seconds=4.0, rate=100.0)
    finally:
        cluster.close()
    assert [(figures.feature, figures.acknowledged, figures.broken(sampled=False)) for _, figures in rows] == [
        (feature.name, 400, []) for feature in chosen
    ]
