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


async def test_what_was_requeued_and_did_not_come_again_is_lost() -> None:
    run = soak.Run(soak.Feature(name="plain"), "orders", ["http://127.0.0.1:1"], 50.0)
    for number, deliveries in {1: 1, 17: 1, 37: 2, 57: 1, 77: 1}.items():
        run._acknowledged.add(number)
        run._deliveries[number] = deliveries
    run._count()
    # 1 was finished, 57 touched; 17 was requeued and 77 ignored, and neither came again.
    assert run.figures.broken(sampled=False) == ["2 requeued or ignored and not delivered again"]


@pytest.mark.parametrize(("delivered", "is_broken"), [(450, False), (550, False), (300, True), (1000, True)])
def test_a_sample_of_the_wrong_size_is_named(delivered: int, is_broken: bool) -> None:
    figures = soak.Figures("sampling", acknowledged=1000, delivered=delivered, lost=1000 - delivered)
    assert bool(figures.broken(sampled=True)) is is_broken


@pytest.mark.parametrize("ordered", [False, True])
def test_every_fate_occurs(ordered: bool) -> None:
    assert {soak.fate_of(number, ordered=ordered) for number in range(1000)} == set(soak.Fate)


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
