"""The forecasts of `why` and `submit --dry-run`: one line per fact, and nothing is submitted."""

import json

from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, sequence

FORESEEN = {
    "also": [{"code": "quota_wait", "sentence": "quota exceeded"}],
    "counterfactual": {"change": "gpu_count", "to": 2, "starts": True, "sentence": "with 2 GPUs it would start"},
    "estimate": {"sentence": "no estimate: 5 running jobs have no time limit"},
    "predicted": {
        "p10": 60,
        "p50": 70,
        "p90": 90,
        "n": 3,
        "source": "median of your last 3 runs of train.py: 1-1.5 min",
    },
    "history": [{"code": "constraint", "seconds": 5400}, {"code": "capacity", "seconds": 30}],
}


def test_why_prints_further_reasons_changes_and_the_start(server: FakeServer) -> None:
    server.on(
        "GET", "/jobs/42/explain", Answer(200, {"job_id": 42, "state": "pending", "sentence": "waits", **FORESEEN})
    )
    assert call(server.url, "why", "42").stdout.splitlines()[1:] == [
        "if:    with 2 GPUs it would start",
        "also:  quota exceeded",
        "start: no estimate: 5 running jobs have no time limit",
        "runs:  median of your last 3 runs of train.py: 1-1.5 min",
        "was:   constraint 1.5 h, capacity 30 s",
    ]


def test_dry_run_prints_the_forecast_and_submits_nothing(server: FakeServer) -> None:
    placed = {"starts_now": True, "sentence": "it would start now on n1",
              "placement": [{"rank": 0, "node": "n1", "gpus": [0, 3], "models": ["NVIDIA A100"]}]}  # fmt: skip
    waiting = {"starts_now": False, "sentence": "it would wait: full", "reason": {"code": "capacity", "next_step": "wait"},
             "victims": {"jobs": 1, "gpus": 1, "rule": "priority"}, "estimate": FORESEEN["estimate"],
             "predicted": FORESEEN["predicted"],
             "alternatives": [FORESEEN["counterfactual"]]}  # fmt: skip
    server.on("POST", "/jobs/simulate", sequence(Answer(200, placed), Answer(200, waiting)))
    first = call(server.url, "submit", "--dry-run", "--gpus", "2", "--", "true")
    assert first.stdout == "it would start now on n1\nrank 0: n1, GPUs 0, 3 (NVIDIA A100)\n"
    second = call(server.url, "submit", "--dry-run", "--gpus", "4", "--", "true")
    assert second.stdout.splitlines() == [
        "it would wait: full",
        "next:  wait",
        "stops: 1 job, 1 GPU (by priority)",
        "start: no estimate: 5 running jobs have no time limit",
        "runs:  median of your last 3 runs of train.py: 1-1.5 min",
        "or:    with 2 GPUs it would start",
    ]
    assert [(request.method, request.path.rpartition("/")[2]) for request in server.requests] == [
        ("POST", "simulate")
    ] * 2
    assert json.loads(server.requests[1].body)["gpu_count"] == 4
