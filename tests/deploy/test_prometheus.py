"""deploy/prometheus and deploy/grafana: each series that is asked for is one of the worker's, each alert is tried.

promtool itself, and a Prometheus that scrapes two workers, are in test_fleet.py.
"""

import re

import pytest

from tests.deploy.expressions import (
    ALERT_TESTS,
    alerts,
    board,
    expressions,
    name_of,
    picker_series,
    selectors,
)
from tests.deploy.manifests import DEPLOY, objects_in
from worker.observe.metrics import Metrics

PARTS = {"histogram": ("_bucket", "_sum", "_count")}
PROMETHEUS_OWN = {"up"}
OPERATING = (DEPLOY.parent / "docs" / "operating.md").read_text()


def offered() -> set[str]:
    """The names of all samples that a worker can have."""
    text = Metrics("w").render(None)[0].decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    engine = {name.replace("process_", "worker_engine_process_", 1) for name in kinds if name.startswith("process_")}
    return {name + part for name, kind in kinds.items() for part in PARTS.get(kind, ("",))} | engine


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_every_series_that_is_asked_for_is_one_of_the_workers(place: str, expression: str) -> None:
    names = {name_of(selector) for selector in selectors(expression)}
    assert names
    assert names - offered() - PROMETHEUS_OWN == set(), place


def test_what_the_endpoint_picker_looks_for_is_there() -> None:
    assert {name_of(spec) for spec in picker_series()} <= offered()


def test_a_series_that_is_misspelt_would_be_found() -> None:
    assert {name_of(selector) for selector in selectors("rate(worker_redy[5m]) > 1")} - offered() == {"worker_redy"}


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = [test for path in ALERT_TESTS for body in objects_in(path) for test in body["tests"]]
    tried = [(each["alertname"], bool(each["exp_alerts"])) for test in tests for each in test["alert_rule_test"]]
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert set(tried) == {(name, fires) for name in names for fires in (True, False)}


def test_every_alert_says_who_how_bad_it_is_and_has_its_row_on_the_page() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert re.search(r"\$labels\.(worker_id|instance)", rule["annotations"]["summary"]), rule["alert"]
    assert [rule["alert"] for rule in alerts() if f"`{rule['alert']}`" not in OPERATING] == []


def test_the_panels_do_not_overlap_and_each_says_what_it_measures() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCD"[: len(panel["targets"])])
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in board()["panels"]}) == len(board()["panels"])


def test_the_board_has_the_variables_that_its_expressions_use() -> None:
    declared = {variable["name"] for variable in board()["templating"]["list"]}
    used = {
        name
        for panel in board()["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert used - {"__rate_interval"} == declared - {"datasource"}
