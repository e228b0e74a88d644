"""Expressions of Prometheus as the alerts, the board and the autoscaler use them, and the series that they read."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import yaml

from tests.deploy.manifests import DEPLOY, objects_in, the

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ALERT_TESTS = sorted((DEPLOY / "prometheus").glob("*.test.yml"))
BOARD = DEPLOY / "grafana" / "llorch-worker.json"


def alerts() -> list[dict[str, Any]]:
    (body,) = objects_in(ALERTS)
    return [rule for group in body["groups"] for rule in group["rules"]]


def board() -> dict[str, Any]:
    return json.loads(BOARD.read_text())  # type: ignore[no-any-return]  # JSON


def board_expressions() -> Iterator[str]:
    """The expressions with every worker chosen, over two minutes."""
    for panel in board()["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$worker", ".*").replace("$__rate_interval", "2m")


def autoscaler_expressions() -> list[str]:
    return [trigger["metadata"]["query"] for trigger in the("ScaledObject", "llorch-worker")["spec"]["triggers"]]


def picker_series() -> list[str]:
    """The series that the endpoint picker looks for at a worker."""
    config = yaml.safe_load(the("ConfigMap", "llorch-endpoint-picker")["data"]["config.yaml"])
    (parameters,) = [each["parameters"] for each in config["plugins"] if each["type"] == "core-metrics-extractor"]
    return [spec for engine in parameters["engineConfigs"] for key, spec in engine.items() if key.endswith("Spec")]


def expressions() -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    yield from ((rule["alert"], rule["expr"]) for rule in alerts())
    yield from (("the board", expression) for expression in board_expressions())
    yield from (("the autoscaler", expression) for expression in autoscaler_expressions())


def selectors(expression: str) -> list[str]:
    """The series that an expression reads, as it asks for them, without an offset. Raises: ValueError."""
    found = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(f"{node.name}{node.matchers}")

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    return found


def name_of(selector: str) -> str:
    return re.split("[{]", selector, maxsplit=1)[0]
