"""The dashboard and the alert rules name only metrics that exist, and are complete."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from nsq_ha.admin import Reading
from nsq_ha.dashboard.metrics import metrics
from nsq_ha.process.metrics import METRICS

MONITORING: Final = Path(__file__).parents[1] / "monitoring"
NAME: Final = re.compile(r"\bnsq_ha_[a-z_]+")
GROUPED: Final = re.compile(r"\bby \(([^)]*)\)")
CHOSEN: Final = re.compile(r'([a-z_]+)=~?"')
LABELS: Final = {"client", "topic", "channel", "partition", "leader", "job", "instance", "level", "trouble", "subject"}


def dashboard() -> Any:  # noqa: ANN401 - JSON
    return json.loads((MONITORING / "grafana-dashboard.json").read_text())


def expressions() -> dict[str, str]:
    board = dashboard()
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    found |= {rule["alert"]: rule["expr"] for rule in rules}
    chosen = board["templating"]["list"]
    return found | {each["name"]: each["query"]["query"] for each in chosen if each["type"] == "query"}


@pytest.mark.parametrize("place", expressions())
def test_it_names_metrics_and_labels_that_exist(place: str) -> None:
    expression = expressions()[place]
    named = NAME.findall(expression)
    assert named
    # A test of the exporter shows that it prints each of these.
    of_clusters = {name for name, *_ in metrics(Reading(0.0))}
    assert {metric.prometheus_name for metric in METRICS} | of_clusters >= set(named)
    labels = {label.strip() for found in GROUPED.findall(expression) for label in found.split(",")}
    assert labels | set(CHOSEN.findall(expression)) <= LABELS
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    for counter in re.findall(r"(\w+)\((nsq_ha_[a-z_]+)", expression):
        if counter[0] == "label_values":
            continue
        assert (counter[0] in {"rate", "increase"}) == counter[1].endswith("_total"), counter


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["annotations"]["description"].endswith(".")
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= LABELS


def test_what_is_worth_an_alarm_has_one() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in NAME.findall(rule["expr"])}
    assert named >= {
        "nsq_ha_producer_uncertain_total",
        "nsq_ha_client_healthy",
        "nsq_ha_consumer_partition_lag_seconds",
        "nsq_ha_consumer_given_up_total",
    }
