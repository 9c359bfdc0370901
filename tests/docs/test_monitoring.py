"""The dashboard and the alert rules name metrics, labels and label values that the server exports (A54)."""

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import JobState, NodeState
from serving.models import RequestState
from tests.docs.reading import ROOT, rows, text_of

DASHBOARD = json.loads((ROOT / "deploy/grafana/gpusched.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/alerts/gpusched.yml").read_text())["groups"]
# Prometheus adds these itself.
PROMETHEUS_METRICS = {"up": {"job", "instance"}}
VALUES: dict[tuple[str, str], set[str]] = {
    ("gpu_scheduler_jobs_total", "state"): set(JobState),
    ("gpu_scheduler_queue_size", "reason"): set(Pending),
    ("gpu_scheduler_agents", "state"): set(NodeState),
    ("gpu_scheduler_attempts_ended_total", "reason"): set(EndReason),
    ("gpu_scheduler_endpoint_requests_total", "state"): set(RequestState),
}


def metrics() -> dict[str, set[str]]:
    """Map series to labels, as documented; tests/docs/test_documented.py checks the documentation against the code."""
    series = dict(PROMETHEUS_METRICS)
    for row in rows(text_of("docs/metrics.md")):
        name, labels = row[0].strip("`"), set(re.findall(r"`(\w+)`", row[2]))
        if row[1] == "histogram":
            series |= {f"{name}_{part}": {*labels, "le"} for part in ("bucket", "sum", "count")}
        else:
            series[name] = labels
    return series


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for group in RULES for rule in group["rules"])


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expressions_name_existing_metrics(expression: str):
    """A54"""
    existing = metrics()
    named = re.findall(r"\b(gpu_scheduler_\w+|up)\b(?:\{([^}]*)\})?", expression)
    assert named
    for name, selectors in named:
        assert name in existing, f"there is no metric {name}"
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selectors):
            assert label in existing[name], f"{name} has no label {label}"
            if (values := VALUES.get((name, label))) is not None:
                assert set(value.split("|")) <= values
    labels = set().union(*(existing[name] for name, _ in named))
    for grouped in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expressions_hold_with_several_heads(expression: str):
    """Each head gives the same answer, so a sum counts everything twice, and two series match none: Prometheus then
    does not evaluate the rule. Quotients and quantiles are the same, and each head has its own streams."""
    assert not re.search(r"\b(on|ignoring) \(", expression)
    if " / " not in expression and "histogram_quantile" not in expression and "gpu_scheduler_streams" not in expression:
        assert not re.search(r"\bsum(?: by \([^)]*\) )?\((?!max by)", expression)


def test_dashboard_shows_every_metric():
    expressions_text = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    missing = {re.sub(r"_(bucket|sum|count)$", "", name) for name in metrics() if name not in PROMETHEUS_METRICS}
    assert {name for name in missing if name not in expressions_text} == set()


def test_dashboard_variables_use_existing_labels():
    definitions = [v["definition"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    assert definitions
    for definition in definitions:
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", definition)
        assert match and match[2] in metrics()[match[1]]


def test_panels_do_not_overlap():
    occupied: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & occupied and max(x for x, _ in cells) < 24, panel["title"]
        occupied |= cells


def test_alerts_have_severity_and_summary():
    names = [rule["alert"] for group in RULES for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 10
    for group in RULES:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            summary = rule["annotations"]["summary"]
            labels = set().union(*(metrics()[name] for name in re.findall(r"gpu_scheduler_\w+|\bup\b", rule["expr"])))
            assert set(re.findall(r"\$labels\.(\w+)", summary)) <= labels
            assert summary.endswith(".")
