"""The dashboard and the alert rules name metrics and labels that there are, and the rules fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from tidemill.core.config import EngineConfig, ModelConfig, SchedulerConfig
from tidemill.core.metrics import METRICS, ROUTER_METRICS, MetricKind, MetricSpec

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tidemill.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(f"{panel['title']}: {t['legendFormat']}", t["expr"]) for panel in PANELS for t in panel["targets"]]
EXPRESSIONS = TARGETS + [(rule["alert"], rule["expr"]) for rule in RULES]
OF_PROMETHEUS = {"job", "instance"}
"""Labels that every series gets as it is read."""
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is not installed")


def _series(spec: MetricSpec) -> dict[str, set[str]]:
    """The names and labels that a metric has on the page."""
    if spec.kind is not MetricKind.HISTOGRAM:
        return {spec.name: {*spec.labels}}
    return {f"{spec.name}_{end}": {*spec.labels, *(["le"] * (end == "bucket"))} for end in ("bucket", "sum", "count")}


SERIES = {name: labels for spec in METRICS for name, labels in _series(spec).items()} | {"up": set()}


def _used(expression: str) -> dict[str, set[str]]:
    """The series of an expression, with the labels that it selects by."""
    found = re.findall(r"\b((?:tidemill|vllm)[\w:]*|up)\b(?:\{([^}]*)\})?", expression)
    return {name: set(re.findall(r"(\w+)\s*[=!]", selector)) for name, selector in found}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_an_expression_reads_what_is_exported(where: str, expression: str) -> None:
    used = _used(expression)
    assert used
    grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", labels)}
    for name, selected in used.items():
        assert name in SERIES, f"{where}: there is no {name}"
        assert selected | grouped <= SERIES[name] | OF_PROMETHEUS, f"{where}: {name} has not all these labels"
        counter = name.endswith(("_total", "_bucket"))
        assert not counter or "rate(" in expression or "increase(" in expression or "restarts" in name


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_legend_names_labels_that_are_left(panel: dict) -> None:
    for target in panel["targets"]:
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), (target["legendFormat"], target["expr"])


def test_every_metric_of_our_own_is_on_the_dashboard() -> None:
    shown = {name for _, expression in TARGETS for name in _used(expression)}
    missing = [spec.name for spec in METRICS if not shown & _series(spec).keys()]
    assert missing == [spec.name for spec in ROUTER_METRICS.values()]


def test_the_dashboard_can_be_imported() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells = [(x, y) for p in PANELS for g in [p["gridPos"]] for x in range(g["x"], g["x"] + g["w"]) for y in [g["y"]]]
    assert len(set(cells)) == len(cells), "panels lie on each other"
    for variable in ("job", "instance"):
        assert variable in {entry["name"] for entry in DASHBOARD["templating"]["list"]}


def test_rules_speak_of_settings_that_there_are() -> None:
    settings = {item.name for owner in (ModelConfig, SchedulerConfig, EngineConfig) for item in fields(owner)}
    for rule in RULES:
        assert rule["annotations"].keys() == {"summary", "description"}
        for name in re.findall(r"\b[a-z]+_[a-z_]+\b", rule["annotations"]["description"]):
            assert name in settings, f"{rule['alert']}: there is no setting {name}"


@needs_promtool
def test_each_rule_fires_for_the_server_in_trouble_and_not_for_the_busy_one() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", DEPLOY / "prometheus" / "alerts_test.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = (DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    fired = re.findall(r'alertname="(\w+)", instance="bad"', expected)
    assert sorted(fired) == sorted(rule["alert"] for rule in RULES)


@needs_promtool
def test_prometheus_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    filled = [e.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for _, e in TARGETS]
    rules = [{"record": f"panel:{index}", "expr": expression} for index, expression in enumerate(filled)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_reads_the_example_configuration() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", DEPLOY / "prometheus" / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
